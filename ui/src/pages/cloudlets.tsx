// Cloudlets: places with machines that run apps, and the sizes on offer.
import { useState } from "preact/hooks";
import type { Cloudlet } from "../contract";
import { number, plain } from "../format";
import { cloudletHref, cloudletName, instanceHref, instanceId } from "../keys";
import { overview } from "../overview";
import { Badge, Card, Command, Empty, Facts, Meter, Trouble, Waiting } from "../parts/bits";
import { Confirm, Dialog, note } from "../parts/dialog";
import type { Work } from "../follow";
import { Progress } from "../parts/operation";
import { Filter, Table } from "../parts/table";
import { cloudletInfos, cloudletUse, cloudlets, flavors, instances } from "../resources";
import { go, query, setQuery } from "../router";
import { call } from "../rpc";
import { may } from "../session";
import { cloudletState, worded, type State } from "../states";
import { CloudletForm, FlavorForm } from "./cloudlet-form";
import { Page } from "./frame";
import { instanceColumns } from "./instances";

const NOTHING_USED = { ram: 0, vcores: 0, disk: 0 };

/** State and use of a cloudlet, as far as the caller may know. */
function useAbout() {
  const infos = cloudletInfos.use().data ?? [];
  const use = cloudletUse.use().data;
  const places = overview.value?.places ?? [];
  return (cloudlet: Cloudlet) => {
    const name = cloudletName(cloudlet.key);
    const info = infos.find((one) => cloudletName(one.key) === name);
    const place = places.find((one) => one.cloudlet?.name === name);
    const state: State = info ? cloudletState(info.state) : place ? worded(place.state, place.severity) : { word: "never connected", tone: "off" };
    return { info, place, state, used: use && (use.get(name) ?? NOTHING_USED) };
  };
}

export function CloudletsPage() {
  const { data, error, refresh } = cloudlets.use();
  const about = useAbout();
  const create = may.changeCloudlets() && <button type="button" data-new data-testid="new-cloudlet" onClick={() => setQuery("new", "cloudlet")}>New cloudlet</button>;
  const room = (cloudlet: Cloudlet, of: "ram" | "vcores") => {
    const { info, used } = about(cloudlet);
    const most = number(of === "ram" ? info?.osMaxRam : info?.osMaxVcores);
    return most && used ? `${used[of]} of ${most}` : "";
  };
  return (
    <Page title="Cloudlets" actions={<><Filter what="cloudlets" />{create}</>}>
      <Trouble error={error} retry={refresh} />
      {!data ? !error && <Waiting /> : (
        <Table label="Cloudlets" rows={data} id={(one) => cloudletName(one.key)} href={(one) => cloudletHref(one.key)} order={[0, 1]}
          empty={<Empty title="No cloudlets yet">A cloudlet is a place with machines. {may.changeCloudlets() ? <>Register one with <b>New cloudlet</b>, then start its agent there.</> : "Operators register them."}</Empty>}
          columns={[
            { title: "Cloudlet", value: (one) => cloudletName(one.key) },
            { title: "State", value: (one) => about(one).state.word, show: (one) => <Badge state={about(one).state} title={about(one).info?.errors?.join("\n")} /> },
            { title: "Instances", value: (one) => about(one).place?.instances ?? 0, right: true },
            { title: "Memory, MB", value: (one) => room(one, "ram"), right: true, wide: true },
            { title: "vCPU", value: (one) => room(one, "vcores"), right: true, wide: true },
            { title: "Location", value: (one) => where(one), wide: true },
          ]} />
      )}
      <Sizes />
      {may.changeCloudlets() && query.value.get("new") === "cloudlet" && <NewCloudlet close={() => setQuery("new", "")} />}
    </Page>
  );
}

const where = ({ location }: Cloudlet) => {
  const [latitude, longitude] = [location?.latitude ?? 0, location?.longitude ?? 0];
  return `${Math.abs(latitude).toFixed(1)}° ${latitude < 0 ? "S" : "N"}, ${Math.abs(longitude).toFixed(1)}° ${longitude < 0 ? "W" : "E"}`;
};

