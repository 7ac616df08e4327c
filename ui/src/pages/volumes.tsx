// Volumes of the server's machine, and their backups.
import { useState } from "preact/hooks";
import type { BackupJob, DeviceClass, Repository, Schedule, Volume } from "../contract";
import { bytes, number, plain, present, span } from "../format";
import { useLoad, type Live } from "../live";
import { Badge, Card, Empty, Meter, Trouble, Waiting, When } from "../parts/bits";
import { Confirm, Dialog, note } from "../parts/dialog";
import { Choice, Form, Text } from "../parts/form";
import { Filter, Table } from "../parts/table";
import { deviceClasses, volumes } from "../resources";
import { query, setQuery } from "../router";
import { call } from "../rpc";
import { may } from "../session";
import { jobState } from "../states";
import { Page } from "./frame";
import { BackupDialog, RepositoryDialog, Stored } from "./backups";
import { ScheduleDialog, Schedules } from "./schedules";

const GIB = 1024 ** 3;
type Act = "resize" | "snapshot" | "backup" | "schedule" | "delete";

export function VolumesPage() {
  const { data, error, refresh } = volumes.use();
  const classes = deviceClasses.use().data ?? [];
  const change = may.changeVolumes();
  const [open, setOpen] = useState<[Act, Volume]>();
  const close = () => setOpen(undefined);
  const schedules = useLoad(async (signal) => (change ? (await call("selvage.volumes.BackupsService/ListSchedules", {}, { signal })).schedules ?? [] : []), [change], 10_000);
  const actions = (
    <>
      <Filter what="volumes" />
      {change && <button type="button" class="quiet" onClick={() => setQuery("new", "restore")} data-testid="restore">Restore</button>}
      {change && <button type="button" data-new data-testid="new-volume" onClick={() => setQuery("new", "volume")}>New volume</button>}
    </>
  );
  return (
    <Page title="Volumes" actions={actions}>
      <Classes classes={classes} />
      <Trouble error={error} retry={refresh} />
      {!data ? !error && <Waiting /> : (
        <Table label="Volumes" rows={data} id={(one) => `${one.group}/${one.name}`} order={[0, 1]}
          empty={<Empty title="No volumes yet">{change ? <>Create one with <b>New volume</b>, or get one back from a backup with <b>Restore</b>.</> : "Admins and cloudlets create them."}</Empty>}
          columns={[
            { title: "Volume", value: (one) => one.name ?? "", show: (one) => <b>{plain(one.name, 60)}</b> },
            { title: "Size", value: (one) => number(one.sizeBytes), show: (one) => bytes(one.sizeBytes), right: true },
            { title: "Class", value: (one) => one.deviceClass ?? "" },
            { title: "State", value: (one) => state(one).word, show: (one) => <Badge state={state(one)} />, wide: true },
            { title: "Snapshot of", value: (one) => one.origin ?? "", wide: true },
            { title: "Device", value: (one) => one.path ?? "", show: (one) => <span class="mono">{plain(one.path, 60)}</span>, wide: true },
            { title: "Tags", value: (one) => (one.tags ?? []).join(" "), wide: true },
            ...(change ? [{ title: "Actions", value: () => "", show: (one: Volume) => (
              <span class="row acts">
                {(["resize", "snapshot", "backup", "schedule"] as const).map((act) => <button key={act} type="button" class="quiet small" aria-label={`${NAMES[act]} ${one.name}`} onClick={() => setOpen([act, one])}>{NAMES[act]}</button>)}
                <button type="button" class="quiet danger small" aria-label={`Delete ${one.name}`} onClick={() => setOpen(["delete", one])}>Delete</button>
              </span>
            ) }] : []),
          ]} />
      )}
      {change && <Backups classes={classes} schedules={schedules} />}
      {query.value.get("new") === "volume" && change && <VolumeDialog classes={classes} close={() => setQuery("new", "")} />}
      {open?.[0] === "resize" && <SizeDialog volume={open[1]} close={close} />}
      {open?.[0] === "snapshot" && <SnapshotDialog volume={open[1]} close={close} />}
      {open?.[0] === "backup" && <BackupDialog volume={open[1]} close={close} />}
      {open?.[0] === "schedule" && <ScheduleDialog volume={open[1]} done={schedules.refresh} close={close} />}
      {open?.[0] === "delete" && (
        <Confirm title={`Delete the volume ${plain(open[1].name, 60)}?`} yes="Delete it and its data" close={close} act={async () => {
          await call("proto.LVService/RemoveLV", { name: open[1].name ?? "", deviceClass: open[1].deviceClass });
          note(`${open[1].name} is deleted.`);
          await volumes.refresh();
        }}><p>{bytes(open[1].sizeBytes)} of data go with it and cannot be brought back, except from a backup.</p></Confirm>
      )}
    </Page>
  );
}

