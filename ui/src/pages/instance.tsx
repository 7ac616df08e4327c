// One instance: how it is, its log, a shell in it, what it uses.
import { Fragment } from "preact";
import { useMemo, useState } from "preact/hooks";
import type { AppInst } from "../contract";
import { number, plain } from "../format";
import { appHref, appName, cloudletHref, cloudletName, developerOf, instanceHref, instanceKey, operationWords, sameInstance } from "../keys";
import { useLoad } from "../live";
import { Badge, Card, Command, Empty, Facts, Trouble, Waiting, When } from "../parts/bits";
import { Chart } from "../parts/chart";
import { Dialog } from "../parts/dialog";
import { Logs } from "../parts/logs";
import type { Work } from "../follow";
import { Cancel, Progress } from "../parts/operation";
import { Shell } from "../parts/terminal";
import { clusterInsts, instances, operations } from "../resources";
import { go, query } from "../router";
import { list } from "../rpc";
import { may } from "../session";
import { operationState, tracked } from "../states";
import { Page } from "./frame";
import { links, named, type PortLink } from "./instances";

const TABS: [string, string][] = [["", "Overview"], ["log", "Log"], ["shell", "Shell"], ["usage", "Usage"]];

export function InstancePage({ parts }: { parts: string[] }) {
  const key = instanceKey(parts);
  const address = instanceHref(key);
  const { data, error, refresh } = instances.use();
  const [work, setWork] = useState<Work>();
  const [deleting, setDeleting] = useState(false);
  const instance = data?.find((one) => instanceHref(one.key) === address);
  const crumbs: [string, string][] = [["Instances", "#/instances"], [appName(key.appKey), appHref(key.appKey)]];
  const title = `${appName(key.appKey)} on ${cloudletName(key.clusterInstKey?.cloudletKey)}`;
  const dialogs = (
    <>
      {work && <Dialog title={work.method.includes("Delete") ? `Deleting ${work.what}` : `Updating ${work.what}`} wide close={() => setWork(undefined)}>
        <Progress work={work} close={() => setWork(undefined)} finished={() => {
          setWork(undefined);
          if (work.method.includes("Delete")) go("#/instances");
        }} />
      </Dialog>}
      {deleting && instance && <DeleteDialog instance={instance} close={() => setDeleting(false)} begin={(one) => { setDeleting(false); setWork(one); }} />}
    </>
  );
  if (!instance) {
    return (
      <Page title={title} crumbs={crumbs}>
        <Trouble error={error} retry={refresh} />
        {data ? !work && <Empty title="There is no such instance"><a href="#/instances">All instances</a></Empty> : !error && <Waiting />}
        {dialogs}
      </Page>
    );
  }
  const mine = may.changeApps(developerOf(key.appKey));
  const state = tracked(instance.state, instance.runtimeInfo?.unhealthy);
  const tab = query.value.get("tab") ?? "";
  const tabs = TABS.filter(([name]) => mine || (name !== "shell" && name !== "log")).filter(([name]) => name !== "usage" || may.seeSamples());
  const actions = (
    <>
      <Badge state={state} />
      {mine && <button type="button" class="quiet" data-testid="update-instance" onClick={() => setWork(change(instance, "Update"))}>Update</button>}
      {mine && <button type="button" class="quiet danger" data-testid="delete-instance" onClick={() => setDeleting(true)}>Delete</button>}
    </>
  );
  return (
    <Page title={title} crumbs={crumbs} actions={actions}>
      <nav class="tabs" aria-label="Views of the instance">
        {tabs.map(([name, text]) => <a key={name} href={name ? `${address}?tab=${name}` : address} aria-current={tab === name ? "page" : undefined} data-testid={`tab-${name || "overview"}`}>{text}</a>)}
      </nav>
      {tab === "log" && mine ? <Logs instance={instance} /> : tab === "shell" && mine ? <Shell instance={instance} />
        : tab === "usage" ? <Usage instance={instance} /> : <About instance={instance} />}
      {dialogs}
    </Page>
  );
}

function change(instance: AppInst, kind: "Update" | "Delete"): Work {
  const what = `${appName(instance.key?.appKey)} on ${cloudletName(instance.key?.clusterInstKey?.cloudletKey)}`;
  return {
    method: `edgeproto.AppInstApi/${kind}AppInst`, request: { key: instance.key }, what, done: kind === "Update" ? "up to date" : "deleted",
    isMine: (operation) => operation.kind === `${kind}AppInst` && sameInstance(operation.key, instance.key),
  };
}

function DeleteDialog({ instance, close, begin }: { instance: AppInst; close: () => void; begin: (work: Work) => void }) {
  const clusters = clusterInsts.use().data ?? [];
  const others = (instances.use().data ?? []).filter((one) => one !== instance && JSON.stringify(one.key?.clusterInstKey) === JSON.stringify(instance.key?.clusterInstKey));
  const cluster = clusters.find((one) => JSON.stringify(one.key) === JSON.stringify(instance.key?.clusterInstKey));
  const goes = cluster?.auto && others.length === 0;
  return (
    <Dialog title="Delete this instance?" close={close} testid="delete-dialog">
      <p>It stops. Devices are sent to the next nearest instance, if there is one.</p>
      <ul class="bullets">
        <li>{goes ? <>Its cluster <b>{plain(cluster?.key?.clusterKey?.name)}</b> was created for it and is deleted too.</> : <>Its cluster stays{others.length > 0 && `, with ${others.length} more in it`}.</>}</li>
        <li>The app <b>{appName(instance.key?.appKey)}</b> stays registered.</li>
        <li>Everything it wrote inside its container is lost.</li>
      </ul>
      <div class="actions">
        <button type="button" class="danger" onClick={() => begin(change(instance, "Delete"))} data-testid="delete-yes">Delete it</button>
        <button type="button" class="quiet" onClick={close}>Cancel</button>
      </div>
    </Dialog>
  );
}

