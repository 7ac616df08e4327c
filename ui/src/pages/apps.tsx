// Apps: what developers offer to run.
import { useState } from "preact/hooks";
import type { App } from "../contract";
import { plain } from "../format";
import { appHref, appName, developerOf, instanceHref, instanceId } from "../keys";
import { Badge, Card, Empty, Facts, Trouble, Waiting } from "../parts/bits";
import { Confirm, Dialog, note } from "../parts/dialog";
import { Filter, Table } from "../parts/table";
import { apps, instances } from "../resources";
import { go, query, setQuery } from "../router";
import { call } from "../rpc";
import { may } from "../session";
import { tracked } from "../states";
import { AppForm } from "./app-form";
import { Page } from "./frame";
import { NewInstance } from "./instance-form";
import { instanceColumns } from "./instances";

export function AppsPage() {
  const { data, error, refresh } = apps.use();
  const running = instances.use().data ?? [];
  const creating = may.changeApps() && query.value.get("new") === "app";
  const count = (app: App) => running.filter((one) => sameApp(one.key?.appKey, app.key)).length;
  const create = may.changeApps() && <button type="button" data-new data-testid="new-app" onClick={() => setQuery("new", "app")}>New app</button>;
  return (
    <Page title="Apps" actions={<><Filter what="apps" />{create}</>}>
      <Trouble error={error} retry={refresh} />
      {!data ? !error && <Waiting /> : (
        <Table label="Apps" rows={data} id={(app) => appHref(app.key)} href={(app) => appHref(app.key)} order={[0, 1]}
          empty={<Empty title="No apps yet">An app is an image with its ports and a size. {may.changeApps() ? <>Create one with <b>New app</b>, then start it on a cloudlet.</> : "A developer registers them."}</Empty>}
          columns={[
            { title: "App", value: (app) => appName(app.key) },
            { title: "Developer", value: (app) => developerOf(app.key) },
            { title: "Instances", value: count, right: true },
            { title: "Deployment", value: (app) => app.deployment ?? "", wide: true },
            { title: "Ports", value: (app) => app.accessPorts ?? "", wide: true },
            { title: "Size", value: (app) => app.defaultFlavor?.name ?? "", wide: true },
            { title: "Image", value: (app) => app.imagePath ?? "", wide: true },
          ]} />
      )}
      {creating && <Dialog title="New app" wide close={() => setQuery("new", "")} testid="app-dialog"><AppForm close={() => setQuery("new", "")} /></Dialog>}
    </Page>
  );
}

export function sameApp(left: App["key"], right: App["key"]): boolean {
  return appName(left) === appName(right) && developerOf(left) === developerOf(right) && left?.version === right?.version;
}

export function AppPage({ parts: [developer, name, version] }: { parts: string[] }) {
  const { data, error } = apps.use();
  const running = instances.use();
  const [open, setOpen] = useState<"edit" | "delete" | "start">();
  const app = data?.find((one) => developerOf(one.key) === developer && one.key?.name === name && (one.key?.version ?? "") === (version ?? ""));
  const close = () => setOpen(undefined);
  const crumbs: [string, string][] = [["Apps", "#/apps"]];
  if (!app) {
    return (
      <Page title={`${name} ${version ?? ""}`} crumbs={crumbs}>
        <Trouble error={error} />
        {data ? <Empty title="There is no such app"><a href="#/apps">All apps</a></Empty> : !error && <Waiting />}
      </Page>
    );
  }
  const own = (running.data ?? []).filter((one) => sameApp(one.key?.appKey, app.key));
  const mine = may.changeApps(developer);
  const actions = mine && (
    <>
      <button type="button" onClick={() => setOpen("start")} data-new data-testid="start-instance">Start an instance</button>
      <button type="button" class="quiet" onClick={() => setOpen("edit")} data-testid="edit-app">Edit</button>
      <button type="button" class="quiet danger" onClick={() => setOpen("delete")} data-testid="delete-app">Delete</button>
    </>
  );
  return (
    <Page title={appName(app.key)} crumbs={crumbs} actions={actions}>
      <div class="columns">
        <Card title="Details">
          <Facts items={[
            ["Developer", plain(developer)], ["Deployment", app.deployment], ["Image", <span class="mono">{plain(app.imagePath, 300)}</span>],
            ["Ports", <span class="mono">{plain(app.accessPorts) || "none"}</span>], ["Size", plain(app.defaultFlavor?.name)],
            ["Command", app.command && <code>{plain(app.command, 400)}</code>],
            ["Config files", (app.configs ?? []).map((file) => file.kind).join(", ")],
          ]} />
        </Card>
        {app.deploymentManifest && <Card title="Manifest"><pre tabIndex={0}>{app.deploymentManifest}</pre></Card>}
      </div>
      <h2 class="section">Instances</h2>
      <Trouble error={running.error} />
      <Table label="Instances" rows={own} id={instanceId} href={(one) => instanceHref(one.key)} columns={instanceColumns.slice(1)}
        empty={<Empty title="Not running anywhere yet">{mine ? <>Press <b>Start an instance</b> and choose a cloudlet.</> : "Its developer starts instances."}</Empty>} />
      {open === "start" && <NewInstance app={app} close={close} />}
      {open === "edit" && <Dialog title={`Edit ${appName(app.key)}`} wide close={close}><AppForm app={app} running={own.length} close={close} /></Dialog>}
      {open === "delete" && (
        <Confirm title={`Delete ${appName(app.key)}?`} yes="Delete the app" close={close} act={async () => {
          await call("edgeproto.AppApi/DeleteApp", { key: app.key });
          note(`${appName(app.key)} is deleted.`);
          await apps.refresh();
          go("#/apps");
        }}>
          {own.length > 0 ? (
            <>
              <p>It still runs. Delete these instances first:</p>
              <ul class="bullets">{own.slice(0, 10).map((one) => <li key={instanceId(one)}><a href={instanceHref(one.key)}>{plain(one.key?.clusterInstKey?.cloudletKey?.name)}</a> <Badge state={tracked(one.state)} /></li>)}</ul>
            </>
          ) : <p>It is not running anywhere, so nothing else is affected.</p>}
        </Confirm>
      )}
    </Page>
  );
}
