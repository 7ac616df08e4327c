// One machine: how it is, live; processes, containers, kernel log, services.
import { useMemo, useRef, useState } from "preact/hooks";
import type { ContainerInfo, Host, ProcessInfo } from "../contract";
import { bytes, number, plain, plural } from "../format";
import { asCallError, useLoad, useStream } from "../live";
import { Badge, Card, Empty, Facts, Meter, Trouble, Waiting, When } from "../parts/bits";
import { Chart } from "../parts/chart";
import { Confirm, note } from "../parts/dialog";
import { Page as LogPage } from "../parts/logs";
import { Filter, Table } from "../parts/table";
import { query, to } from "../router";
import { call, stream } from "../rpc";
import { may } from "../session";
import { Page } from "./frame";

const TABS: [string, string][] = [["", "Live"], ["processes", "Processes"], ["containers", "Containers"], ["log", "Kernel log"], ["services", "Services"]];

type Headers = Record<string, string>;

export function MachinePage({ parts }: { parts: string[] }) {
  const here = parts[0] === "here";
  const name = parts.slice(1).join("/") || parts[0] || "";
  const headers: Headers = here ? {} : { nodes: name };
  const title = here ? "This server's machine" : parts.join("/");
  const tab = query.value.get("tab") ?? "";
  const [rebooting, setRebooting] = useState(false);
  const address = to("machines", ...parts);
  const actions = (
    <>
      {(tab === "processes" || tab === "containers" || tab === "services") && <Filter what={tab} />}
      {may.steerMachines() && <button type="button" class="quiet danger" onClick={() => setRebooting(true)} data-testid="reboot">Reboot</button>}
    </>
  );
  return (
    <Page title={title} crumbs={[["Machines", "#/machines"]]} actions={actions}>
      <nav class="tabs" aria-label="Views of the machine">
        {TABS.map(([key, text]) => <a key={key} href={key ? `${address}?tab=${key}` : address} aria-current={tab === key ? "page" : undefined} data-testid={`tab-${key || "live"}`}>{text}</a>)}
      </nav>
      {tab === "processes" ? <Processes headers={headers} /> : tab === "containers" ? <Containers headers={headers} />
        : tab === "log" ? <KernelLog headers={headers} /> : tab === "services" ? <Services headers={headers} /> : <LiveHost headers={headers} machine={here ? undefined : parts.join("/")} />}
      {rebooting && (
        <Confirm title={`Reboot ${plain(title, 80)}?`} yes="Reboot it" close={() => setRebooting(false)} act={async () => {
          problem((await call("machine.MachineService/Reboot", {}, { headers })).messages);
          note("It is rebooting.");
        }}>
          <p>{here ? "The server that you are talking to runs on it: this page comes back when it does." : "Everything on it stops, and comes back when it has started."}</p>
        </Confirm>
      )}
    </Page>
  );
}

/** Machines tell their own failures in the reply. */
function problem(messages: { metadata?: { hostname?: string; error?: string } }[] | undefined): void {
  const failed = messages?.find((one) => one.metadata?.error);
  if (failed) throw asCallError(failed.metadata?.error);
}

const KEPT = 300;
/** What is drawn, as the history of the server calls it. */
const DRAWN = ["cpu_percent", "memory_used_bytes", "received_bytes", "sent_bytes", "read_bytes", "written_bytes"] as const;
type Sample = { time: number } & Partial<Record<(typeof DRAWN)[number], number>>;

/** The last minutes before anybody looked, as the server has kept them. */
function usePast(name: string | undefined): Sample[] {
  const { data } = useLoad(async (signal) => (name ? (await call("selvage.dashboard.DashboardService/GetSeries", { names: [...DRAWN], kind: "machine", name, range: "600s", step: "15s" }, { signal })).series ?? [] : []), [name]);
  return useMemo(() => {
    const samples = new Map<number, Sample>();
    for (const one of data ?? []) {
      one.times?.forEach((at, index) => {
        const time = Number(at);
        samples.set(time, { ...(samples.get(time) ?? { time }), [one.name ?? ""]: one.values?.[index] });
      });
    }
    return [...samples.values()].sort((a, b) => a.time - b.time);
  }, [data]);
}

const sum = <K extends string>(list: Partial<Record<K, string | number>>[] | undefined, field: K) => (list ?? []).reduce((all, one) => all + number(one[field]), 0);
const totals = (host: Host) => ({
  received_bytes: sum(host.interfaces, "receivedBytes"), sent_bytes: sum(host.interfaces, "sentBytes"),
  read_bytes: sum(host.disks, "readBytes"), written_bytes: sum(host.disks, "writtenBytes"),
});

/** A sample of a second, with rates since the one before. */
function sample(host: Host, before: Host | undefined): Sample {
  const time = Date.parse(host.time ?? "");
  const used = (number(host.memory?.memtotal) - number(host.memory?.memavailable)) * 1024;
  const found: Sample = { time, cpu_percent: host.cpuPercent ?? 0, memory_used_bytes: used };
  if (!before) return found;
  const seconds = Math.max(0.001, (time - Date.parse(before.time ?? "")) / 1000);
  const [now, then] = [totals(host), totals(before)];
  for (const name of Object.keys(now) as (keyof typeof now)[]) found[name] = Math.max(0, (now[name] - then[name]) / seconds);
  return found;
}

