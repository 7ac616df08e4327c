// The first page: what is wrong and why, on one screen.
import { useState } from "preact/hooks";
import type { Capacity, Happening, Problem, Series } from "../contract";
import { ago, bytes, exact, now, number, plain, plural, span } from "../format";
import { sentenceAbout, thingHref } from "../keys";
import { useLoad } from "../live";
import { happenings, heard, overview, overviewError, problems } from "../overview";
import { Badge, Card, Command, Copy, Facts, Glyph, Meter, Trouble, Waiting, When } from "../parts/bits";
import { Dialog } from "../parts/dialog";
import { Radar, Reasons } from "../parts/radar";
import { Sparkline } from "../parts/sparkline";
import { World } from "../parts/world";
import { call, reachable } from "../rpc";
import { may } from "../session";
import { severityTone, severityWord } from "../states";
import { Page } from "./frame";

export function OverviewPage() {
  const data = overview.value;
  if (!data) {
    return <Page title="Overview">{overviewError.value ? <Trouble error={overviewError.value} /> : <Waiting what="Checking the system" />}</Page>;
  }
  return (
    <div class="overview">
      <Verdict />
      <Problems />
      <Card title="Scores" className="marks" testid="radar">
        <Radar marks={data.radar ?? []} />
        <Reasons marks={data.radar ?? []} />
      </Card>
      <Numbers />
      <Card title="Map" className="map" testid="map" actions={<a href="#/map">Open the map</a>}>
        {(data.places ?? []).length > 0 ? <World places={data.places ?? []} /> : <FirstCloudlet />}
      </Card>
      <Happened />
    </div>
  );
}

const FirstCloudlet = () => (
  <p class="soft">No cloudlet yet. {may.changeCloudlets() ? <a href="#/cloudlets">Register the first one.</a> : "An operator registers them."}</p>
);

const KINDS: Record<string, [string, string, string]> = {
  cloudlet: ["cloudlet", "cloudlets", "#/cloudlets"], appinst: ["instance", "instances", "#/instances"],
  clusterinst: ["cluster", "clusters", "#/clusters"], kaas: ["Kubernetes cluster", "Kubernetes clusters", "#/clusters"], machine: ["machine", "machines", "#/machines"],
  app: ["app", "apps", "#/apps"], volume: ["volume", "volumes", "#/volumes"], volume_group: ["volume group", "volume groups", "#/volumes"],
};

function Verdict() {
  const { verdict, counts = [], sources = [] } = overview.value ?? {};
  const tone = severityTone(verdict?.severity);
  const stale = sources.filter((source) => source.stale || source.error);
  return (
    <section class={`verdict ${tone}`} aria-label="Verdict">
      <Glyph tone={tone} />
      <h1 data-testid="verdict">{plain(sentenceAbout(problems.value[0]?.object, verdict?.sentence), 300) || "Nothing is known yet."}</h1>
      <ul class="counts">
        {counts.filter((count) => KINDS[count.kind ?? ""] && (count.total ?? 0) > 0).map((count) => {
          const [one, many, href] = KINDS[count.kind ?? ""]!;
          const all = count.healthy === count.total;
          return (
            <li key={count.kind}>
              <a href={href}><strong>{all ? count.total : `${count.healthy ?? 0}/${count.total}`}</strong> {count.total === 1 ? one : many}<span class="unseen">{all ? ", all healthy" : " healthy"}</span></a>
            </li>
          );
        })}
      </ul>
      <p class="age" title={stale.map((source) => `${source.name} ${source.section}: ${source.error || "no recent answer"}`).join("\n") || exact(heard.value)} data-testid="age">
        {!reachable.value ? <Badge state={{ word: `as of ${ago(heard.value, now.value)}`, tone: "bad" }} />
          : stale.length ? <Badge state={{ word: `${plural(stale.length, "source")} stale`, tone: "warn" }} />
            : <Badge state={{ word: "live", tone: "good" }} />}
      </p>
    </section>
  );
}

