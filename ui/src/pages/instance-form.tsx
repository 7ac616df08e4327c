// Starting an instance: which app, where, how large; then how it goes.
import { useState } from "preact/hooks";
import type { App, AppInst, CloudletInfo } from "../contract";
import { number, plain } from "../format";
import { appHref, appName, cloudletName, developerOf, instanceHref, sameInstance } from "../keys";
import { Badge, Facts } from "../parts/bits";
import { Dialog } from "../parts/dialog";
import { Choice, Form, Text, nameProblem } from "../parts/form";
import type { Work } from "../follow";
import { Progress } from "../parts/operation";
import { apps, cloudletInfos, cloudletUse, cloudlets, flavors, instances } from "../resources";
import { go } from "../router";
import { may } from "../session";
import { overview } from "../overview";
import { cloudletState, worded, type State } from "../states";
import { flavorOptions } from "./app-form";

export function NewInstance({ app, close }: { app?: App; close: () => void }) {
  const [work, setWork] = useState<Work>();
  const [key, setKey] = useState<AppInst["key"]>();
  const begin = (instance: AppInst) => {
    setKey(instance.key);
    const what = `${appName(instance.key?.appKey)} on ${cloudletName(instance.key?.clusterInstKey?.cloudletKey)}`;
    setWork({
      method: "edgeproto.AppInstApi/CreateAppInst", request: instance, what, done: "running",
      isMine: (operation) => operation.kind === "CreateAppInst" && sameInstance(operation.key, instance.key),
    });
  };
  const show = async () => {
    await instances.refresh();
    close();
    go(instanceHref(key));
  };
  return (
    <Dialog title={work ? `Starting ${work.what}` : "Start an instance"} close={close} wide testid="instance-dialog">
      {work ? <Progress work={work} finished={() => void show()} close={close} /> : <InstanceForm app={app} begin={begin} close={close} />}
    </Dialog>
  );
}

/** State of a cloudlet as far as the caller may know. */
function stateOf(name: string, infos: CloudletInfo[]): State {
  const info = infos.find((one) => cloudletName(one.key) === name);
  if (info) return cloudletState(info.state);
  const place = overview.value?.places?.find((one) => one.cloudlet?.name === name);
  return place ? worded(place.state) : { word: "state unknown", tone: "off" };
}

function InstanceForm({ app, begin, close }: { app?: App; begin: (instance: AppInst) => void; close: () => void }) {
  const all = (apps.use().data ?? []).filter((one) => may.changeApps(developerOf(one.key)));
  const places = cloudlets.use().data ?? [];
  const infos = cloudletInfos.use().data ?? [];
  const use = cloudletUse.use().data;
  const sizes = flavors.use().data ?? [];
  const [appId, setAppId] = useState(app ? appHref(app.key) : "");
  const [placeId, setPlaceId] = useState("");
  const [size, setSize] = useState("");
  const [cluster, setCluster] = useState("");
  const chosen = app ?? all.find((one) => appHref(one.key) === (appId || appHref(all[0]?.key)));
  const ready = places.filter((one) => stateOf(cloudletName(one.key), infos).tone === "good");
  const place = places.find((one) => cloudletName(one.key) === (placeId || cloudletName((ready[0] ?? places[0])?.key)));
  const name = cloudletName(place?.key);
  const state = stateOf(name, infos);
  const slug = `autocluster${(chosen?.key?.name ?? "").toLowerCase().replace(/[^a-z0-9]+/g, "")}`;
  const info = infos.find((one) => cloudletName(one.key) === name);
  const free = (total: CloudletInfo["osMaxRam"], of: "ram" | "vcores") => Math.max(0, number(total) - (use?.get(name)?.[of] ?? 0));
  const wrong = {
    app: chosen ? undefined : "You have no app yet; register one first.",
    place: place ? undefined : "There is no cloudlet yet; an operator registers one.",
    cluster: cluster ? nameProblem(cluster, "cluster") : undefined,
  };
  const send = async () => begin({
    key: {
      appKey: chosen?.key,
      clusterInstKey: { clusterKey: { name: cluster || slug }, cloudletKey: place?.key, developer: developerOf(chosen?.key) },
    },
    ...(size ? { flavor: { name: size } } : {}),
  });
  return (
    <Form send={send} submit="Start it" cancel={close} problems={Object.values(wrong)} testid="instance-form">
      {(tried) => (
        <>
          {!app && <Choice label="App" value={chosen ? appHref(chosen.key) : ""} set={setAppId} wrong={tried ? wrong.app : undefined} testid="instance-app"
            options={all.map((one) => ({ value: appHref(one.key), text: `${appName(one.key)} of ${developerOf(one.key)}` }))} />}
          <Choice label="Cloudlet" value={name} set={setPlaceId} wrong={tried ? wrong.place : undefined} testid="instance-cloudlet"
            options={places.map((one) => ({ value: cloudletName(one.key), text: `${cloudletName(one.key)} · ${stateOf(cloudletName(one.key), infos).word}` }))} />
          {place && state.tone !== "good" && <p class="banner warn"><Badge state={state} /> It starts when the cloudlet's agent is connected.</p>}
          <div class="two">
            <Choice label="Size" value={size} set={setSize} options={[{ value: "", text: `App default (${chosen?.defaultFlavor?.name ?? "–"})` }, ...flavorOptions(sizes)]} testid="instance-flavor" />
            <Text label="Cluster" value={cluster} set={setCluster} placeholder={slug} hint="Leave empty for one of its own, deleted with the instance." wrong={wrong.cluster} testid="instance-cluster" />
          </div>
          <Facts items={[
            ["Ports", plain(chosen?.accessPorts) || "none"],
            ["Free there", use && info && number(info.osMaxRam) > 0 ? `${free(info.osMaxRam, "ram")} of ${number(info.osMaxRam)} MB memory, ${free(info.osMaxVcores, "vcores")} of ${number(info.osMaxVcores)} vCPU` : undefined],
          ]} />
        </>
      )}
    </Form>
  );
}
