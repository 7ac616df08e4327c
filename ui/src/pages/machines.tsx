// Machines: those that joined, and the one that the server runs on.
import { useState } from "preact/hooks";
import type { Machine } from "../contract";
import { bytes, measured, now, plain } from "../format";
import { useLoad } from "../live";
import { overview } from "../overview";
import { machineHref } from "../keys";
import { Badge, Empty, Trouble, Waiting, When } from "../parts/bits";
import { Confirm, Dialog, note } from "../parts/dialog";
import { Choice, Form, nameProblem, Text } from "../parts/form";
import { Filter, Table } from "../parts/table";
import { machines } from "../resources";
import { query, setQuery } from "../router";
import { call } from "../rpc";
import { may } from "../session";
import type { State } from "../states";
import { JoinDialog } from "./cloudlets";
import { Page } from "./frame";

/** Agents report a few times a minute; after this they are not heard. */
const SILENT = 150_000;

export function machineState(machine: Machine): State {
  if (machine.blocked) return { word: "blocked", tone: "bad" };
  const seen = Date.parse(machine.lastSeen ?? "");
  if (!Number.isFinite(seen)) return { word: "never reported", tone: "off" };
  return now.value - seen > SILENT ? { word: "silent", tone: "warn" } : { word: "reporting", tone: "good" };
}