const NAMES = { resize: "Resize", snapshot: "Snapshot", backup: "Back up", schedule: "Schedule" };
const state = (one: Volume) => (one.pending ? { word: "filling", tone: "busy" as const } : one.readOnly ? { word: "read only", tone: "off" as const } : { word: "ready", tone: "good" as const });

/** Bytes that are taken: of a thin pool those that were written, which may be fewer than its volumes promise. */
const usedOf = (one: DeviceClass) => (one.pool ? number(one.usedBytes) : Math.max(0, number(one.sizeBytes) - number(one.freeBytes)));

function Classes({ classes }: { classes: DeviceClass[] }) {
  if (classes.length === 0) return null;
  return (
    <div class="columns classes">
      {classes.map((one) => (
        <Card key={one.name} title={one.default ? "Default class" : "Class"} name={plain(one.name, 40)}>
          {one.missing ? <Badge state={{ word: "volume group missing", tone: "bad" }} /> : (
            <div class="room">
              <p><span>{bytes(one.freeBytes)} {one.pool ? "for new volumes" : "free"}</span> <span class="soft">{one.pool ? `thin pool, ${bytes(one.usedBytes)} of ${bytes(one.sizeBytes)} written` : `of ${bytes(one.sizeBytes)}`}</span></p>
              <Meter used={usedOf(one)} total={number(one.sizeBytes)} ticks={[0.85, 0.95]} label={`${one.name} used`} />
            </div>
          )}
        </Card>
      ))}
    </div>
  );
}

const volumeName = (name: string) => (/^[A-Za-z0-9_+.][A-Za-z0-9_+.-]{0,127}$/.test(name) ? undefined : "Letters, digits and _ + . - only, at most 128.");
const wholeSize = (size: string) => (/^[1-9]\d{0,6}$/.test(size) ? undefined : "A whole number of GiB.");
export const classOptions = (classes: DeviceClass[]) => classes.map((one) => ({ value: one.name ?? "", text: `${one.name} · ${bytes(one.freeBytes)} free` }));

function VolumeDialog({ classes, close }: { classes: DeviceClass[]; close: () => void }) {
  const [name, setName] = useState("");
  const [size, setSize] = useState("1");
  const [kind, setKind] = useState("");
  const chosen = kind || classes.find((one) => one.default)?.name || classes[0]?.name || "";
  const send = async () => {
    await call("proto.LVService/CreateLV", { name, sizeGb: size, deviceClass: chosen });
    note(`${name} is created.`);
    await volumes.refresh();
    close();
  };
  return (
    <Dialog title="New volume" close={close} testid="volume-dialog">
      <Form send={send} submit="Create it" cancel={close} problems={[volumeName(name), wholeSize(size)]}>
        {(tried) => (
          <>
            <Text label="Name" value={name} set={setName} wrong={tried ? volumeName(name) : undefined} testid="volume-name" />
            <Text label="Size, GiB" type="number" value={size} set={setSize} wrong={tried ? wholeSize(size) : undefined} testid="volume-size" />
            <Choice label="Class" value={chosen} set={setKind} options={classOptions(classes)} testid="volume-class" />
          </>
        )}
      </Form>
    </Dialog>
  );
}

function SizeDialog({ volume, close }: { volume: Volume; close: () => void }) {
  const present = Math.ceil(number(volume.sizeBytes) / GIB);
  const [size, setSize] = useState(String(present + 1));
  const wrong = wholeSize(size) ?? (Number(size) < present ? `Volumes can only grow; this one has ${present} GiB.` : undefined);
  const send = async () => {
    await call("proto.LVService/ResizeLV", { name: volume.name ?? "", sizeGb: size, deviceClass: volume.deviceClass });
    note(`${volume.name} now has ${size} GiB.`);
    await volumes.refresh();
    close();
  };
  return (
    <Dialog title={`Resize ${plain(volume.name, 60)}`} close={close} testid="resize-dialog">
      <Form send={send} submit="Resize it" cancel={close} problems={[wrong]}>
        {(tried) => <Text label="New size, GiB" type="number" value={size} set={setSize} hint={`It has ${bytes(volume.sizeBytes)} now. Grow the file system on it afterwards.`} wrong={tried ? wrong : undefined} testid="resize-size" />}
      </Form>
    </Dialog>
  );
}

