// This server: versions, parts, its own tasks; and the page's settings.
import { useState } from "preact/hooks";
import type { Reconciler } from "../contract";
import { bytes, number, plain, plural, span } from "../format";
import { lazy } from "../lazy";
import { asCallError, useLoad } from "../live";
import { overview } from "../overview";
import { Badge, Card, Facts, Trouble, Waiting, When } from "../parts/bits";
import { call, type CallError } from "../rpc";
import { may } from "../session";
import type { State } from "../states";
import { theme, type Theme } from "../theme";
import { Page } from "./frame";

export function AboutPage() {
  const status = useLoad((signal) => call("selvage.system.SystemService/GetStatus", {}, { signal }), [], 5000);
  const process = useLoad(async (signal) => (may.seeProcess() ? call("selvage.dashboard.DashboardService/GetProcess", {}, { signal }) : undefined), [], 5000);
  const about = status.data;
  return (
    <Page title="About">
      <Trouble error={status.error} />
      {!about ? <Waiting /> : (
        <div class="columns">
          <Card title="Server">
            <Facts items={[
              ["Version", `${about.version}${about.commit ? ` (${about.commit.slice(0, 12)})` : ""}`], ["Uptime", span(number(about.uptimeSeconds))],
              ["Store", `${about.store}, revision ${number(about.storeRevision).toLocaleString("en")}`],
              ["Store failure", about.storeFailure && <span class="wrong">{plain(about.storeFailure, 500)}</span>],
              ["Security", about.insecure ? <Badge state={{ word: "insecure: everybody is admin", tone: "bad" }} /> : <Badge state={{ word: "TLS on, login required", tone: "good" }} />],
            ]} />
          </Card>
          <Card title="Parts">
            <ul class="list">{(about.parts ?? []).map((part) => (
              <li key={part.name} class="part"><b>{plain(part.name)}</b><Badge state={{ word: part.state ?? "", tone: part.state === "serving" ? "good" : "off" }} title={part.services?.join("\n")} /></li>
            ))}</ul>
          </Card>
          {process.data && (
            <Card title="This process" testid="process">
              <Facts items={[
                ["Memory", bytes(process.data.residentBytes)], ["CPU time", `${(process.data.cpuSeconds ?? 0).toFixed(1)} s`], ["Started", <When time={process.data.startedAt} />],
                ["Open pages", process.data.watchers ?? 0], ["Operations", `${process.data.operations ?? 0} running, ${process.data.stuckOperations ?? 0} stuck`],
                ["Audit", `${number(process.data.auditLines).toLocaleString("en")} lines, kept for ${process.data.auditDays ?? 0} days`],
              ]} />
              <ul class="list tasks" tabIndex={0} aria-label="Tasks">{(process.data.tasks ?? []).map((task) => (
                <li key={task.name} class="part"><span class="mono">{plain(task.name, 60)}</span><span>{number(task.restarts) > 0 && <span class="soft fine">restarted {number(task.restarts)}× </span>}<Badge state={{ word: task.state ?? "", tone: task.state === "running" ? "good" : "off" }} /></span></li>
              ))}</ul>
            </Card>
          )}
          {(about.reconcilers ?? []).length > 0 && <Reconcilers list={about.reconcilers ?? []} />}
          <Card title="Data sources">
            <ul class="list">{(overview.value?.sources ?? []).map((source) => (
              <li key={`${source.name} ${source.section}`} class="part"><span><b>{plain(source.name)}</b> <span class="soft">{plain(source.section)}</span></span>
                <span><Badge state={source.error ? { word: "failing", tone: "bad" } : source.stale ? { word: "stale", tone: "warn" } : { word: "fresh", tone: "good" }} title={source.error} /> <span class="soft fine"><When time={source.fetchedAt} /></span></span></li>
            ))}</ul>
          </Card>
          <Card title="Settings and licences">
            <div class="field"><label for="theme">Theme</label>
              <select id="theme" class="narrow" value={theme.value} onChange={(event) => { theme.value = event.currentTarget.value as Theme; }}>
                <option value="system">Follow the system</option><option value="light">Light</option><option value="dark">Dark</option>
              </select></div>
            <ul class="bullets more">
              <li><a href="/docs">API reference: read about every method and try it</a></li>
              <li>Selvage is under the Apache License 2.0. The page uses Preact, uPlot and xterm.js (MIT); the map is drawn after Natural Earth (public domain).</li>
            </ul>
            <Licences />
          </Card>
        </div>
      )}
    </Page>
  );
}

/** Crates of the server, its tests and its tools, as Cargo.lock has them. */
function Licences() {
  const [crates, setCrates] = useState<[string, string, string][]>();
  const [loading, setLoading] = useState(false);
  const [error, setError] = useState<CallError>();
  const load = (event: Event & { currentTarget: HTMLDetailsElement }) => {
    if (!event.currentTarget.open || crates) return;
    setError(undefined);
    setLoading(true);
    lazy<{ default: [string, string, string][] }>("licences")
      .then(({ default: list }) => setCrates(list), (failure: unknown) => setError(asCallError(failure)))
      .finally(() => setLoading(false));
  };
  return (
    <details class="more" onToggle={load} data-testid="licences">
      <summary>Licences of the Rust crates</summary>
      <Trouble error={error} />
      {loading && <Waiting />}
      {crates && (
        <ul class="list tasks licences" tabIndex={0} aria-label="Rust crates">{crates.map(([name, version, licence]) => (
          <li key={`${name} ${version}`} class="part"><span><span class="mono">{name}</span> <span class="soft fine">{version}</span></span><span class="fine">{licence}</span></li>
        ))}</ul>
      )}
    </details>
  );
}

/** What keeps bringing things into their wanted state; what fails comes first. */
function Reconcilers({ list }: { list: Reconciler[] }) {
  const sorted = [...list].sort((a, b) => (b.failing ?? 0) - (a.failing ?? 0));
  return (
    <Card title="Reconcilers" testid="reconcilers">
      <ul class="list tasks" tabIndex={0} aria-label="Reconcilers">{sorted.map((one) => (
        <li key={one.name} class="part">
          <span><span class="mono">{plain(one.name, 60)}</span>
            <span class="soft fine"> {plural(number(one.runs), "run")}{number(one.failures) > 0 && `, ${number(one.failures).toLocaleString("en")} failed`}{number(one.queue) > 0 && `, ${number(one.queue).toLocaleString("en")} waiting`}</span>
            {one.lastError && <span class={one.failing ? "wrong fine" : "soft fine"}><br />{one.failing ? "" : "Last error: "}{plain(one.lastError, 400)}</span>}</span>
          <span><Badge state={reconcilerState(one)} /> <span class="soft fine"><When time={number(one.lastRun) * 1000 || undefined} /></span></span>
        </li>
      ))}</ul>
    </Card>
  );
}

const reconcilerState = ({ failing, running }: Reconciler): State => {
  if (failing) return { word: `failed ${failing}× in a row`, tone: "bad" };
  return running ? { word: "running", tone: "busy" } : { word: "ok", tone: "good" };
};
