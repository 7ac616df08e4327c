// Clusters in which instances run, and clusters of Kubernetes on our machines.
import { useState } from "preact/hooks";
import type { ClusterInst } from "../contract";
import { plain } from "../format";
import { cloudletHref, cloudletName } from "../keys";
import { Badge, Empty, Trouble, Waiting } from "../parts/bits";
import { Confirm, Dialog } from "../parts/dialog";
import type { Work } from "../follow";
import { Progress } from "../parts/operation";
import { Filter, Table } from "../parts/table";
import { clusterInsts, instances } from "../resources";
import { may } from "../session";
import { tracked } from "../states";
import { Page } from "./frame";
import { KubeClusters, NewClusterButton } from "./kubernetes";

export function ClustersPage() {
  const { data, error, refresh } = clusterInsts.use();
  const running = instances.use().data ?? [];
  const [deleting, setDeleting] = useState<ClusterInst>();
  const [work, setWork] = useState<Work>();
  const inside = (one: ClusterInst) => running.filter((instance) => JSON.stringify(instance.key?.clusterInstKey) === JSON.stringify(one.key)).length;
  return (
    <Page title="Clusters" actions={<><Filter what="clusters" /><NewClusterButton /></>}>
      <Trouble error={may.seeApps() ? error : undefined} retry={refresh} />
      {may.seeApps() && <h2 class="section first">On cloudlets</h2>}
      {!may.seeApps() ? null : !data ? !error && <Waiting /> : (
        <Table label="Clusters" rows={data} id={(one) => JSON.stringify(one.key)} empty={<Empty title="No clusters yet">One is created with the first instance of an app, and deleted with the last.</Empty>}
          columns={[
            { title: "Cluster", value: (one) => one.key?.clusterKey?.name ?? "" },
            { title: "Cloudlet", value: (one) => cloudletName(one.key?.cloudletKey), show: (one) => <a href={cloudletHref(one.key?.cloudletKey)}>{plain(cloudletName(one.key?.cloudletKey))}</a> },
            { title: "State", value: (one) => tracked(one.state).word, show: (one) => <Badge state={tracked(one.state)} title={one.errors?.join("\n")} /> },
            { title: "Developer", value: (one) => one.key?.developer ?? "", wide: true },
            { title: "Instances", value: inside, right: true, wide: true },
            { title: "Deployment", value: (one) => one.deployment ?? "", wide: true },
            { title: "Size", value: (one) => one.flavor?.name ?? "", wide: true },
            { title: "Created", value: (one) => (one.auto ? "with an instance" : "by hand"), wide: true },
            { title: "Actions", value: () => "", show: (one) => may.changeApps(one.key?.developer) && <button type="button" class="quiet danger small" onClick={() => setDeleting(one)}>Delete</button> },
          ]} />
      )}
      <KubeClusters />
      {deleting && (
        <Confirm title={`Delete the cluster ${plain(deleting.key?.clusterKey?.name)}?`} yes="Delete it" close={() => setDeleting(undefined)} act={async () => {
          setWork({ method: "edgeproto.ClusterInstApi/DeleteClusterInst", request: { key: deleting.key }, what: `cluster ${deleting.key?.clusterKey?.name}`, done: "deleted", isMine: (operation) => operation.kind === "DeleteClusterInst" });
        }}>
          <p>{inside(deleting) ? `${inside(deleting)} instances run in it: delete them first.` : "Nothing runs in it."}</p>
        </Confirm>
      )}
      {work && <Dialog title={`Deleting ${work.what}`} close={() => setWork(undefined)}><Progress work={work} close={() => setWork(undefined)} finished={() => setWork(undefined)} /></Dialog>}
    </Page>
  );
}
