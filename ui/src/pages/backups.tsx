// Beginning a backup or a restore: where the repository is and what opens it.
import { useState } from "preact/hooks";
import type { DeviceClass, Repository, Volume } from "../contract";
import { plain } from "../format";
import { Dialog, note } from "../parts/dialog";
import { Choice, Form, Text } from "../parts/form";
import { volumes } from "../resources";
import { call } from "../rpc";
import { classOptions } from "./volumes";

/** Fields of a repository; its secrets are sent once and kept nowhere. */
function useRepository() {
  const [store, setStore] = useState("file:");
  const [path, setPath] = useState("");
  const [endpoint, setEndpoint] = useState("");
  const [credentials, setCredentials] = useState("");
  const [password, setPassword] = useState("");
  const [id, setId] = useState("");
  const [secret, setSecret] = useState("");
  const onS3 = store === "s3";
  const wrong = path.startsWith("/") || !path ? "A name such as backups/laptop." : undefined;
  const locked = credentials || password ? undefined : "A password, or the name of credentials that the machine has.";
  const value: Repository = {
    path, endpoint: onS3 ? endpoint : "file:", ...(credentials ? { credentials } : {}), ...(password ? { encryptionKey: password } : {}),
    ...(onS3 && id ? { accessKeyId: id, secretAccessKey: secret } : {}),
  };
  const fields = (tried: boolean, hint: string) => (
    <>
      <Choice label="Kept" value={store} set={setStore} options={[{ value: "file:", text: "in the folder that the machine has for backups" }, { value: "s3", text: "in an object store (S3)" }]} />
      {onS3 && <Text label="Address of the store" value={endpoint} set={setEndpoint} placeholder="https://s3.example" hint="Empty: AWS" />}
      <Text label={onS3 ? "Bucket and folder" : "Repository"} value={path} set={setPath} placeholder="backups/laptop" hint={hint} wrong={tried ? wrong : undefined} testid="repository-path" />
      {onS3 && (
        <div class="two">
          <Text label="Access key" value={id} set={setId} />
          <Text label="Secret key" type="password" autocomplete="new-password" value={secret} set={setSecret} />
        </div>
      )}
      <div class="two">
        <Text label="Password of the repository" type="password" autocomplete="new-password" value={password} set={setPassword} wrong={tried ? locked : undefined} testid="repository-password" />
        <Text label="or credentials of the machine" value={credentials} set={setCredentials} hint="A name from its configuration" />
      </div>
    </>
  );
  return { value, problems: [wrong, locked], fields };
}

export function BackupDialog({ volume, close }: { volume: Volume; close: () => void }) {
  const [name, setName] = useState(`${volume.name}-${new Date().toISOString().slice(0, 16).replace(/[T:]/g, "-")}`);
  const repository = useRepository();
  const send = async () => {
    await call("selvage.volumes.BackupsService/StartBackup", { name, volume: `${volume.group}/${volume.name}`, repository: repository.value });
    note(`${volume.name} is being backed up; the list below tells how far it is.`);
    close();
  };
  return (
    <Dialog title={`Back up ${plain(volume.name, 60)}`} wide close={close} testid="backup-dialog">
      <Form send={send} submit="Begin" cancel={close} problems={[name ? undefined : "Name it.", ...repository.problems]}>
        {(tried) => (
          <>
            <Text label="Name of the backup" value={name} set={setName} testid="backup-name" />
            {repository.fields(tried, "A new one is made when there is none.")}
          </>
        )}
      </Form>
    </Dialog>
  );
}

export function RestoreDialog({ classes, close }: { classes: DeviceClass[]; close: () => void }) {
  const [volume, setVolume] = useState("");
  const [kind, setKind] = useState(classes.find((one) => one.default)?.name ?? "");
  const repository = useRepository();
  const send = async () => {
    await call("selvage.volumes.BackupsService/StartRestore", { repository: repository.value, volume, ...(kind ? { deviceClass: kind } : {}) });
    note(`${volume} is being made of the backup; the list below tells how far it is.`);
    await volumes.refresh();
    close();
  };
  return (
    <Dialog title="Restore a volume" wide close={close} testid="restore-dialog">
      <Form send={send} submit="Begin" cancel={close} problems={[volume ? undefined : "Name it.", ...repository.problems]}>
        {(tried) => (
          <>
            {repository.fields(tried, "With @NAME or #SNAPSHOT behind it for one backup; without, the newest.")}
            <div class="two">
              <Text label="Name of the new volume" value={volume} set={setVolume} wrong={tried && !volume ? "Name it." : undefined} testid="restore-volume" />
              <Choice label="Class" value={kind} set={setKind} options={classOptions(classes)} testid="restore-class" />
            </div>
          </>
        )}
      </Form>
    </Dialog>
  );
}