function LiveHost({ headers, machine }: { headers: Headers; machine?: string }) {
  const [host, setHost] = useState<Host>();
  const [live, setLive] = useState<Sample[]>([]);
  const last = useRef<Host>(undefined);
  const error = useStream((signal) => stream("selvage.node.NodeService/WatchHost", { period: "1s" }, { signal, headers }),
    (next) => {
      if (next.metadata?.error) throw asCallError(next.metadata.error);
      const taken = sample(next, last.current);
      last.current = next;
      setHost(next);
      setLive((old) => [...old, taken].slice(-KEPT));
    }, [headers.nodes]);
  const past = usePast(machine ?? (host?.name && `node/${host.name}`));
  const samples = useMemo(() => [...past.filter((one) => one.time < (live[0]?.time ?? 0)), ...live], [past, live]);
  const times = useMemo(() => samples.map((one) => one.time), [samples]);
  if (error) return <Trouble error={error} />;
  if (!host) return <Waiting what="Asking the machine" />;
  const memory = number(host.memory?.memtotal) * 1024;
  const line = (label: string, name: (typeof DRAWN)[number]) => ({ label, values: samples.map((one) => one[name] ?? null) });
  return (
    <>
      <div class="columns">
        <Card title="Processors"><Chart title={plural(host.cpus?.length ?? 0, "processor")} unit="percent" top={100} times={times} lines={[line("busy", "cpu_percent")]} /></Card>
        <Card title="Memory"><Chart title="In use" of={bytes(memory)} unit="bytes" top={memory} times={times} lines={[line("used", "memory_used_bytes")]} /></Card>
        <Card title="Network"><Chart title="All interfaces" unit="bytes/s" times={times} lines={[line("received", "received_bytes"), line("sent", "sent_bytes")]} /></Card>
        <Card title="Disks"><Chart title="All disks" unit="bytes/s" times={times} lines={[line("read", "read_bytes"), line("written", "written_bytes")]} /></Card>
      </div>
      <div class="columns">
        <Card title="Details"><Facts items={[["Name", plain(host.name)], ["Started", <When time={host.started} />], ["Load average", `${(host.load1 ?? 0).toFixed(2)}, ${(host.load5 ?? 0).toFixed(2)}, ${(host.load15 ?? 0).toFixed(2)}`], ["Busy processes", number(host.runningProcesses)]]} /></Card>
        <Card title="File systems">
          {disks(host).slice(0, 8).map((one) => (
            <div class="room" key={one.mountedOn}>
              <p><strong class="mono" title={plain(one.mountedOn, 1000)}>{plain(one.mountedOn, 200)}</strong> <span>{bytes(one.availableBytes)} of {bytes(one.sizeBytes)} free</span></p>
              <Meter used={number(one.sizeBytes) - number(one.availableBytes)} total={number(one.sizeBytes)} ticks={[0.85, 0.95]} label={`${one.mountedOn} used`} />
            </div>
          ))}
        </Card>
      </div>
    </>
  );
}

/** What is smaller holds nobody's data. */
const SMALLEST = 1 << 20;

/** File systems that can get full: those of devices, each once, by its shortest path. */
function disks({ filesystems = [] }: Host) {
  const real = filesystems.filter((one) => number(one.sizeBytes) >= SMALLEST && !/^\/(dev|proc|run|sys)(\/|$)/.test(one.mountedOn ?? ""));
  const shortest = [...real].sort((a, b) => (a.mountedOn ?? "").length - (b.mountedOn ?? "").length);
  return shortest.filter((one, at) => shortest.findIndex((other) => other.device === one.device) === at);
}

function Processes({ headers }: { headers: Headers }) {
  const [known, setKnown] = useState<Map<number, ProcessInfo>>(new Map());
  const error = useStream((signal) => stream("selvage.node.NodeService/WatchProcesses", { period: "2s" }, { signal, headers }), (update) => {
    if (update.metadata?.error) throw asCallError(update.metadata.error);
    setKnown((old) => {
      const next = new Map(old);
      for (const pid of update.gone ?? []) next.delete(pid);
      for (const process of update.changed ?? []) next.set(process.pid ?? 0, process);
      return next;
    });
  }, [headers.nodes]);
  const rows = useMemo(() => [...known.values()], [known]);
  if (error) return <Trouble error={error} />;
  if (rows.length === 0) return <Waiting what="Asking the machine" />;
  return (
    <Table label="Processes" rows={rows} id={(one) => String(one.pid)} empty={null} order={[3, -1]} columns={[
      { title: "Process", value: (one) => one.command ?? "" },
      { title: "PID", value: (one) => one.pid ?? 0, right: true },
      { title: "State", value: (one) => one.state ?? "", wide: true },
      { title: "CPU time", value: (one) => one.cpuTime ?? 0, show: (one) => `${(one.cpuTime ?? 0).toFixed(1)} s`, right: true },
      { title: "Memory", value: (one) => number(one.residentMemory), show: (one) => bytes(one.residentMemory), right: true },
      { title: "Threads", value: (one) => one.threads ?? 0, right: true, wide: true },
      { title: "Arguments", value: (one) => one.args ?? "", show: (one) => <span class="mono">{plain(one.args, 160)}</span>, wide: true },
    ]} />
  );
}

