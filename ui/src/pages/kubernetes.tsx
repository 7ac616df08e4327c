// Clusters of Kubernetes that the kaas part makes of machines.
import { useEffect, useState } from "preact/hooks";
import type { KubeCluster, KubeDetails, Request } from "../contract";
import { plain } from "../format";
import { asCallError, useLoad } from "../live";
import { Badge, Copy, Empty, Facts, Trouble, Waiting, When } from "../parts/bits";
import { Confirm, Dialog, note } from "../parts/dialog";
import { Choice, Form, Text } from "../parts/form";
import { Table } from "../parts/table";
import { kubeClusters } from "../resources";
import { call, reconnects, stream, type CallError } from "../rpc";
import { may } from "../session";
import type { State } from "../states";

const STATES: Record<string, State> = {
  RUNNING: { word: "running", tone: "good" }, PROVISIONING: { word: "being made", tone: "busy" }, RECONCILING: { word: "changing", tone: "busy" },
  STOPPING: { word: "going", tone: "busy" }, ERROR: { word: "failed", tone: "bad" }, DEGRADED: { word: "degraded", tone: "warn" },
};
const stateOf = (cluster: KubeCluster): State => STATES[(cluster.status ?? "").toUpperCase()] ?? { word: "unknown", tone: "off" };

export function KubeClusters() {
  const { data, error } = kubeClusters.use();
  const [open, setOpen] = useState<KubeCluster>();
  const [creating, setCreating] = useState(false);
  if (!may.seeKubernetes() || (!data && !error)) return null;
  return (
    <section aria-label="Kubernetes clusters" data-testid="kubernetes">
      <div class="row section"><h2>Kubernetes</h2>{may.changeKubernetes() && data && <button type="button" class="quiet small" onClick={() => setCreating(true)} data-testid="new-kubernetes">New cluster</button>}</div>
      <Trouble error={error} />
      {data && (
        <Table label="Kubernetes clusters" rows={data} id={(one) => one.name ?? ""} empty={<p class="soft">None yet. A cluster is made of machines that have joined.</p>} columns={[
          { title: "Cluster", value: (one) => one.name ?? "", show: (one) => <button type="button" class="link" onClick={() => setOpen(one)}>{plain(one.name, 60)}</button> },
          { title: "State", value: (one) => stateOf(one).word, show: (one) => <Badge state={stateOf(one)} /> },
          { title: "What it says", value: (one) => one.statusMessage ?? "", wide: true },
        ]} />
      )}
      {open && <Details listed={data?.find((one) => one.name === open.name) ?? open} close={() => setOpen(undefined)} />}
      {creating && <Create close={() => setCreating(false)} />}
    </section>
  );
}

/** How a cluster is, as it changes. */
function useCluster(name: string): { cluster: KubeDetails | undefined; error: CallError | undefined } {
  const [cluster, setCluster] = useState<KubeDetails>();
  const [error, setError] = useState<CallError>();
  const back = reconnects.value;
  useEffect(() => {
    const abort = new AbortController();
    const run = async () => {
      for await (const update of stream("selvage.clusters.ClusterService/WatchCluster", { name }, { signal: abort.signal })) setCluster(update.cluster);
    };
    run().catch((failure: unknown) => !abort.signal.aborted && setError(asCallError(failure)));
    return () => abort.abort();
  }, [name, back]);
  return { cluster, error };
}

function Details({ listed, close }: { listed: KubeCluster; close: () => void }) {
  const name = listed.name ?? "";
  const { cluster, error } = useCluster(name);
  const events = useLoad((signal) => call("selvage.clusters.ClusterService/ListEvents", { name }, { signal }), [name], 4000);
  const [act, setAct] = useState<"upgrade" | "delete">();
  const [kubeconfig, setKubeconfig] = useState("");
  if (act === "upgrade") return <Upgrade name={name} close={() => setAct(undefined)} />;
  if (act === "delete") return <Delete name={name} close={close} />;
  return (
    <Dialog title={plain(name, 80)} wide close={close} testid="kubernetes-dialog">
      <Facts items={[
        ["State", <Badge state={cluster?.paused ? { word: "paused", tone: "warn" } : stateOf(cluster ?? listed)} />], ["It says", plain(cluster?.statusMessage ?? listed.statusMessage, 500)],
        ["Version", plain(cluster?.version)], ["Of", plain(cluster?.organisation)], ["Answers at", <span class="mono">{plain(cluster?.endpoint)}</span>], ["Made", <When time={cluster?.createdAt} fallback="" />],
        ["Pools", (cluster?.pools ?? []).map((pool) => `${plain(pool.name, 40)} ${pool.ready ?? 0}/${pool.count ?? 0}`).join(", ")],
      ]} />
      <Trouble error={error} />
      {!cluster ? !error && <Waiting /> : (
        <Table label="Machines of the cluster" rows={cluster.machines ?? []} id={(one) => one.name ?? ""} empty={<Empty title="No machines yet" />} columns={[
          { title: "Machine", value: (one) => one.hostname || one.name || "" },
          { title: "Phase", value: (one) => one.phase ?? "", show: (one) => <Badge state={{ word: (one.phase ?? "").toLowerCase(), tone: /ready|running/i.test(one.phase ?? "") ? "good" : /fail|error/i.test(one.phase ?? "") ? "bad" : "busy" }} title={one.message} /> },
          { title: "Pool", value: (one) => one.pool ?? "" },
          { title: "Version", value: (one) => (one.targetVersion && one.targetVersion !== one.version ? `${one.version} → ${one.targetVersion}` : one.version ?? ""), wide: true },
          { title: "Address", value: (one) => one.address ?? "", wide: true },
        ]} />
      )}
      {(events.data?.events ?? []).length > 0 && (
        <ul class="steps" tabIndex={0} aria-label="Events">{(events.data?.events ?? []).slice(-30).reverse().map((event, at) => (
          <li key={at}><span>{plain(event.message, 300)}</span> <span class="soft fine">{plain(event.machine, 60)} <When time={event.at} /></span></li>
        ))}</ul>
      )}
      {kubeconfig && <div class="secret"><p class="row"><b>Whoever has this may do everything in the cluster.</b><Copy text={kubeconfig} /></p><pre tabIndex={0}>{kubeconfig}</pre></div>}
      {may.changeKubernetes() && (
        <div class="actions">
          <button type="button" class="quiet" onClick={() => setAct("upgrade")}>Upgrade</button>
          <button type="button" class="quiet" onClick={() => void call("cnct.kaas.api.Cluster/GetCluster", { name }).then(({ cluster: found }) => setKubeconfig(found?.kubeconfig ?? ""))}>Kubeconfig</button>
          <button type="button" class="quiet" onClick={() => void call(`selvage.clusters.ClusterService/${cluster?.paused ? "ResumeCluster" : "PauseCluster"}`, { name })}>{cluster?.paused ? "Resume" : "Pause"}</button>
          <button type="button" class="quiet danger" onClick={() => setAct("delete")}>Delete</button>
        </div>
      )}
    </Dialog>
  );
}

