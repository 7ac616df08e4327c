// One Kubernetes cluster: its machines as they change, pools, events, and all
// that can be done with it.
import { useState } from "preact/hooks";
import type { KubeDetails, KubeMachine, KubePool } from "../contract";
import { exact, plain, plural } from "../format";
import { asCallError, useLoad, useStream } from "../live";
import { Badge, Card, Empty, Facts, Meter, Trouble, Waiting, When } from "../parts/bits";
import { Filter, Table } from "../parts/table";
import { note } from "../parts/dialog";
import { call, stream, type CallError } from "../rpc";
import { may } from "../session";
import { Page } from "./frame";
import { clusterState, machineState, STEPS } from "./kubernetes";
import { KubeBackups, Upkeep } from "./kubernetes-upkeep";
import { AddPool, DeleteCluster, DeletePool, Kubeconfig, ScalePool, Upgrade } from "./kubernetes-acts";

type Act = { what: "upgrade" | "delete" | "kubeconfig" | "add" } | { what: "scale" | "drop"; pool: KubePool };

export function KubernetesPage({ name }: { name: string }) {
  const [cluster, setCluster] = useState<KubeDetails>();
  const [gone, setGone] = useState(false);
  const [act, setAct] = useState<Act>();
  const error = useStream((signal) => stream("selvage.clusters.ClusterService/WatchCluster", { name }, { signal }), (update) => {
    setGone(!update.cluster);
    if (update.cluster) setCluster(update.cluster);
  }, [name]);
  const missing = error?.code === "not_found";
  const owner = cluster !== undefined && !gone && may.changeKubernetes(cluster.organisation);
  return (
    <Page title={name} crumbs={[["Clusters", "#/clusters"]]} actions={owner && <Actions cluster={cluster} begin={setAct} />}>
      {!missing && <Trouble error={error} />}
      {gone ? <Empty title="The cluster is deleted">Its machines were given back. <a href="#/clusters">All clusters</a></Empty>
        : missing ? <Empty title="There is no such cluster">It was deleted, or it belongs to another organisation. <a href="#/clusters">All clusters</a></Empty>
          : !cluster ? !error && <Waiting /> : <Details cluster={cluster} owner={owner} begin={setAct} />}
      {cluster && act && !gone && <Acting cluster={cluster} act={act} close={() => setAct(undefined)} />}
    </Page>
  );
}

function Acting({ cluster, act, close }: { cluster: KubeDetails; act: Act; close: () => void }) {
  switch (act.what) {
    case "upgrade": return <Upgrade cluster={cluster} close={close} />;
    case "delete": return <DeleteCluster cluster={cluster} close={close} />;
    case "kubeconfig": return <Kubeconfig cluster={cluster} close={close} />;
    case "add": return <AddPool cluster={cluster} close={close} />;
    case "scale": return <ScalePool cluster={cluster} pool={act.pool} close={close} />;
    case "drop": return <DeletePool cluster={cluster} pool={act.pool} close={close} />;
  }
}

function Actions({ cluster, begin }: { cluster: KubeDetails; begin: (act: Act) => void }) {
  const [error, setError] = useState<CallError>();
  const name = cluster.name ?? "";
  const going = cluster.status === "STOPPING";
  const asleep = cluster.hibernated;
  const toggle = async () => {
    setError(undefined);
    try {
      await call(`selvage.clusters.ClusterService/${cluster.paused ? "ResumeCluster" : "PauseCluster"}`, { name });
      note(cluster.paused ? `${name} is resumed.` : `${name} is paused until you resume it.`);
    } catch (failure) {
      setError(asCallError(failure));
    }
  };
  return (
    <>
      <button type="button" data-testid="kubeconfig" onClick={() => begin({ what: "kubeconfig" })}>Kubeconfig</button>
      {!going && !asleep && <button type="button" class="quiet" data-testid="upgrade" onClick={() => begin({ what: "upgrade" })}>Upgrade</button>}
      {!going && !asleep && <button type="button" class="quiet" data-testid="pause" onClick={() => void toggle()}>{cluster.paused ? "Resume" : "Pause"}</button>}
      {!going && <button type="button" class="quiet danger" data-testid="delete-cluster" onClick={() => begin({ what: "delete" })}>Delete</button>}
      <Trouble error={error} />
    </>
  );
}