function NewCloudlet({ close }: { close: () => void }) {
  const [work, setWork] = useState<Work>();
  const key = (work?.request as Cloudlet | undefined)?.key;
  return (
    <Dialog title={work ? `Registering ${work.what}` : "New cloudlet"} wide close={close} testid="cloudlet-dialog">
      {work ? <Progress work={work} close={close} finished={() => { close(); go(cloudletHref(key)); }} /> : <CloudletForm begin={setWork} close={close} />}
    </Dialog>
  );
}

function Sizes() {
  const { data } = flavors.use();
  const [open, setOpen] = useState(false);
  const [deleting, setDeleting] = useState("");
  return (
    <>
      <div class="row section"><h2>Sizes</h2>{may.admin() && <button type="button" class="quiet small" onClick={() => setOpen(true)} data-testid="new-flavor">New size</button>}</div>
      {(data ?? []).length === 0 ? <p class="soft">None yet. Every app and cluster has a size; an admin adds them here.</p> : (
        <ul class="row">{(data ?? []).map((flavor) => (
          <li key={flavor.key?.name} class="size">
            <b>{plain(flavor.key?.name, 40)}</b> <span class="soft fine">{number(flavor.vcpus)} vCPU, {number(flavor.ram)} MB, {number(flavor.disk)} GB</span>
            {may.admin() && <button type="button" class="link fine" aria-label={`Delete size ${flavor.key?.name}`} onClick={() => setDeleting(flavor.key?.name ?? "")}>✕</button>}
          </li>
        ))}</ul>
      )}
      {open && <Dialog title="New size" close={() => setOpen(false)}><FlavorForm close={() => setOpen(false)} /></Dialog>}
      {deleting && <Confirm title={`Delete the size ${deleting}?`} yes="Delete it" close={() => setDeleting("")} act={async () => {
        await call("edgeproto.FlavorApi/DeleteFlavor", { key: { name: deleting } });
        await flavors.refresh();
      }}><p>A size that an app or cluster uses cannot be deleted.</p></Confirm>}
    </>
  );
}