function About({ instance }: { instance: AppInst }) {
  const key = instance.key;
  const cluster = key?.clusterInstKey;
  const work = (operations.use().data ?? []).filter((operation) => sameInstance(operation.key, key));
  const addresses = links(instance);
  // Where no address is known the names are there already.
  const names = instance.runtimeInfo?.addresses?.length ? named(instance) : [];
  const app = key?.appKey;
  return (
    <div class="columns">
      <Card title="Details" testid="instance-facts">
        <Facts items={[
          ["State", <Badge state={tracked(instance.state, instance.runtimeInfo?.unhealthy)} />],
          ["Not answering", instance.runtimeInfo?.unhealthy && plain(instance.runtimeInfo.unhealthy, 400)],
          ["Errors", instance.errors?.length ? <span class="wrong">{plain(instance.errors.join("; "), 1000)}</span> : undefined],
          ["Address", addresses.length === 0 ? "none" : <Links list={addresses} testid="address" />],
          ["Name", names.length > 0 ? <><Links list={names} testid="dns-name" /><p class="soft fine">Works on machines that use this system for DNS.</p></>
            : instance.uri && <span class="mono">{plain(instance.uri)}</span>],
          ["App", <a href={appHref(app)}>{plain(appName(app))}</a>],
          ["Developer", plain(developerOf(app))],
          ["Cloudlet", <a href={cloudletHref(cluster?.cloudletKey)}>{plain(cloudletName(cluster?.cloudletKey))}</a>],
          ["Cluster", plain(cluster?.clusterKey?.name)],
          ["Size", plain(instance.flavor?.name)],
          ["Containers", <span class="mono">{(instance.runtimeInfo?.containerIds ?? []).map((id) => plain(id)).join(", ")}</span>],
          ["Created", <When time={number(instance.createdAt?.seconds) * 1000 || undefined} />],
        ]} />
      </Card>
      <Card title="Operations">
        {work.length === 0 ? <p class="soft">None in the last 24 hours.</p> : (
          <ul class="list">{work.slice(0, 8).map((operation) => (
            <li key={operation.id} class="operation">
              <p class="row"><Badge state={operationState(operation.state)} /> <b>{operationWords(operation).verb}</b> <span class="soft">by {plain(operation.startedBy)}, <When time={operation.startedAt} /></span></p>
              {operation.error && <p class="wrong">{plain(operation.error, 500)}</p>}
              {operation.state === "RUNNING" && <Cancel operation={operation} />}
            </li>
          ))}</ul>
        )}
        <p class="soft fine more">On the command line:</p>
        <Command text={`selvage logs ${app?.name} -f`} />
        <Command text={`selvage exec ${app?.name}`} />
      </Card>
    </div>
  );
}

/** An address that is broken between its parts where it is too long for a line. */
const breakable = (text: string) => text.split(/(?<=[./:])(?=[^./:])/).map((part, at) => <Fragment key={at}>{part}<wbr /></Fragment>);

const Links = ({ list: all, testid }: { list: PortLink[]; testid: string }) => (
  <ul>{all.map((one) => (
    <li key={one.text} class="mono">{one.href ? <a href={one.href} target="_blank" rel="noopener noreferrer" data-testid={testid}>{breakable(one.text)}</a> : breakable(one.text)}</li>
  ))}</ul>
);

function Usage({ instance }: { instance: AppInst }) {
  const { appKey, clusterInstKey } = instance.key ?? {};
  const tags = {
    app: appKey?.name ?? "", ver: appKey?.version ?? "", dev: developerOf(appKey),
    cluster: clusterInstKey?.clusterKey?.name ?? "", cloudlet: clusterInstKey?.cloudletKey?.name ?? "",
  };
  const { data, error } = useLoad((signal) => list("selvage.metrics.MetricsService/ListSamples", { name: "crm-appinst", tags, limit: 720 }, { signal }), [JSON.stringify(tags)], 5000);
  const samples = useMemo(() => (data ?? []).map((sample) => ({
    time: Date.parse(sample.timestamp ?? ""),
    of: (name: string) => {
      const found = sample.vals?.find((one) => one.name === name);
      return found?.dval ?? number(found?.ival);
    },
  })), [data]);
  if (error) return <Trouble error={error} />;
  if (!data) return <Waiting />;
  if (samples.length < 2) return <Empty title="No samples yet">The cloudlet's agent sends one every few seconds once the instance runs.</Empty>;
  const times = samples.map((sample) => sample.time);
  const rate = (name: string) => samples.map((sample, at) => {
    const before = samples[at - 1];
    return before ? Math.max(0, (sample.of(name) - before.of(name)) / Math.max(0.001, (sample.time - before.time) / 1000)) : null;
  });
  return (
    <div class="columns">
      <Card title="Processor"><Chart title="Share of one core" unit="percent" times={times} lines={[{ label: "cpu", values: samples.map((one) => one.of("cpu")) }]} /></Card>
      <Card title="Memory"><Chart title="Working set" unit="bytes" times={times} lines={[{ label: "memory", values: samples.map((one) => one.of("mem")) }]} /></Card>
      <Card title="Network"><Chart title="Traffic" unit="bytes/s" times={times} lines={[{ label: "received", values: rate("recvBytes") }, { label: "sent", values: rate("sendBytes") }]} /></Card>
      <Card title="Disk"><Chart title="Files written" unit="bytes" times={times} lines={[{ label: "disk", values: samples.map((one) => one.of("disk")) }]} /></Card>
    </div>
  );
}

