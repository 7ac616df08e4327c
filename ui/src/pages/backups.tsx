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
  const [path, setPath] = useState("");
  const [endpoint, setEndpoint] = useState("");
  const [credentials, setCredentials] = useState("");
  const [password, setPassword] = useState("");
  const [id, setId] = useState("");
  const [secret, setSecret] = useState("");
  const wrong = path ? undefined : "Say where the repository is.";
  const locked = credentials || password ? undefined : "A password, or the name of credentials that the server has.";
  const value: Repository = {
    path, ...(endpoint ? { endpoint } : {}), ...(credentials ? { credentials } : {}), ...(password ? { encryptionKey: password } : {}),
    ...(id ? { accessKeyId: id, secretAccessKey: secret } : {}),
  };
  const fields = (tried: boolean, hint: string) => (
    <>
      <Text label="Repository" value={path} set={setPath} placeholder="/srv/backups or bucket/folder" hint={hint} wrong={tried ? wrong : undefined} testid="repository-path" />
      <div class="two">
        <Text label="Password of the repository" type="password" autocomplete="new-password" value={password} set={setPassword} wrong={tried ? locked : undefined} testid="repository-password" />
        <Text label="or credentials of the server" value={credentials} set={setCredentials} hint="A name from its configuration" />
      </div>
      <details><summary>On S3</summary>
        <div class="form">
          <Text label="Endpoint" value={endpoint} set={setEndpoint} placeholder="https://s3.example" />
          <div class="two">
            <Text label="Access key" value={id} set={setId} />
            <Text label="Secret key" type="password" autocomplete="new-password" value={secret} set={setSecret} />
          </div>
        </div>
      </details>
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
            {repository.fields(tried, "A folder on the machine, or a bucket. A new one is made when there is none.")}
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
              <Choice label="Class" value={kind} set={setKind} options={classOptions(classes)} />
            </div>
          </>
        )}
      </Form>
    </Dialog>
  );
}