function SnapshotDialog({ volume, close }: { volume: Volume; close: () => void }) {
  const [name, setName] = useState(`${volume.name}-${new Date(present()).toISOString().slice(0, 10)}`);
  const send = async () => {
    await call("selvage.volumes.VolumesService/CreateSnapshot", { source: volume.name ?? "", name, deviceClass: volume.deviceClass });
    note(`${name} keeps ${volume.name} as it is now.`);
    await volumes.refresh();
    close();
  };
  return (
    <Dialog title={`Snapshot of ${plain(volume.name, 60)}`} close={close} testid="snapshot-dialog">
      <Form send={send} submit="Take the snapshot" cancel={close} problems={[volumeName(name)]}>
        {(tried) => <Text label="Name" value={name} set={setName} wrong={tried ? volumeName(name) : undefined} testid="snapshot-name" />}
      </Form>
    </Dialog>
  );
}

/** What a repository holds, schedules, and what is under way. */
function Backups({ classes, schedules }: { classes: DeviceClass[]; schedules: Live<Schedule[]> }) {
  const jobs = useLoad(async (signal) => (await call("selvage.volumes.BackupsService/ListBackups", {}, { signal })).jobs ?? [], [], 3000);
  const [repository, setRepository] = useState<Repository>();
  const [changing, setChanging] = useState<Schedule>();
  return (
    <>
      {repository && <Stored key={`${repository.endpoint} ${repository.path}`} repository={repository} classes={classes} close={() => setRepository(undefined)} />}
      <Schedules live={schedules} jobs={jobs.data ?? []} change={setChanging} show={setRepository} />
      <Jobs live={jobs} />
      {query.value.get("new") === "restore" && <RepositoryDialog show={setRepository} close={() => setQuery("new", "")} />}
      {changing && <ScheduleDialog before={changing} done={schedules.refresh} close={() => setChanging(undefined)} />}
    </>
  );
}

function Jobs({ live: { data, error, refresh } }: { live: Live<BackupJob[]> }) {
  const cancel = async (job: BackupJob) => {
    await call("selvage.volumes.BackupsService/CancelBackup", { id: job.id ?? "" });
    await refresh();
  };
  return (
    <>
      <h2 class="section">Backups and restores</h2>
      <Trouble error={error} retry={refresh} />
      <Table label="Backup jobs" rows={data ?? []} id={(one) => one.id ?? ""} empty={<p class="soft">None yet. <b>Back up</b> next to a volume stores it in a restic repository: in a folder, on S3, or on a REST server.</p>} columns={[
        { title: "Job", value: (one) => `${(one.kind ?? "").toLowerCase()} ${one.name || one.volume || ""}` },
        { title: "State", value: (one) => jobState(one.state).word, show: (one) => <Badge state={jobState(one.state)} title={one.error} /> },
        { title: "Progress", value: (one) => number(one.doneBytes), show: (one) => <JobProgress job={one} /> },
        { title: "Repository", value: (one) => one.repository ?? "", wide: true },
        { title: "Started", value: (one) => one.startedAt ?? "", show: (one) => <When time={one.startedAt} />, wide: true },
        { title: "Actions", value: () => "", show: (one) => one.state === "JOB_RUNNING" && <button type="button" class="quiet danger small" onClick={() => void cancel(one)}>Stop</button> },
      ]} />
    </>
  );
}

function JobProgress({ job }: { job: BackupJob }) {
  if (job.state === "JOB_FAILED") return <span class="wrong">{plain(job.error, 120)}</span>;
  if (job.state !== "JOB_RUNNING") return <span class="soft">{bytes(job.totalBytes)}</span>;
  const left = number(job.secondsLeft);
  return <span class="row">{number(job.totalBytes) > 0 && <span class="inline-meter"><Meter used={number(job.doneBytes)} total={number(job.totalBytes)} ticks={[2, 2]} label="Done" /></span>}<span class="soft fine">{plain(job.phase, 40)}{left > 0 && `, ${span(left)} left`}</span></span>;
}