function Problems() {
  const [open, setOpen] = useState<Problem>();
  const list = problems.value;
  return (
    <Card title={list.length ? plural(list.length, "problem") : "Problems"} className="problems" testid="problems">
      {list.length === 0 ? (
        <p class="well"><Glyph tone="good" /> All clear. Problems show up here, worst first, each with a command to look into it.</p>
      ) : (
        <ul class="list" tabIndex={0} aria-label="Problems, worst first">
          {list.slice(0, 100).map((problem) => (
            <li key={problem.id} class="problem">
              <button type="button" class="line" onClick={() => setOpen(problem)}>
                <Badge state={{ word: severityWord(problem.severity), tone: severityTone(problem.severity) }} />
                <span class="what">{plain(sentenceAbout(problem.object, problem.summary), 220)}</span>
                <span class="soft fine"><When time={problem.since} fallback="" /></span>
              </button>
              <p class="why"><code class="rule">{plain(problem.rule, 40)}</code> {plain(problem.detail?.split("\n")[0], 300)}</p>
              {problem.command && <p class="fix"><code>{plain(problem.command, 160)}</code><Copy text={problem.command} /></p>}
            </li>
          ))}
        </ul>
      )}
      {open && <ProblemDialog problem={open} close={() => setOpen(undefined)} />}
    </Card>
  );
}

