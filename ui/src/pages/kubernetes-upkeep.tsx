// What keeps a Kubernetes cluster in order: its sleep, its certificates, an
// upgrade that is taken back, its backups; and machines that no cluster gets.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { KubeBackup, KubeDetails, QuarantinedMachine } from "../contract";
import { bytes, plain, plural } from "../format";
import { asCallError, useLoad } from "../live";
import { Card, Empty, Trouble, Waiting, When } from "../parts/bits";
import { Confirm, Dialog, note } from "../parts/dialog";
import { Form, Text } from "../parts/form";
import { Table } from "../parts/table";
import { kubeClusters } from "../resources";
import { go } from "../router";
import { call, type CallError } from "../rpc";
import { may } from "../session";
import { kubernetesHref } from "./kubernetes";
import { labelProblem } from "./kubernetes-form";

type Duty = "HibernateCluster" | "WakeCluster" | "RotateCertificates" | "AbortUpgrade";

/** Each with what it means for those who use the cluster. */
const DUTIES: Record<Duty, { label: string; title: string; yes: string; means: string; said: string; testid: string }> = {
  HibernateCluster: {
    label: "Hibernate", title: "Hibernate", yes: "Hibernate it", testid: "hibernate",
    means: "Everything in it stops, its API included. Data and machines stay, and so do their costs. Wake starts it again as it was.", said: "is going to sleep.",
  },
  WakeCluster: { label: "Wake", title: "Wake", yes: "Wake it", testid: "wake", means: "It starts again as it was.", said: "is waking up." },
  RotateCertificates: {
    label: "Replace certificates", title: "Replace the certificates of", yes: "Replace them", testid: "rotate",
    means: "It gets new certificate authorities while it runs. Existing kubeconfigs stop working: get a new one afterwards.", said: "is getting new certificates.",
  },
  AbortUpgrade: {
    label: "Abort the upgrade", title: "Abort the upgrade of", yes: "Abort it", testid: "abort-upgrade",
    means: "It stays at the version that it runs. That works as long as no machine of the control plane has begun.", said: "stays at its version.",
  },
};

/** True while an upgrade was asked for that no machine of the control plane has begun with. */
function canAbort({ version, machines = [], conditions = [] }: KubeDetails): boolean {
  const upgrading = conditions.some((one) => one.type === "Progressing" && one.status && one.reason === "Upgrade");
  return upgrading && machines.filter((one) => !one.pool).every((one) => one.targetVersion !== version);
}

export function Upkeep({ cluster }: { cluster: KubeDetails }) {
  const [asked, setAsked] = useState<Duty>();
  const name = cluster.name ?? "";
  const [running, asleep] = [cluster.status === "RUNNING" && !cluster.paused, cluster.hibernated];
  const rows: [Duty, boolean, string][] = [
    ["AbortUpgrade", canAbort(cluster), `The upgrade to ${plain(cluster.version, 40)} has not started on any machine.`],
    [asleep ? "WakeCluster" : "HibernateCluster", asleep || running, asleep ? "It is asleep: nothing runs, and its data is kept." : "Stops everything and keeps the data."],
    ["RotateCertificates", running && !asleep, "New certificate authorities, while it runs."],
  ];
  return (
    <Card title="Upkeep" testid="upkeep">
      <ul class="duties">
        {rows.filter(([duty, can]) => can || duty !== "AbortUpgrade").map(([duty, can, text]) => (
          <li key={duty}>
            <span>{text}</span>
            <button type="button" class="quiet small" disabled={!can} title={can ? undefined : "Available while the cluster runs and nothing is changing."} data-testid={DUTIES[duty].testid} onClick={() => setAsked(duty)}>{DUTIES[duty].label}</button>
          </li>
        ))}
      </ul>
      {asked && (
        <Confirm title={`${DUTIES[asked].title} ${plain(name, 60)}?`} yes={DUTIES[asked].yes} close={() => setAsked(undefined)} danger={asked === "HibernateCluster"} act={async () => {
          await call(`selvage.clusters.ClusterService/${asked}`, { name });
          note(`${name} ${DUTIES[asked].said}`);
        }}><p>{DUTIES[asked].means}</p></Confirm>
      )}
    </Card>
  );
}

type BackupAct = { what: "restore" | "delete"; backup: KubeBackup };