function Details({ cluster, owner, begin }: { cluster: KubeDetails; owner: boolean; begin: (act: Act) => void }) {
  const rows = cluster.machines ?? [];
  const ready = rows.filter((one) => one.phase === "Ready").length;
  const pools = (cluster.pools ?? []).filter((pool) => pool.name);
  return (
    <>
      <div class="columns">
        <div class="stack">
          <Card title="Cluster" testid="cluster-facts"><Facts items={[
            ["State", <Badge state={clusterState(cluster)} />], ["Status", plain(cluster.statusMessage, 500)], ["Kubernetes", plain(cluster.version)],
            ["API", cluster.endpoint && <span class="mono">{plain(cluster.endpoint)}</span>], ["Organisation", plain(cluster.organisation) || "none; admins only"],
            ["Machines from", cluster.provider === "sim" ? "sim: simulated" : plain(cluster.provider)], ["Created", <><When time={cluster.createdAt} fallback="" /> by {plain(cluster.createdBy, 64)}</>],
          ]} /></Card>
          {owner && cluster.status !== "STOPPING" && <Upkeep cluster={cluster} />}
        </div>
        <Conditions cluster={cluster} />
      </div>
      <section class="columns classes" aria-label="Pools" data-testid="pools">
        {(cluster.pools ?? []).map((pool) => <PoolCard key={pool.name} pool={pool} owner={owner} begin={begin} />)}
      </section>
      {owner && cluster.status !== "STOPPING" && (
        <p class="more-pools"><button type="button" class="quiet small" data-testid="add-pool" onClick={() => begin({ what: "add" })}>Add a pool</button>
          {pools.length === 0 && <span class="soft"> Without a pool, pods can run only on the control plane.</span>}</p>
      )}
      <div class="row section spread"><h2>Machines <span class="soft fine" data-testid="machines-ready">{ready} of {plural(rows.length, "machine")} ready</span></h2>{rows.length > 8 && <Filter what="machines" />}</div>
      <Table label="Machines of the cluster" rows={rows} id={(one) => one.name ?? ""} empty={<Empty title="No machines yet">They are requested one by one and appear here as they come.</Empty>} columns={[
        { title: "Machine", value: (one) => one.name ?? "" },
        { title: "State", value: (one) => machineState(one).word, show: (one) => <Badge state={machineState(one)} title={`${one.message || one.phase}, since ${exact(Date.parse(one.since ?? ""))}`} /> },
        { title: "Step", value: (one) => `${STEPS.indexOf(one.phase ?? "")} ${one.message ?? ""}`, show: (one) => <Step machine={one} />, wide: true },
        { title: "Pool", value: (one) => one.pool || "control plane", wide: true },
        { title: "Kubernetes", value: versions, wide: true },
        { title: "Address", value: (one) => one.address ?? "", show: (one) => <span class="mono">{plain(one.address, 60)}</span>, wide: true },
      ]} />
      <KubeBackups cluster={cluster} owner={owner} />
      <Events name={cluster.name ?? ""} turn={turnOf(cluster)} />
    </>
  );
}

const versions = (one: KubeMachine) => (one.version && one.targetVersion && one.targetVersion !== one.version ? `${one.version} → ${one.targetVersion}` : one.version || one.targetVersion || "");

/** How far a machine is on its way into the cluster. */
function Step({ machine }: { machine: KubeMachine }) {
  const at = STEPS.indexOf(machine.phase ?? "");
  const message = <span title={machine.message}>{plain(machine.message, 100)}</span>;
  if (at < 0 || at === STEPS.length - 1) return message;
  return <span class="step" title={STEPS.join(" → ")}><Meter used={at + 1} total={STEPS.length} ticks={[2, 2]} label={`Step ${at + 1} of ${STEPS.length}`} /><span class="fine">{at + 1} of {STEPS.length}</span>{message}</span>;
}

