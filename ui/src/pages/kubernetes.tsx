// Kubernetes clusters that are made of machines: the list, and states in words.
import type { KubeCluster, KubeDetails, KubeMachine } from "../contract";
import { plain } from "../format";
import { Badge, Empty, Trouble, Waiting } from "../parts/bits";
import { Table } from "../parts/table";
import { kubeClusters } from "../resources";
import { query, setQuery, to } from "../router";
import { may } from "../session";
import type { State } from "../states";
import { NewCluster } from "./kubernetes-form";
import { OrphanBackups, Quarantine } from "./kubernetes-upkeep";

const STATES: Record<string, State> = {
  RUNNING: { word: "running", tone: "good" }, PROVISIONING: { word: "starting", tone: "busy" }, RECONCILING: { word: "changing", tone: "busy" },
  STOPPING: { word: "being deleted", tone: "busy" }, ERROR: { word: "failed", tone: "bad" }, DEGRADED: { word: "degraded", tone: "warn" },
};

export function clusterState({ status, paused, hibernated }: KubeCluster & Pick<KubeDetails, "paused" | "hibernated">): State {
  if (hibernated && status === "DEGRADED") return { word: "asleep", tone: "off" };
  if (paused && status !== "STOPPING") return { word: "paused", tone: "warn" };
  return STATES[status ?? ""] ?? { word: "unknown", tone: "off" };
}

/** Phases of a machine on its way into a cluster, in their order. */
export const STEPS = ["Requested", "Allocated", "Deploying", "Booting", "Bootstrapping", "Joining", "Ready"];

export function machineState({ phase = "" }: KubeMachine): State {
  if (phase === "Ready") return { word: "ready", tone: "good" };
  if (phase === "Failed") return { word: "failed", tone: "bad" };
  if (phase === "NotReady") return { word: "not ready", tone: "bad" };
  if (phase === "Hibernated") return { word: "asleep", tone: "off" };
  if (phase === "Cordoned" || phase === "Draining") return { word: phase.toLowerCase(), tone: "warn" };
  return { word: phase.toLowerCase() || "unknown", tone: phase ? "busy" : "off" };
}

export const kubernetesHref = (name: string | undefined) => to("clusters", name);

/** Offered where this server makes clusters, to those who may. */
export function NewClusterButton() {
  const { data } = kubeClusters.use();
  if (!data || !may.changeKubernetes()) return null;
  return <button type="button" data-new data-testid="new-kubernetes" onClick={() => setQuery("new", "kubernetes")}>New Kubernetes cluster</button>;
}

export function KubeClusters() {
  const { data, error, refresh } = kubeClusters.use();
  if (!may.seeKubernetes()) return null;
  const next = may.changeKubernetes() ? <>Create one with <b>New Kubernetes cluster</b>; it is up on machines of its own within minutes.</> : "Developers and admins create them.";
  return (
    <section aria-label="Kubernetes clusters" data-testid="kubernetes">
      <h2 class="section">Kubernetes</h2>
      <Trouble error={error} retry={refresh} />
      {data === undefined ? !error && <Waiting /> : data === null ? <p class="soft">This server does not create Kubernetes clusters: its part <code>kaas</code> is not serving. See <a href="#/about">About</a>.</p> : (
        <Table label="Kubernetes clusters" rows={data} id={(one) => one.name ?? ""} href={(one) => kubernetesHref(one.name)} order={[0, 1]}
          empty={<Empty title="No Kubernetes clusters yet">{next}</Empty>} columns={[
            { title: "Cluster", value: (one) => one.name ?? "" },
            { title: "State", value: (one) => clusterState(one).word, show: (one) => <Badge state={clusterState(one)} /> },
            { title: "Status", value: (one) => one.statusMessage ?? "", show: (one) => <span title={plain(one.statusMessage, 1000)}>{plain(one.statusMessage, 120) || <span class="soft">up to date</span>}</span>, wide: true },
          ]} />
      )}
      {data && <OrphanBackups />}
      {data && may.admin() && <Quarantine />}
      {query.value.get("new") === "kubernetes" && data && may.changeKubernetes() && <NewCluster close={() => setQuery("new", "")} />}
    </section>
  );
}