/** Snapshots of one cluster. */
export function KubeBackups({ cluster, owner }: { cluster: KubeDetails; owner: boolean }) {
  const name = cluster.name ?? "";
  const { data, error, refresh } = useLoad(async (signal) => (await call("selvage.clusters.ClusterService/ListBackups", { name }, { signal })).backups ?? [], [name, cluster.version], 15_000);
  const [act, setAct] = useState<BackupAct>();
  const [failed, setFailed] = useState<CallError>();
  const [busy, setBusy] = useState(false);
  const take = async () => {
    setBusy(true);
    setFailed(undefined);
    try {
      await call("selvage.clusters.ClusterService/BackupCluster", { name });
      note(`${name} is backed up.`);
      await refresh();
    } catch (failure) {
      setFailed(asCallError(failure));
    } finally {
      setBusy(false);
    }
  };
  const can = cluster.status === "RUNNING" && !cluster.hibernated;
  return (
    <section aria-label="Backups" data-testid="cluster-backups">
      <div class="row section spread"><h2>Backups <span class="soft fine">of its objects and keys, not of volumes</span></h2>
        {owner && <button type="button" class="quiet small" disabled={busy || !can} data-testid="backup-cluster" onClick={() => void take()}>{busy ? "One moment …" : "Back up now"}</button>}</div>
      <Trouble error={failed ?? error} />
      {!data ? !error && <Waiting /> : <BackupTable rows={data} owner={owner} begin={setAct} empty={<p class="soft">None yet. One is taken before every upgrade.</p>} />}
      {act && <BackupDialogs act={act} inPlace={act.backup.clusterUid === cluster.uid} close={() => setAct(undefined)} done={refresh} />}
    </section>
  );
}

function BackupTable({ rows, owner, begin, empty }: { rows: KubeBackup[]; owner: boolean; begin: (act: BackupAct) => void; empty: ComponentChildren }) {
  return (
    <Table label="Backups of the cluster" rows={rows} id={(one) => one.id ?? ""} empty={empty} order={[0, -1]} columns={[
      { title: "Taken", value: (one) => one.takenAt ?? "", show: (one) => <When time={one.takenAt} /> },
      { title: "Why", value: (one) => one.reason ?? "", show: (one) => plain(one.reason, 80), wide: true },
      { title: "Kubernetes", value: (one) => one.version ?? "" },
      { title: "Size", value: (one) => Number(one.size ?? 0), show: (one) => bytes(one.size), right: true, wide: true },
      { title: "Name", value: (one) => one.id ?? "", show: (one) => <span class="mono">{plain(one.id, 80)}</span>, wide: true },
      { title: "Actions", value: () => "", show: (one) => owner && (
        <span class="row">
          <button type="button" class="quiet small" aria-label={`Restore ${one.id}`} onClick={() => begin({ what: "restore", backup: one })}>Restore</button>
          <button type="button" class="quiet danger small" aria-label={`Delete ${one.id}`} onClick={() => begin({ what: "delete", backup: one })}>Delete</button>
        </span>
      ) },
    ]} />
  );
}

function BackupDialogs({ act, inPlace, close, done }: { act: BackupAct; inPlace: boolean; close: () => void; done: () => Promise<void> }) {
  const { id = "", cluster = "", version } = act.backup;
  if (act.what === "restore") return <Restore backup={act.backup} inPlace={inPlace} close={close} />;
  return (
    <Confirm title="Delete this backup?" yes="Delete the backup" close={close} act={async () => {
      await call("selvage.clusters.ClusterService/DeleteBackup", { id });
      note(`The backup of ${cluster} is deleted.`);
      await done();
    }}><p>{plain(cluster, 63)} at Kubernetes {plain(version, 40)}, taken <When time={act.backup.takenAt} />. It cannot be brought back.</p></Confirm>
  );
}

