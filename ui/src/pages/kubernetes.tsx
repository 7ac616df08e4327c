// Clusters of Kubernetes that the kaas part makes of machines.
import { useState } from "preact/hooks";
import type { KubeCluster } from "../contract";
import { plain } from "../format";
import { useLoad } from "../live";
import { Badge, Copy, Empty, Facts, Trouble, Waiting } from "../parts/bits";
import { Confirm, Dialog, note } from "../parts/dialog";
import { Choice, Form, Text } from "../parts/form";
import { Table } from "../parts/table";
import { kubeClusters } from "../resources";
import { call } from "../rpc";
import { may } from "../session";
import type { State } from "../states";

const STATES: Record<string, State> = {
  RUNNING: { word: "running", tone: "good" }, PROVISIONING: { word: "being made", tone: "busy" }, RECONCILING: { word: "changing", tone: "busy" },
  STOPPING: { word: "going", tone: "busy" }, ERROR: { word: "failed", tone: "bad" }, DEGRADED: { word: "degraded", tone: "warn" },
};
const stateOf = (cluster: KubeCluster): State => STATES[cluster.status ?? ""] ?? { word: "unknown", tone: "off" };

export function KubeClusters() {
  const { data, error } = kubeClusters.use();
  const [open, setOpen] = useState<KubeCluster>();
  const [creating, setCreating] = useState(false);
  if (!may.seeKubernetes() || (!data && !error)) return null;
  return (
    <section aria-label="Kubernetes clusters" data-testid="kubernetes">
      <div class="row section"><h2>Kubernetes</h2>{may.admin() && data && <button type="button" class="quiet small" onClick={() => setCreating(true)} data-testid="new-kubernetes">New cluster</button>}</div>
      <Trouble error={error} />
      {data && (
        <Table label="Kubernetes clusters" rows={data} id={(one) => one.name ?? ""} empty={<p class="soft">None yet. A cluster is made of machines that have joined.</p>} columns={[
          { title: "Cluster", value: (one) => one.name ?? "", show: (one) => <button type="button" class="link" onClick={() => setOpen(one)}>{plain(one.name, 60)}</button> },
          { title: "State", value: (one) => stateOf(one).word, show: (one) => <Badge state={stateOf(one)} /> },
          { title: "What it says", value: (one) => one.statusMessage ?? "", wide: true },
        ]} />
      )}
      {open && <Details cluster={data?.find((one) => one.name === open.name) ?? open} close={() => setOpen(undefined)} />}
      {creating && <Create close={() => setCreating(false)} />}
    </section>
  );
}

function Details({ cluster, close }: { cluster: KubeCluster; close: () => void }) {
  const name = cluster.name ?? "";
  const nodes = useLoad((signal) => call("cnct.kaas.api.Cluster/GetClusterNodesStatus", { clusterName: name }, { signal }), [name], 4000);
  const [act, setAct] = useState<"upgrade" | "delete">();
  const [kubeconfig, setKubeconfig] = useState("");
  if (act === "upgrade") return <Upgrade name={name} close={() => setAct(undefined)} />;
  if (act === "delete") {
    return (
      <Confirm title={`Delete the cluster ${plain(name, 60)}?`} yes="Delete it" close={close} act={async () => {
        await call("cnct.kaas.api.Cluster/DeleteCluster", { name });
        note(`${name} is being taken apart.`);
        await kubeClusters.refresh();
      }}><p>Everything that runs in it goes with it; its {nodes.data?.count ?? ""} machines are free again.</p></Confirm>
    );
  }
  return (
    <Dialog title={plain(name, 80)} wide close={close} testid="kubernetes-dialog">
      <Facts items={[["State", <Badge state={stateOf(cluster)} />], ["It says", plain(cluster.statusMessage, 500)]]} />
      <Trouble error={nodes.error} />
      {!nodes.data ? !nodes.error && <Waiting /> : (
        <Table label="Machines of the cluster" rows={nodes.data.machines ?? []} id={(one) => one.maasSystemId || one.maasHostname || ""} empty={<Empty title="No machines yet" />} columns={[
          { title: "Machine", value: (one) => one.maasHostname ?? "" },
          { title: "Kubernetes", value: (one) => one.k8sNodeStatus ?? "", show: (one) => <Badge state={{ word: one.k8sNodeStatus || "not in it yet", tone: /^ready$/i.test(one.k8sNodeStatus ?? "") ? "good" : "busy" }} /> },
          { title: "Version", value: (one) => one.k8sVersion ?? "" },
          { title: "Machine's state", value: (one) => one.maasNodeStatus ?? "", wide: true },
          { title: "Address", value: (one) => one.maasIPAddr ?? "", wide: true },
        ]} />
      )}
      {kubeconfig && <div class="secret"><p class="row"><b>Whoever has this may do everything in the cluster.</b><Copy text={kubeconfig} /></p><pre tabIndex={0}>{kubeconfig}</pre></div>}
      {may.admin() && (
        <div class="actions">
          <button type="button" class="quiet" onClick={() => setAct("upgrade")}>Upgrade</button>
          <button type="button" class="quiet" onClick={() => void call("cnct.kaas.api.Cluster/GetCluster", { name }).then(({ cluster: found }) => setKubeconfig(found?.kubeconfig ?? ""))}>Kubeconfig</button>
          <button type="button" class="quiet danger" onClick={() => setAct("delete")}>Delete</button>
        </div>
      )}
    </Dialog>
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
    <Dialog title={`Upgrade ${plain(name, 60)}`} close={close}>
      <Trouble error={error} />
      {data && versions.length === 0 && <p>There is no newer version that it could go to in one step.</p>}
      {versions.length > 0 && (
        <Form send={send} submit="Upgrade it" cancel={close}>
          {() => (
            <>
              <Choice label="To version" value={chosen} set={setVersion} options={versions.map((one) => ({ value: one, text: one }))} />
              <p class="soft">Control plane first, then machine by machine: each is emptied, upgraded and filled again. Apps with more than one copy go on.</p>
            </>
          )}
        </Form>
      )}
    </Dialog>
  );
}

function Create({ close }: { close: () => void }) {
  const [name, setName] = useState("");
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
            <Text label="Version" value={version} set={setVersion} placeholder="1.34.2" hint="Empty: the newest that is offered" />
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