export function CloudletPage({ parts: [operator = "", name = ""] }: { parts: string[] }) {
  const { data, error } = cloudlets.use();
  const about = useAbout();
  const running = (instances.use().data ?? []).filter((one) => cloudletName(one.key?.clusterInstKey?.cloudletKey) === `${operator}/${name}`);
  const [open, setOpen] = useState<"edit" | "delete" | "join">();
  const [work, setWork] = useState<Work>();
  const cloudlet = data?.find((one) => cloudletName(one.key) === `${operator}/${name}`);
  const crumbs: [string, string][] = [["Cloudlets", "#/cloudlets"]];
  const close = () => { setOpen(undefined); setWork(undefined); };
  // It goes on being shown when what it deletes is gone; by its key it is the same one, and calls nothing again.
  const progress = work && <Dialog key="progress" title={work.what} wide close={close}><Progress work={work} close={close} finished={() => { close(); if (work.method.includes("Delete")) go("#/cloudlets"); }} /></Dialog>;
  if (!cloudlet) {
    return (
      <Page title={`${operator}/${name}`} crumbs={crumbs}>
        <Trouble error={error} />
        {progress}
        {work ? null : data ? <Empty title="There is no such cloudlet"><a href="#/cloudlets">All cloudlets</a></Empty> : !error && <Waiting />}
      </Page>
    );
  }
  const { info, state, used } = about(cloudlet);
  const mine = may.changeCloudlets(operator);
  const actions = (
    <>
      <Badge state={state} />
      {may.admin() && <button type="button" class="quiet" onClick={() => setOpen("join")} data-testid="join-cloudlet">Connect its agent</button>}
      {mine && <button type="button" class="quiet" onClick={() => setOpen("edit")}>Edit</button>}
      {mine && <button type="button" class="quiet danger" onClick={() => setOpen("delete")} data-testid="delete-cloudlet">Delete</button>}
    </>
  );
  return (
    <Page title={`${operator}/${name}`} crumbs={crumbs} actions={actions}>
      <div class="columns">
        <Card title="Details">
          <Facts items={[
            ["State", <Badge state={state} />], ["Errors", info?.errors?.length ? <span class="wrong">{plain(info.errors.join("; "), 1000)}</span> : undefined],
            ["Operator", plain(operator)], ["Location", where(cloudlet)], ["Static addresses", plain(cloudlet.staticIps)],
            ["Dynamic addresses", cloudlet.numDynamicIps], ["DNS zone", plain(info?.dnsZone)],
          ]} />
        </Card>
        <Card title="Capacity">
          {number(info?.osMaxRam) === 0 ? <p class="soft">Its agent has not reported its capacity yet.</p> : (
            <>
              <Used label="Memory" used={used?.ram} total={number(info?.osMaxRam)} unit="MB" />
              <Used label="Processors" used={used?.vcores} total={number(info?.osMaxVcores)} unit="vCPU" />
              <Used label="Disk" used={used?.disk} total={number(info?.osMaxVolGb)} unit="GB" />
            </>
          )}
        </Card>
      </div>
      {may.seeApps() && <h2 class="section">Instances</h2>}
      {may.seeApps() && <Table label="Instances" rows={running} id={instanceId} href={(one) => instanceHref(one.key)} columns={instanceColumns} empty={<p class="soft">None of your instances run here.</p>} />}
      {open === "edit" && <Dialog title={`Edit ${operator}/${name}`} wide close={close}><CloudletForm cloudlet={cloudlet} begin={(next) => { setOpen(undefined); setWork(next); }} close={close} /></Dialog>}
      {progress}
      {open === "join" && <JoinDialog machine={`cloudlet/${operator}/${name}`} close={close} />}
      {open === "delete" && (
        <Confirm title={`Delete ${operator}/${name}?`} yes="Delete the cloudlet" close={() => setOpen(undefined)} act={async () => {
          setWork({ method: "edgeproto.CloudletApi/DeleteCloudlet", request: { key: cloudlet.key }, what: `cloudlet ${name}`, done: "deleted", isMine: () => false });
        }}>
          <p>{running.length ? `${running.length} instances run there; it is refused until they are deleted, except those that go with it.` : "None of your instances run there."} Its agent is told to go.</p>
        </Confirm>
      )}
    </Page>
  );
}

function Used({ label, used, total, unit }: { label: string; used: number | undefined; total: number; unit: string }) {
  return <div class="room"><p><strong>{label}</strong> <span>{used ?? "…"} of {total || "any"} {unit}</span></p><Meter used={used ?? 0} total={total} ticks={[0.85, 0.95]} label={`${label} used`} /></div>;
}

/** A token with which a machine becomes known, shown once. */
export function JoinDialog({ machine, close }: { machine: string; close: () => void }) {
  const [token, setToken] = useState("");
  const make = async () => {
    const reply = await call("selvage.identity.IdentityService/CreateJoinToken", { machine });
    setToken(reply.token ?? "");
    note("The token works once, within an hour.");
  };
  const [kind] = machine.split("/");
  const program = { cloudlet: "crm", node: "node", dme: "dme" }[kind ?? ""];
  return (
    <Dialog title={`Join token for ${machine}`} wide close={close} testid="join-dialog">
      {!token ? (
        <form onSubmit={(event) => { event.preventDefault(); void make(); }}>
          <p>The machine trades a one-time token, valid for an hour, for its certificate. The token is shown only here.</p>
          <div class="actions"><button type="submit" data-testid="make-token">Create a token</button></div>
        </form>
      ) : (
        <div class="secret" data-testid="token">
          <p><b>Shown once.</b> Run this on the machine:</p>
          <Command text={program ? `SELVAGE_JOIN_TOKEN=${token} selvage ${program} --controller ${location.host}` : `SELVAGE_JOIN_TOKEN=${token} selvage join https://${location.host} --out /etc/selvage`} />
        </div>
      )}
    </Dialog>
  );
}