/** The same cluster as it was, or another one of it. */
function Restore({ backup, inPlace, close }: { backup: KubeBackup; inPlace: boolean; close: () => void }) {
  const [copy, setCopy] = useState(!inPlace);
  const [name, setName] = useState(inPlace ? `${backup.cluster}-copy` : (backup.cluster ?? ""));
  const wrong = copy ? labelProblem(name, "cluster") : undefined;
  const send = async () => {
    await call("selvage.clusters.ClusterService/RestoreCluster", copy ? { id: backup.id ?? "", name } : { id: backup.id ?? "" });
    const made = copy ? name : (backup.cluster ?? "");
    note(`${made} is being restored.`);
    await kubeClusters.refresh();
    close();
    go(kubernetesHref(made));
  };
  return (
    <Dialog title={`Restore ${plain(backup.cluster, 63)}`} wide close={close} testid="restore-dialog">
      <Form send={send} submit={copy ? "Create the cluster" : "Restore it"} cancel={close} problems={[wrong]}>
        {(tried) => (
          <>
            <p>Objects and keys as they were <When time={backup.takenAt} />, with Kubernetes {plain(backup.version, 40)}, on machines of its own. Volumes on machines do not come back.</p>
            {inPlace && (
              <fieldset>
                <legend>Where</legend>
                <label class="row"><input type="radio" name="where" checked={!copy} onChange={() => setCopy(false)} data-testid="restore-in-place" /> In place: everything that changed since is lost, and its machines are given back first.</label>
                <label class="row"><input type="radio" name="where" checked={copy} onChange={() => setCopy(true)} data-testid="restore-copy" /> As another cluster, beside it.</label>
              </fieldset>
            )}
            {copy && <Text label="Name" value={name} set={setName} wrong={tried ? wrong : undefined} testid="restore-name" />}
          </>
        )}
      </Form>
    </Dialog>
  );
}

/** Backups of clusters that are gone: they are found nowhere else. */
export function OrphanBackups() {
  const known = kubeClusters.use().data;
  const { data, refresh } = useLoad(async (signal) => (known ? (await call("selvage.clusters.ClusterService/ListBackups", {}, { signal })).backups ?? [] : []), [known?.map((one) => one.name).join()], 30_000);
  const [act, setAct] = useState<BackupAct>();
  const rows = (data ?? []).filter((one) => !known?.some((cluster) => cluster.name === one.cluster));
  if (rows.length === 0) return null;
  return (
    <section aria-label="Backups of deleted clusters" data-testid="orphan-backups">
      <h2 class="section">Backups of deleted clusters</h2>
      <BackupTable rows={rows} owner={may.changeKubernetes()} begin={setAct} empty={null} />
      {act && <BackupDialogs act={act} inPlace={false} close={() => setAct(undefined)} done={refresh} />}
    </section>
  );
}

/** Machines that did not come up again and again. Admins alone may know of them. */
export function Quarantine() {
  const { data, error, refresh } = useLoad(async (signal) => (await call("selvage.clusters.ClusterService/ListQuarantinedMachines", {}, { signal })).machines ?? [], [], 15_000);
  const [open, setOpen] = useState<QuarantinedMachine>();
  if (error) return <Trouble error={error} retry={refresh} />;
  if (!data?.length) return null;
  return (
    <section aria-label="Machines in quarantine" data-testid="quarantine">
      <h2 class="section">Machines in quarantine</h2>
      <p class="soft lead">They failed to start again and again. No cluster gets them until you release them.</p>
      <Table label="Machines in quarantine" rows={data} id={(one) => one.providerId ?? ""} order={[0, 1]} empty={<Empty title="None" />} columns={[
        { title: "Machine", value: (one) => one.hostname || one.providerId || "" },
        { title: "Failed", value: (one) => one.failures ?? 0, show: (one) => plural(one.failures ?? 0, "time") },
        { title: "Why", value: (one) => one.reason ?? "", show: (one) => <span title={plain(one.reason, 1000)}>{plain(one.reason, 120)}</span>, wide: true },
        { title: "Wanted by", value: (one) => one.cluster ?? "", wide: true },
        { title: "Last", value: (one) => one.failedAt ?? "", show: (one) => <When time={one.failedAt} />, wide: true },
        { title: "Actions", value: () => "", show: (one) => <button type="button" class="quiet small" aria-label={`Release ${one.hostname || one.providerId}`} onClick={() => setOpen(one)}>Release</button> },
      ]} />
      {open && (
        <Confirm title={`Let clusters have ${plain(open.hostname || open.providerId, 80)} again?`} yes="Release it" danger={false} close={() => setOpen(undefined)} act={async () => {
          await call("selvage.clusters.ClusterService/ReleaseQuarantinedMachine", { providerId: open.providerId ?? "" });
          note(`${open.hostname || open.providerId} is released.`);
          await refresh();
        }}><p>Whatever kept it from coming up should be repaired first: {plain(open.reason, 300)}</p></Confirm>
      )}
    </section>
  );
}
