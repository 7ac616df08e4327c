// Beginning a backup, and looking into a repository: where it is and what opens it.
import { useState } from "preact/hooks";
import type { DeviceClass, Repository, StoredBackup, Volume } from "../contract";
import { bytes, exact, number, plain, present } from "../format";
import { useLoad } from "../live";
import { Card, Trouble, Waiting, When } from "../parts/bits";
import { Confirm, Dialog, note } from "../parts/dialog";
import { Choice, Form, Text } from "../parts/form";
import { Table } from "../parts/table";
import { volumes } from "../resources";
import { call } from "../rpc";
import { classOptions } from "./volumes";

const STORES = [
  { value: "file:", text: "The machine's backup folder" },
  { value: "s3", text: "An object store (S3)" },
  { value: "rest", text: "A restic REST server" },
];

function storeOf(repository: Repository | undefined): string {
  const { endpoint = "" } = repository ?? { endpoint: "file:" };
  return endpoint.startsWith("file:") ? "file:" : endpoint.startsWith("rest:") ? "rest" : "s3";
}

function endpointOf(store: string, address: string): string {
  if (store === "file:") return store;
  return store === "rest" ? `rest:${address.trim()}` : address.trim();
}

function pathProblem(path: string): string | undefined {
  if (path.startsWith("/") || !path) return "A name such as backups/laptop.";
  return /[#@]/.test(path) ? "Only the repository; you pick the backup from its list." : undefined;
}

function addressProblem(store: string, address: string): string | undefined {
  if (store === "file:" || (store === "s3" && !address)) return undefined;
  return /^https?:\/\/[^\s@]+$/.test(address.trim()) ? undefined : "An address such as https://store.example, without a user and password.";
}

/** Fields of a repository; its secrets are sent and kept nowhere. A schedule has none: it goes by credentials that the machine has. */
export function useRepository(named: boolean, before?: Repository) {
  const [store, setStore] = useState(storeOf(before));
  const [path, setPath] = useState(before?.path ?? "");
  const [address, setAddress] = useState((before?.endpoint ?? "").replace(/^(rest|file):/, ""));
  const [credentials, setCredentials] = useState(before?.credentials ?? "");
  const [password, setPassword] = useState("");
  const [id, setId] = useState("");
  const [secret, setSecret] = useState("");
  const away = store !== "file:";
  const wrong = { path: pathProblem(path), address: addressProblem(store, address), locked: undefined as string | undefined };
  if (named && !credentials) wrong.locked = "A schedule needs credentials kept on the machine.";
  else if (!credentials && !password) wrong.locked = "Enter a password, or the name of credentials kept on the machine.";
  const value: Repository = {
    path, endpoint: endpointOf(store, address), ...(credentials ? { credentials } : {}), ...(password && !named ? { encryptionKey: password } : {}),
    ...(away && id && !named ? { accessKeyId: id, secretAccessKey: secret } : {}),
  };
  const secrets = (tried: boolean) => (
    <>
      {away && (
        <div class="two">
          <Text label={store === "rest" ? "User, if it wants one" : "Access key"} value={id} set={setId} />
          <Text label={store === "rest" ? "Password of the user" : "Secret key"} type="password" autocomplete="new-password" value={secret} set={setSecret} />
        </div>
      )}
      <div class="two">
        <Text label="Password of the repository" type="password" autocomplete="new-password" value={password} set={setPassword} wrong={tried ? wrong.locked : undefined} testid="repository-password" />
        <Text label="or credentials on the machine" value={credentials} set={setCredentials} hint="A name from its configuration" />
      </div>
    </>
  );
  const fields = (tried: boolean, hint: string) => (
    <>
      <Choice label="Location" value={store} set={setStore} options={STORES} testid="repository-store" />
      {away && <Text label="Address of the store" value={address} set={setAddress} placeholder="https://store.example" hint={store === "s3" ? "Leave empty for AWS" : undefined} wrong={tried ? wrong.address : undefined} testid="repository-address" />}
      <Text label={store === "s3" ? "Bucket and folder" : "Repository"} value={path} set={setPath} placeholder="backups/laptop" hint={hint} wrong={tried ? wrong.path : undefined} testid="repository-path" />
      {named ? (
        <Text label="Credentials on the machine" value={credentials} set={setCredentials} wrong={tried ? wrong.locked : undefined} testid="repository-credentials"
          hint={<>Name of a file in <code>credentials/</code> of its data folder, or <code>environment</code></>} />
      ) : secrets(tried)}
    </>
  );
  return { value, problems: [wrong.address, wrong.path, wrong.locked], fields };
}

export function BackupDialog({ volume, close }: { volume: Volume; close: () => void }) {
  const [name, setName] = useState(`${volume.name}-${new Date(present()).toISOString().slice(0, 16).replace(/[T:]/g, "-")}`);
  const repository = useRepository(false);
  const send = async () => {
    await call("selvage.volumes.BackupsService/StartBackup", { name, volume: `${volume.group}/${volume.name}`, repository: repository.value });
    note(`Backing up ${volume.name}; its progress is in the list below.`);
    close();
  };
  return (
    <Dialog title={`Back up ${plain(volume.name, 60)}`} wide close={close} testid="backup-dialog">
      <Form send={send} submit="Begin" cancel={close} problems={[name ? undefined : "Enter a name.", ...repository.problems]}>
        {(tried) => (
          <>
            <Text label="Name of the backup" value={name} set={setName} testid="backup-name" />
            {repository.fields(tried, "It is created if there is none yet.")}
          </>
        )}
      </Form>
    </Dialog>
  );
}

/** Asks where a repository is; it is shown once it could be opened. */
export function RepositoryDialog({ show, close }: { show: (repository: Repository) => void; close: () => void }) {
  const repository = useRepository(false);
  const send = async () => {
    await call("selvage.volumes.BackupsService/ListBackups", { repository: repository.value });
    show(repository.value);
    close();
  };
  return (
    <Dialog title="Open a repository" wide close={close} testid="repository-dialog">
      <Form send={send} submit="Show its backups" cancel={close} problems={repository.problems}>
        {(tried) => repository.fields(tried, "The one that holds the backups.")}
      </Form>
    </Dialog>
  );
}

type Act = "restore" | "delete";
const one = (repository: Repository, backup: StoredBackup): Repository => ({ ...repository, path: `${repository.path}#${backup.snapshot}` });
const called = (backup: StoredBackup) => plain(backup.name || backup.snapshot?.slice(0, 8), 60);

/** What a repository holds. What opened it is known as long as this is on the page. */
export function Stored({ repository, classes, close }: { repository: Repository; classes: DeviceClass[]; close: () => void }) {
  const { data, error, refresh } = useLoad(async (signal) =>
    ((await call("selvage.volumes.BackupsService/ListBackups", { repository }, { signal })).backups ?? []).reverse(), [repository]);
  const [open, setOpen] = useState<[Act, StoredBackup]>();
  const leave = () => setOpen(undefined);
  const buttons = (backup: StoredBackup) => (
    <span class="row acts">
      <button type="button" class="quiet small" aria-label={`Restore ${called(backup)}`} onClick={() => setOpen(["restore", backup])}>Restore</button>
      <button type="button" class="quiet danger small" aria-label={`Delete ${called(backup)}`} onClick={() => setOpen(["delete", backup])}>Delete</button>
    </span>
  );
  const actions = <span class="row"><button type="button" class="link" onClick={() => void refresh()}>Refresh</button><button type="button" class="link" onClick={close} data-testid="close-repository">Close</button></span>;
  return (
    <Card title="Backups in" name={plain(repository.path, 80)} className="stored" actions={actions} testid="stored">
      <Trouble error={error} retry={refresh} />
      {!data ? !error && <Waiting what="Opening the repository" /> : (
        <Table label="Stored backups" rows={data} id={(backup) => backup.snapshot ?? ""} empty={<p class="soft">It holds no backups yet. <b>Back up</b> next to a volume stores one.</p>} columns={[
          { title: "Backup", value: (backup) => backup.name || backup.snapshot || "", show: (backup) => <b>{called(backup)}</b> },
          { title: "Volume", value: (backup) => backup.volume ?? "" },
          { title: "Size", value: (backup) => number(backup.sizeBytes), show: (backup) => bytes(backup.sizeBytes), right: true, wide: true },
          { title: "Taken", value: (backup) => backup.time ?? "", show: (backup) => <When time={backup.time} /> },
          { title: "Machine", value: (backup) => backup.hostname ?? "", wide: true },
          { title: "Snapshot", value: (backup) => backup.snapshot ?? "", show: (backup) => <span class="mono">{plain(backup.snapshot?.slice(0, 8))}</span>, wide: true },
          { title: "Actions", value: () => "", show: buttons },
        ]} />
      )}
      {open?.[0] === "restore" && <RestoreDialog repository={repository} backup={open[1]} classes={classes} close={leave} />}
      {open?.[0] === "delete" && (
        <Confirm title={`Delete the backup ${called(open[1])}?`} yes="Delete it" close={leave} act={async () => {
          await call("selvage.volumes.BackupsService/DeleteBackup", { repository: one(repository, open[1]) });
          note(`${called(open[1])} is deleted; its space is freed by the next prune.`);
          await refresh();
        }}><p>It is of {plain(open[1].volume, 60)}, as it was at {exact(Date.parse(open[1].time ?? ""))}. It cannot be brought back.</p></Confirm>
      )}
    </Card>
  );
}

function RestoreDialog({ repository, backup, classes, close }: { repository: Repository; backup: StoredBackup; classes: DeviceClass[]; close: () => void }) {
  const [volume, setVolume] = useState("");
  const [kind, setKind] = useState(classes.find((each) => each.default)?.name ?? "");
  const send = async () => {
    await call("selvage.volumes.BackupsService/StartRestore", { repository: one(repository, backup), volume, ...(kind ? { deviceClass: kind } : {}) });
    note(`Restoring ${volume}; its progress is in the list below.`);
    await volumes.refresh();
    close();
  };
  return (
    <Dialog title={`Restore ${called(backup)}`} close={close} testid="restore-dialog">
      <Form send={send} submit="Begin" cancel={close} problems={[volume ? undefined : "Enter a name."]}>
        {(tried) => (
          <>
            <p class="soft">{plain(backup.volume, 60)} as it was at {exact(Date.parse(backup.time ?? ""))}, {bytes(backup.sizeBytes)}. The original volume is not touched.</p>
            <Text label="Name of the new volume" value={volume} set={setVolume} wrong={tried && !volume ? "Enter a name." : undefined} testid="restore-volume" />
            <Choice label="Class" value={kind} set={setKind} options={classOptions(classes)} testid="restore-class" />
          </>
        )}
      </Form>
    </Dialog>
  );
}