function ProblemDialog({ problem, close }: { problem: Problem; close: () => void }) {
  const href = thingHref(problem.object);
  const name = plain(`${problem.object?.kind?.replaceAll("_", " ")} ${problem.object?.name}`, 120);
  return (
    <Dialog title={plain(sentenceAbout(problem.object, problem.summary), 200)} close={close} wide testid="problem">
      <Facts items={[
        ["Concerns", href ? <a href={href} onClick={close}>{name}</a> : name],
        ["Severity", <Badge state={{ word: severityWord(problem.severity), tone: severityTone(problem.severity) }} />],
        ["Since", <When time={problem.since} fallback="unknown" />],
        ["Rule", <code>{plain(problem.rule)}</code>],
        ["Source", plain(problem.source)],
        ["Runbook", /^https?:\/\//.test(problem.runbook ?? "") && <a href={problem.runbook} target="_blank" rel="noopener noreferrer">{plain(problem.runbook, 120)}</a>],
      ]} />
      {problem.detail && <pre class="detail" tabIndex={0}>{plain(problem.detail, 8000)}</pre>}
      {problem.command && <><p class="soft">To look into it or fix it:</p><Command text={problem.command} /></>}
    </Dialog>
  );
}

/** Lines of the last hour, each the sum of these series over all machines. */
const SHOWN: [string, string[]][] = [
  ["Processors", ["cpu_percent"]], ["Memory", ["memory_used_bytes"]],
  ["Disks", ["read_bytes", "written_bytes"]], ["Network", ["received_bytes", "sent_bytes"]],
];

function Numbers() {
  const { data } = useLoad(async (signal) => (await call("selvage.dashboard.DashboardService/GetSeries", { names: SHOWN.flatMap(([, names]) => names), kind: "machine", range: "3600s", step: "90s" }, { signal })).series ?? [], [], 15000);
  const capacity = overview.value?.capacity ?? [];
  return (
    <Card title="Capacity and load" className="numbers" testid="capacity">
      <div class="rooms" tabIndex={0} role="group" aria-label="Storage capacity">
        {capacity.length === 0 && <p class="soft fine">No storage reports its size yet.</p>}
        {capacity.map((room) => <Room key={`${room.name} ${room.object?.name}`} room={room} />)}
      </div>
      <div class="sparks">
        {SHOWN.map(([label, names]) => <Summed key={label} label={label} series={(data ?? []).filter((one) => names.includes(one.name ?? ""))} />)}
      </div>
    </Card>
  );
}

function Room({ room }: { room: Capacity }) {
  const [used, total] = [number(room.usedBytes), number(room.totalBytes)];
  const name = plain(room.object?.name || room.name, 40);
  return (
    <div class="room">
      <p><strong>{name}</strong> <span>{bytes(used)} of {bytes(total)}</span></p>
      <Meter used={used} total={total} ticks={[room.nearFull || 0.85, room.full || 0.95]} label={`${name}: used`} />
      <p class="soft fine" data-testid="forecast"><Forecast room={room} /></p>
    </div>
  );
}

/** When it is full, and how sure that is: what is not known is not told. */
function Forecast({ room }: { room: Capacity }) {
  const [at, earliest, latest] = [room.fullAt, room.fullEarliest, room.fullLatest].map((time) => Date.parse(time ?? ""));
  const known = Number.parseInt(room.knownFor ?? "0", 10);
  const free = `${bytes(room.availableBytes)} free`;
  const left = (time: number) => span((time - now.value) / 1000);
  const told = `Based on growth over the last ${span(known)}; right nine times out of ten.`;
  if (!known) return <span title="A forecast needs at least an hour of history.">{free}</span>;
  if (Number.isFinite(at!)) {
    const bounds = Number.isFinite(latest!) ? `${left(earliest!)} to ${left(latest!)}` : `at least ${left(earliest!)}`;
    return <span title={`${told} ${exact(at!)}`}>full in <b>{left(at!)}</b> ({bounds}) at this rate</span>;
  }
  if (Number.isFinite(earliest!)) return <span title={told}>{free}; grows unevenly, not full for at least {left(earliest!)}</span>;
  return <span title={told}>{free}; no sign of filling up</span>;
}

/** One line for all objects of a series: the sum, or the mean of shares. */
function Summed({ series, label }: { series: Series[]; label: string }) {
  const sums = new Map<number, [number, number]>();
  for (const one of series) {
    one.times?.forEach((time, at) => {
      const [sum, count] = sums.get(Number(time)) ?? [0, 0];
      sums.set(Number(time), [sum + (one.values?.[at] ?? 0), count + 1]);
    });
  }
  const unit = series[0]?.unit;
  const times = [...sums.keys()].sort((a, b) => a - b);
  const values = times.map((time) => {
    const [sum, count] = sums.get(time)!;
    return unit === "percent" ? sum / count : sum;
  });
  return <Sparkline label={label} unit={unit} points={{ times, values }} top={unit === "percent" ? 100 : undefined} />;
}

/** A change and the problem that it makes are told at once, and shown once. */
function withoutRepeats(list: Happening[]): Happening[] {
  const told = new Set<string>();
  return list.filter((event) => {
    const id = `${event.what === "ended"} ${Math.round(Date.parse(event.time ?? "") / 5000)} ${sentenceAbout(event.object, event.text)}`;
    return !told.has(id) && told.add(id);
  });
}

function Happened() {
  const list = withoutRepeats(happenings.value.slice(0, 100));
  return (
    <Card title="Events" className="happened" testid="events">
      {list.length === 0 ? <p class="soft">Nothing in the last hour.</p> : (
        <ul class="list" tabIndex={0} aria-label="Events, newest first">
          {list.slice(0, 60).map((event) => <Event key={event.id} event={event} />)}
        </ul>
      )}
    </Card>
  );
}

/** What happened, in its own words; of a problem also that it is over. */
function Event({ event }: { event: Happening }) {
  const over = event.what === "ended";
  const [href, text] = [thingHref(event.object), plain(sentenceAbout(event.object, event.text), 160)];
  return (
    <li class="event">
      <Glyph tone={over ? "good" : severityTone(event.severity)} />
      <span class="what">{over && <b>Resolved: </b>}{href ? <a href={href}>{text}</a> : text}</span>
      <span class="soft fine"><When time={event.time} /></span>
    </li>
  );
}