function PoolCard({ pool, owner, begin }: { pool: KubePool; owner: boolean; begin: (act: Act) => void }) {
  const name = pool.name ? plain(pool.name, 40) : "Control plane";
  const [ready, count] = [pool.ready ?? 0, pool.count ?? 0];
  const state = pool.deleting ? { word: "being deleted", tone: "busy" as const } : ready >= count ? { word: "ready", tone: "good" as const } : { word: `${ready} of ${count} ready`, tone: "busy" as const };
  const labels = Object.entries(pool.labels ?? {});
  const steers = owner && pool.name && !pool.deleting;
  return (
    <Card title={pool.name ? "Pool" : name} name={pool.name ? name : ""} testid={`pool-${pool.name || "control-plane"}`} actions={<Badge state={state} />}>
      <Meter used={ready} total={Math.max(count, ready)} ticks={[2, 2]} label={`${name}: machines ready`} />
      <p class="pool-line"><b>{plural(count, "machine")}</b> <span class="soft">of type {plain(pool.instanceType, 63) || "any"}</span></p>
      {labels.length > 0 && <p>{labels.map(([key, value]) => <span class="tag" key={key}>{plain(`${key}=${value}`, 120)}</span>)}</p>}
      {steers && (
        <p class="row">
          <button type="button" class="quiet small" aria-label={`Scale pool ${pool.name}`} onClick={() => begin({ what: "scale", pool })}>Scale</button>
          <button type="button" class="quiet danger small" aria-label={`Delete pool ${pool.name}`} onClick={() => begin({ what: "drop", pool })}>Delete</button>
        </p>
      )}
    </Card>
  );
}

/** Conditions that are as they should be; others hold when something is the matter. */
const WELL = ["Provisioned", "ControlPlaneReady", "PoolsReady"];

function Conditions({ cluster }: { cluster: KubeDetails }) {
  const state = (type: string, holds: boolean) => {
    if (WELL.includes(type)) return holds ? { word: "yes", tone: "good" as const } : { word: "not yet", tone: "busy" as const };
    if (!holds) return { word: "no", tone: "off" as const };
    return { word: "yes", tone: type === "Failed" ? "bad" as const : type === "Degraded" ? "warn" as const : "busy" as const };
  };
  return (
    <Card title="Conditions" testid="conditions">
      <table aria-label="Conditions"><tbody>
        {(cluster.conditions ?? []).map((one) => (
          <tr key={one.type}><th scope="row">{plain((one.type ?? "").replace(/(?<=[a-z])(?=[A-Z])/g, " ").toLowerCase(), 40)}</th>
            <td><Badge state={state(one.type ?? "", one.status ?? false)} /></td>
            <td class="soft fine wide">{plain(one.message || one.reason, 200)}{(one.message || one.reason) && ", "}<When time={one.since} fallback="" /></td></tr>
        ))}
      </tbody></table>
    </Card>
  );
}

/** Differs whenever something happened, also when all looks as it did before: a restore on quick machines. */
function turnOf({ machines = [], conditions = [], status, paused }: KubeDetails) {
  return [status, paused, ...machines.map((one) => `${one.phase}@${one.since}`), ...conditions.map((one) => `${one.type}@${one.since}`)].join();
}

/** Each new machine has six events: what a person asked for stays in sight while all are replaced. */
const NEWEST = 200;

/** Asked again whenever something about the cluster changed. */
function Events({ name, turn }: { name: string; turn: string }) {
  const { data, error } = useLoad((signal) => call("selvage.clusters.ClusterService/ListEvents", { name }, { signal }), [name, turn]);
  const events = data?.events ?? [];
  return (
    <>
      <h2 class="section">Events</h2>
      <Trouble error={error} />
      {events.length === 0 ? <p class="soft">Nothing has happened yet.</p> : (
        <ul class="steps" tabIndex={0} aria-label="Events" data-testid="cluster-events">{events.slice(-NEWEST).reverse().map((event, at) => (
          <li key={at}><span class="soft fine stamp"><When time={event.at} /></span>{event.machine && <b>{plain(event.machine, 60)}</b>}<span>{plain(event.message, 300)}</span></li>
        ))}</ul>
      )}
    </>
  );
}
