// Making and changing an app, with the rules of the contract beside the fields.
import { useState } from "preact/hooks";
import type { App } from "../contract";
import { number } from "../format";
import { appHref } from "../keys";
import { note } from "../parts/dialog";
import { Choice, Form, nameProblem, portsProblem, Text } from "../parts/form";
import { apps, developers, flavors } from "../resources";
import { go } from "../router";
import { call } from "../rpc";
import { isAdmin, organisations } from "../session";

const KINDS = [
  { value: "docker", text: "Container (docker)", image: "IMAGE_TYPE_DOCKER", path: "registry.example:5000/team/app:1.0" },
  { value: "kubernetes", text: "Container on Kubernetes", image: "IMAGE_TYPE_DOCKER", path: "registry.example:5000/team/app:1.0" },
  { value: "helm", text: "Helm chart on Kubernetes", image: "IMAGE_TYPE_UNKNOWN", path: "https://charts.example/app" },
  { value: "vm", text: "Virtual machine", image: "IMAGE_TYPE_QCOW", path: "https://images.example/app.qcow2#md5:…" },
];

/** Sizes to choose from, as text. */
export const flavorOptions = (list: { key?: { name?: string }; ram?: unknown; vcpus?: unknown; disk?: unknown }[]) =>
  list.map((flavor) => ({
    value: flavor.key?.name ?? "",
    text: `${flavor.key?.name} · ${number(flavor.vcpus as string)} vCPU, ${number(flavor.ram as string)} MB, ${number(flavor.disk as string)} GB`,
  }));

export function AppForm({ app, running = 0, close }: { app?: App; running?: number; close: () => void }) {
  const sizes = flavors.use().data ?? [];
  const known = developers.use().data ?? [];
  const own = organisations("developer").filter(Boolean);
  const names = [...new Set([...own, ...known.map((one) => one.key?.name ?? "")])].filter(Boolean);
  const [developer, setDeveloper] = useState(app?.key?.developerKey?.name ?? own[0] ?? "");
  const [name, setName] = useState(app?.key?.name ?? "");
  const [version, setVersion] = useState(app?.key?.version ?? "1.0");
  const [kind, setKind] = useState(app?.deployment || "docker");
  const [image, setImage] = useState(app?.imagePath ?? "");
  const [ports, setPorts] = useState(app?.accessPorts ?? "");
  const [size, setSize] = useState(app?.defaultFlavor?.name ?? "");
  const [command, setCommand] = useState(app?.command ?? "");
  const about = KINDS.find((one) => one.value === kind) ?? KINDS[0]!;
  const flavor = size || sizes[0]?.key?.name || "";
  const wrong = {
    developer: app ? undefined : developer ? undefined : "Choose a developer.",
    name: app ? undefined : nameProblem(name, "app"),
    version: app ? undefined : nameProblem(version, "version"),
    image: kind === "vm" && !image ? "A virtual machine needs the address of its disk image." : undefined,
    ports: portsProblem(ports, kind),
    size: flavor ? undefined : "There are no sizes yet; an admin adds them under Cloudlets.",
  };
  const send = async () => {
    const key = app?.key ?? { developerKey: { name: developer }, name, version };
    const rest = { imagePath: image, accessPorts: ports.replace(/\s/g, ""), defaultFlavor: { name: flavor }, command };
    if (app) await call("edgeproto.AppApi/UpdateApp", { key, ...rest, fields: running > 0 ? ["4", "9.1", "13"] : ["4", "7", "9.1", "13"] });
    else {
      if (isAdmin.value && !names.includes(developer)) await call("edgeproto.DeveloperApi/CreateDeveloper", { key: { name: developer } });
      await call("edgeproto.AppApi/CreateApp", { key, ...rest, deployment: kind, imageType: about.image });
    }
    note(`${name} is ${app ? "changed; update its instances to roll it out" : "registered; start it on a cloudlet"}.`);
    await apps.refresh();
    close();
    go(appHref(key));
  };
  return (
    <Form send={send} submit={app ? "Save" : "Register the app"} cancel={close} problems={Object.values(wrong)} testid="app-form">
      {(tried) => (
        <>
          {!app && (
            <>
              {isAdmin.value
                ? <Text label="Developer" value={developer} set={setDeveloper} list={names} hint="A new name is registered automatically." wrong={tried ? wrong.developer : undefined} testid="app-developer" />
                : <Choice label="Developer" value={developer} set={setDeveloper} options={names.map((one) => ({ value: one, text: one }))} wrong={tried ? wrong.developer : undefined} testid="app-developer" />}
              <div class="two">
                <Text label="Name" value={name} set={setName} wrong={tried ? wrong.name : undefined} testid="app-name" />
                <Text label="Version" value={version} set={setVersion} wrong={tried ? wrong.version : undefined} testid="app-version" />
              </div>
              <Choice label="Runs as" value={kind} set={setKind} options={KINDS} testid="app-kind" />
            </>
          )}
          <Text label="Image" value={image} set={setImage} placeholder={about.path} hint={kind === "vm" ? undefined : "Leave empty for the platform's own registry, by developer, name and version."} wrong={tried ? wrong.image : undefined} testid="app-image" />
          <Text label="Ports" value={ports} set={setPorts} disabled={running > 0} placeholder="tcp:80,http:443,udp:5000-5010" wrong={ports ? wrong.ports : undefined} testid="app-ports"
            hint={running > 0 ? "Fixed while the app has instances; register a new version instead." : "Ports that clients connect to; leave empty for none."} />
          <Choice label="Size" value={flavor} set={setSize} options={flavorOptions(sizes)} wrong={tried ? wrong.size : undefined} testid="app-flavor" />
          <Text label="Command" value={command} set={setCommand} hint="Leave empty for the image's own command." testid="app-command" />
        </>
      )}
    </Form>
  );
}