/** What would be done, step by step, before it is. */
function Plan({ request }: { request: Request<"selvage.clusters.ClusterService/PlanCluster"> }) {
  const { data, error } = useLoad((signal) => call("selvage.clusters.ClusterService/PlanCluster", request, { signal }), [JSON.stringify(request)]);
  if (error) return <Trouble error={error} />;
  if (!data) return <Waiting what="Planning" />;
  return <ol class="steps numbered" tabIndex={0} aria-label="What will be done">{(data.steps ?? []).map((step, at) => <li key={at}>{plain(step, 300)}</li>)}</ol>;
}

function Delete({ name, close }: { name: string; close: () => void }) {
  return (
    <Confirm title={`Delete the cluster ${plain(name, 60)}?`} yes="Delete it" close={close} act={async () => {
      await call("cnct.kaas.api.Cluster/DeleteCluster", { name });
      note(`${name} is being taken apart.`);
      await kubeClusters.refresh();
    }}><p>Everything that runs in it goes with it:</p><Plan request={{ name, delete: true }} /></Confirm>
  );
}

function Upgrade({ name, close }: { name: string; close: () => void }) {
  const { data, error } = useLoad((signal) => call("cnct.kaas.api.Cluster/GetUpgradeClusterInformation", { name }, { signal }), [name]);
  const [version, setVersion] = useState("");
  const versions = data?.versions ?? [];
  const chosen = version || versions[versions.length - 1] || "";
  const send = async () => {
    await call("cnct.kaas.api.Cluster/UpgradeCluster", { name, version: chosen });
    note(`${name} is on its way to ${chosen}.`);
    await kubeClusters.refresh();
    close();
  };
  return (
    <Dialog title={`Upgrade ${plain(name, 60)}`} wide close={close}>
      <Trouble error={error} />
      {data && versions.length === 0 && <p>There is no newer version that it could go to in one step.</p>}
      {versions.length > 0 && (
        <Form send={send} submit="Upgrade it" cancel={close}>
          {() => (
            <>
              <Choice label="To version" value={chosen} set={setVersion} options={versions.map((one) => ({ value: one, text: one }))} />
              <Plan request={{ name, version: chosen }} />
            </>
          )}
        </Form>
      )}
    </Dialog>
  );
}

function Create({ close }: { close: () => void }) {
  const [name, setName] = useState("");
  const offered = useLoad((signal) => call("selvage.clusters.ClusterService/ListVersions", {}, { signal }), []).data;
  const [version, setVersion] = useState("");
  const [masters, setMasters] = useState("1");
  const [workers, setWorkers] = useState("1");
  const [kind, setKind] = useState("standard");
  const wrong = /^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/.test(name) ? undefined : "Small letters, digits and -, a letter or digit at both ends.";
  const odd = ["1", "3", "5"].includes(masters) ? undefined : "1, 3 or 5, so that a majority can be told.";
  const send = async () => {
    await call("cnct.kaas.api.Cluster/CreateCluster", {
      name, k8sVersion: version, controlPlaneNodes: { instanceType: kind, count: Number(masters) },
      workerNodePools: Number(workers) > 0 ? [{ name: "workers", instanceType: kind, count: Number(workers) }] : [],
    });
    note(`${name} is being made.`);
    await kubeClusters.refresh();
    close();
  };
  return (
    <Dialog title="New Kubernetes cluster" close={close}>
      <Form send={send} submit="Make it" cancel={close} problems={[wrong, odd]}>
        {(tried) => (
          <>
            <Text label="Name" value={name} set={setName} wrong={tried ? wrong : undefined} />
            {offered?.problem && <p class="banner warn">{plain(offered.problem, 400)}</p>}
            <Choice label="Version" value={version} set={setVersion} options={[{ value: "", text: "the newest" }, ...(offered?.versions ?? []).map((one) => ({ value: one.kubernetes ?? "", text: one.kubernetes ?? "" }))]} />
            <div class="two">
              <Text label="Control plane machines" type="number" value={masters} set={setMasters} wrong={tried ? odd : undefined} />
              <Text label="Worker machines" type="number" value={workers} set={setWorkers} />
            </div>
            <Text label="Kind of machine" value={kind} set={setKind} hint="As the machines are labelled" />
          </>
        )}
      </Form>
    </Dialog>
  );
}