function Containers({ headers }: { headers: Headers }) {
  const { data, error, refresh } = useLoad(async (signal) => {
    const { messages } = await call("os.OSService/Containers", { namespace: "*" }, { signal, headers });
    const rows = (messages ?? []).flatMap((one) => one.containers ?? []);
    if (rows.length === 0) problem(messages);
    return rows;
  }, [headers.nodes], 5000);
  const [chosen, setChosen] = useState<ContainerInfo>();
  const running = (one: ContainerInfo) => (one.status ?? "").toUpperCase() === "RUNNING";
  if (error) return <Trouble error={error} retry={refresh} />;
  if (!data) return <Waiting what="Asking the machine" />;
  return (
    <>
      <Table label="Containers" rows={data} id={(one) => `${one.namespace}/${one.id}`} empty={<Empty title="No containers run here">They appear with the first instance on this machine.</Empty>} columns={[
        { title: "Container", value: (one) => one.name || one.id || "" },
        { title: "State", value: (one) => one.status ?? "", show: (one) => <Badge state={{ word: (one.status ?? "unknown").toLowerCase(), tone: one.problem ? "warn" : running(one) ? "good" : "off" }} title={one.problem} /> },
        { title: "Namespace", value: (one) => one.namespace ?? "", wide: true },
        { title: "Image", value: (one) => one.image ?? "", wide: true },
        { title: "PID", value: (one) => one.pid ?? 0, right: true, wide: true },
        ...(may.steerMachines() ? [{ title: "Actions", value: () => "", show: (one: ContainerInfo) => <button type="button" class="quiet small" onClick={() => setChosen(one)}>Restart</button> }] : []),
      ]} />
      {chosen && (
        <Confirm title={`Restart ${plain(chosen.name || chosen.id, 60)}?`} yes="Restart it" close={() => setChosen(undefined)} act={async () => {
          problem((await call("os.OSService/Restart", { namespace: chosen.namespace ?? "", id: chosen.id ?? "" }, { headers })).messages);
          note("It is running again.");
          await refresh();
        }}><p>It is stopped and started again; whatever it is doing is cut off.</p></Confirm>
      )}
    </>
  );
}

function KernelLog({ headers }: { headers: Headers }) {
  const [lines, setLines] = useState<string[]>([]);
  const error = useStream((signal) => stream("os.OSService/Dmesg", { follow: true, last: 500 }, { signal, headers }), (data) => {
    if (data.metadata?.error) throw asCallError(data.metadata.error);
    const text = new TextDecoder().decode(Uint8Array.from(atob(data.bytes ?? ""), (letter) => letter.charCodeAt(0)));
    setLines((old) => [...old, ...text.replace(/\n$/, "").split("\n")].slice(-2000));
  }, [headers.nodes]);
  return <><Trouble error={error} /><LogPage lines={lines} follow label="Kernel log" /></>;
}

function Services({ headers }: { headers: Headers }) {
  const { data, error, refresh } = useLoad(async (signal) => {
    const { messages } = await call("machine.MachineService/ServiceList", {}, { signal, headers });
    const rows = (messages ?? []).flatMap((one) => one.services ?? []);
    if (rows.length === 0) problem(messages);
    return rows;
  }, [headers.nodes], 5000);
  const [chosen, setChosen] = useState("");
  if (error) return <Trouble error={error} retry={refresh} />;
  if (!data) return <Waiting what="Asking the machine" />;
  return (
    <>
      <Table label="Services" rows={data} id={(one) => one.id ?? ""} empty={<Empty title="The machine has no services of its own" />} columns={[
        { title: "Service", value: (one) => one.id ?? "" },
        { title: "State", value: (one) => one.state ?? "", show: (one) => <Badge state={{ word: (one.state ?? "unknown").toLowerCase(), tone: /running/i.test(one.state ?? "") ? "good" : /fail/i.test(one.state ?? "") ? "bad" : "off" }} title={one.health?.lastMessage} /> },
        ...(may.steerMachines() ? [{ title: "Actions", value: () => "", show: (one: { id?: string }) => <button type="button" class="quiet small" onClick={() => setChosen(one.id ?? "")}>Restart</button> }] : []),
      ]} />
      {chosen && (
        <Confirm title={`Restart the service ${plain(chosen, 60)}?`} yes="Restart it" close={() => setChosen("")} act={async () => {
          problem((await call("machine.MachineService/ServiceRestart", { id: chosen }, { headers })).messages);
          note(`${chosen} is restarted.`);
          await refresh();
        }}><p>It is stopped and started again.</p></Confirm>
      )}
    </>
  );
}