export function MachinesPage() {
  const { data, error, refresh } = machines.use();
  const [act, setAct] = useState<["block" | "unblock" | "remove", string]>();
  const join = may.admin() && <button type="button" data-new data-testid="new-machine" onClick={() => setQuery("new", "machine")}>Add a machine</button>;
  return (
    <Page title="Machines" actions={<><Filter what="machines" /><a class="button quiet" href="#/machines/here" data-testid="machine-here">This server</a>{join}</>}>
      <Trouble error={error} retry={refresh} />
      {!data ? !error && <Waiting /> : (
        <Table label="Machines" rows={data} id={(one) => one.machine ?? ""} href={(one) => machineHref(one.machine)} order={[0, 1]}
          empty={<Empty title="No machine has joined yet">{may.admin() ? <>Press <b>Add a machine</b> for a token, and run one command on it. </> : "An admin adds them. "}<a href="#/machines/here">The server's own machine</a> is here already.</Empty>}
          columns={[
            { title: "Machine", value: (one) => one.machine ?? "" },
            { title: "State", value: (one) => machineState(one).word, show: (one) => <Badge state={machineState(one)} /> },
            { title: "Address", value: (one) => one.address ?? "", wide: true },
            { title: "Labels", value: (one) => Object.entries(one.labels ?? {}).map(([name, value]) => `${name}=${value}`).join(" "), wide: true },
            { title: "Last seen", value: (one) => one.lastSeen ?? "", show: (one) => <When time={one.lastSeen} /> },
            { title: "Certificate expires", value: (one) => one.certificateEnds ?? "", show: (one) => <When time={one.certificateEnds} fallback="" />, wide: true },
            { title: "Version", value: (one) => one.version ?? "", wide: true },
            ...(may.admin() ? [{ title: "Actions", value: () => "", wide: true, show: (one: Machine) => (
              <span class="row">
                <button type="button" class="quiet danger small" onClick={() => setAct([one.blocked ? "unblock" : "block", one.machine ?? ""])}>{one.blocked ? "Unblock" : "Block"}</button>
                <button type="button" class="quiet small" onClick={() => setAct(["remove", one.machine ?? ""])}>Remove</button>
              </span>
            ) }] : []),
          ]} />
      )}
      <Scraped />
      {may.admin() && query.value.get("new") === "machine" && <Add close={() => setQuery("new", "")} />}
      {act && <Trust act={act[0]} machine={act[1]} close={() => setAct(undefined)} />}
    </Page>
  );
}

/** Machines that somebody's Prometheus scrapes; nothing where there is none. */
function Scraped() {
  const told = (overview.value?.sources ?? []).some((source) => source.name === "prometheus" && source.section === "exporters");
  const { data } = useLoad(async (signal) => (told ? (await call("selvage.dashboard.DashboardService/GetSeries", { names: ["cpu_percent", "memory_used_bytes"], kind: "exporter", range: "3600s" }, { signal })).series ?? [] : []), [told], 15_000);
  if (!told) return null;
  const rooms = (overview.value?.capacity ?? []).filter((room) => room.object?.kind === "filesystem");
  const names = [...new Set((data ?? []).map((series) => series.object?.name ?? ""))];
  const last = (name: string, metric: string) => data?.find((series) => series.object?.name === name && series.name === metric)?.values?.at(-1);
  const fullest = (name: string) => rooms.find((room) => room.object?.name?.startsWith(`${name} `));
  return (
    <section aria-label="Machines of Prometheus" data-testid="scraped">
      <h2 class="section">Scraped by Prometheus</h2>
      <Table label="Machines of Prometheus" rows={names} id={(name) => name} empty={<Waiting what="Waiting for the first numbers" />} columns={[
        { title: "Target", value: (name) => name },
        { title: "CPU", value: (name) => last(name, "cpu_percent") ?? -1, show: (name) => shown(last(name, "cpu_percent"), "percent"), right: true },
        { title: "Memory used", value: (name) => last(name, "memory_used_bytes") ?? -1, show: (name) => shown(last(name, "memory_used_bytes"), "bytes"), right: true },
        { title: "Fullest file system", value: (name) => fullest(name)?.object?.name ?? "", wide: true, show: (name) => {
          const room = fullest(name);
          return room && <span class="row"><span class="mono">{plain(room.object?.name?.slice(name.length + 1), 40)}</span> {bytes(room.availableBytes)} free of {bytes(room.totalBytes)}</span>;
        } },
      ]} />
    </section>
  );
}

const shown = (value: number | undefined, unit: string) => (value === undefined ? <span class="soft">unknown</span> : measured(value, unit));

const TEXTS = {
  block: ["Block", "Certificates in its name are refused from now on, and it gets no new one."],
  unblock: ["Unblock", "Every certificate in its name that has not expired is good again. If one was stolen, give the machine another name instead."],
  remove: ["Remove", "It is taken off the list, and listed again when it reports. Block it to keep it out."],
} as const;

function Trust({ act, machine, close }: { act: keyof typeof TEXTS; machine: string; close: () => void }) {
  const [yes, text] = TEXTS[act];
  const method = ({ block: "BlockMachine", unblock: "UnblockMachine", remove: "RemoveMachine" } as const)[act];
  return (
    <Confirm title={`${yes} ${plain(machine, 80)}?`} yes={yes} close={close} act={async () => {
      await call(`selvage.identity.IdentityService/${method}`, { machine });
      note(`${machine} is ${({ block: "blocked", unblock: "unblocked", remove: "removed" } as const)[act]}.`);
      await machines.refresh();
    }}><p>{text}</p></Confirm>
  );
}

function Add({ close }: { close: () => void }) {
  const [kind, setKind] = useState("node");
  const [name, setName] = useState("");
  const [chosen, setChosen] = useState("");
  const wrong = /^[A-Za-z0-9][A-Za-z0-9._-]*$/.test(name) ? undefined : nameProblem("", "machine");
  if (chosen) return <JoinDialog machine={chosen} close={close} />;
  return (
    <Dialog title="Add a machine" close={close} testid="machine-dialog">
      <Form send={async () => setChosen(`${kind}/${name}`)} submit="Next" cancel={close} problems={[wrong]}>
        {(tried) => (
          <>
            <Choice label="Kind" value={kind} set={setKind} options={[{ value: "node", text: "A machine to manage" }, { value: "dme", text: "A match engine" }]} />
            <Text label="Name" value={name} set={setName} placeholder="rack3-7" hint="Cloudlets get their token on their own page." wrong={tried ? wrong : undefined} testid="machine-name" />
          </>
        )}
      </Form>
    </Dialog>
  );
}
