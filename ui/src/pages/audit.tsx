// Who did what. What is looked for is in the address, so that it can be kept
// and sent to others; the server looks through all lines that it has.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { AuditLine } from "../contract";
import { plain, present } from "../format";
import { asCallError } from "../live";
import { Badge, Empty, Facts, RequestId, Trouble, Waiting, When } from "../parts/bits";
import { Dialog } from "../parts/dialog";
import { Table } from "../parts/table";
import { query, setQuery } from "../router";
import { call, reconnects, type CallError } from "../rpc";
import { may } from "../session";
import type { State } from "../states";
import { Page } from "./frame";

const PAGE_SIZE = 200;
/** Time after the last key before the server is asked. */
const TYPING_MS = 300;
const FILTERS = ["text", "who", "outcome", "since"] as const;
const SPANS: [string, number, string][] = [
  ["1h", 3600, "Last hour"], ["1d", 86_400, "Last day"], ["7d", 604_800, "Last 7 days"], ["30d", 2_592_000, "Last 30 days"],
];

const outcome = (line: AuditLine): State => {
  if (line.outcome === "ok") return { word: "done", tone: "good" };
  return line.outcome === "refused" ? { word: "refused", tone: "warn" } : { word: "failed", tone: "bad" };
};

/** "AppInstApi/CreateAppInst" of a full name; what is no call, such as "user.add", is short already. */
const short = (method = "") => (method.includes("/") ? method.split(".").pop() ?? "" : method);

/** A call with what it did to identities, which the log tells in lines of their own. */
export interface Act extends AuditLine { acts: AuditLine[] }

/** Puts together the lines of one request. */
export function merged(lines: AuditLine[]): Act[] {
  const isCall = (line: AuditLine) => (line.method ?? "").includes("/");
  const calls = new Map<string, Act>();
  for (const line of lines) if (line.requestId && isCall(line)) calls.set(line.requestId, { ...line, acts: [] });
  const all: Act[] = [];
  for (const line of lines) {
    const call = line.requestId ? calls.get(line.requestId) : undefined;
    if (!call) all.push({ ...line, acts: [] });
    else if (!isCall(line)) call.acts.push(line);
    else if (call.id === line.id) all.push(call);
    else all.push({ ...line, acts: [] });
  }
  // Nobody calls Login; who it was is known once it is done.
  return all.map((one) => ({
    ...one, why: one.why || one.acts.find((act) => act.why)?.why,
    who: one.who && one.who !== "nobody" ? one.who : one.acts.find((act) => act.who)?.who || one.who,
  }));
}

/** Begin of a span such as "7d"; a time stays what it is. */
function begin(since: string): string | undefined {
  const seconds = SPANS.find(([name]) => name === since)?.[1];
  if (seconds) return new Date(present() - seconds * 1000).toISOString();
  const at = Date.parse(since);
  return Number.isFinite(at) ? new Date(at).toISOString() : undefined;
}

function filters() {
  const [text = "", who = "", chosen = "", since = ""] = FILTERS.map((name) => query.value.get(name) ?? "");
  return { text: text.trim(), who: who.trim(), outcome: chosen, since: begin(since) };
}

export function AuditPage() {
  const [lines, setLines] = useState<AuditLine[]>();
  const [next, setNext] = useState("");
  const [error, setError] = useState<CallError>();
  const [open, setOpen] = useState<Act>();
  const [turn, setTurn] = useState(0);
  const wanted = FILTERS.map((name) => query.value.get(name) ?? "").join("\n");
  const load = async (token: string, signal?: AbortSignal) => {
    const request = { ...filters(), pageSize: PAGE_SIZE, ...(token ? { pageToken: token } : {}) };
    const reply = await call("selvage.dashboard.DashboardService/ListAudit", request, { signal });
    setLines((old) => (token ? [...(old ?? []), ...(reply.lines ?? [])] : reply.lines ?? []));
    setNext(reply.nextPageToken ?? "");
    setError(undefined);
  };
  useEffect(() => {
    const abort = new AbortController();
    load("", abort.signal).catch((failure: unknown) => !abort.signal.aborted && setError(asCallError(failure)));
    return () => abort.abort();
  }, [wanted, turn, reconnects.value]);
  const acts = useMemo(() => merged(lines ?? []), [lines]);
  const again = () => setTurn((old) => old + 1);
  const older = () => void load(next).catch((failure: unknown) => setError(asCallError(failure)));
  return (
    <Page title="Audit" actions={<button type="button" class="quiet" onClick={again} data-testid="audit-again">Refresh</button>}>
      <p class="soft lead">{may.admin() ? "Every call that changed something, tried to, or was refused." : "Your own calls that changed something, tried to, or were refused."}</p>
      <Filters known={lines ?? []} />
      <Trouble error={error} retry={again} />
      {!lines ? !error && <Waiting /> : (
        <Table label="Audit" rows={acts} id={(one) => one.id ?? ""} empty={<None found={wanted.trim() !== ""} more={next !== ""} />} columns={[
          { title: "Call", value: (one) => short(one.method), show: (one) => <><button type="button" class="link" onClick={() => setOpen(one)}>{plain(short(one.method), 60)}</button><span class="only-narrow soft fine">{plain(one.who, 40)}, <When time={one.time} /></span></> },
          { title: "Who", value: (one) => one.who ?? "", wide: true },
          { title: "Outcome", value: (one) => `${outcome(one).word} ${one.code ?? ""}`, show: (one) => <Badge state={outcome(one)} title={one.code} /> },
          { title: "When", value: (one) => one.time ?? "", show: (one) => <When time={one.time} />, wide: true },
          { title: "From", value: (one) => one.peer ?? "", wide: true },
          { title: "Request", value: (one) => one.request || one.why || "", show: (one) => <span class="mono soft">{plain(one.request || one.why, 30)}</span>, wide: true },
          { title: "Request id", value: (one) => one.requestId ?? "", show: (one) => <span class="mono soft">{plain(one.requestId?.slice(0, 8))}</span>, wide: true },
        ]} />
      )}
      {next && <p class="pager"><button type="button" class="quiet" onClick={older}>Older lines</button></p>}
      {open && <Line line={open} close={() => setOpen(undefined)} />}
    </Page>
  );
}

function None({ found, more }: { found: boolean; more: boolean }) {
  if (!found) return <Empty title="Nothing yet">Every change shows up here, with who made it.</Empty>;
  if (more) return <p class="nothing" data-testid="empty">No match among the newest lines. <b>Older lines</b> searches further back.</p>;
  const all = () => FILTERS.forEach((name) => setQuery(name, ""));
  return (
    <Empty title="No matching lines">
      Calls that only read leave a line only when they are refused. A call made just now can take a second to appear.{" "}
      <button type="button" class="link" onClick={all}>Show all lines</button>
    </Empty>
  );
}

function Filters({ known }: { known: AuditLine[] }) {
  const names = [...new Set(known.map(({ who }) => who ?? ""))].filter(Boolean).sort();
  const chosen = (name: (typeof FILTERS)[number]) => query.value.get(name) ?? "";
  const since = chosen("since");
  return (
    <div class="tools sieve" role="search" aria-label="Audit lines">
      <Search />
      {may.admin() && (
        <>
          <label class="unseen" for="who">Who</label>
          <input id="who" class="narrow" type="search" list="who-list" placeholder="Anybody" autocomplete="off" spellcheck={false} value={chosen("who")} data-testid="audit-who"
            onChange={(event) => setQuery("who", event.currentTarget.value)} />
          <datalist id="who-list">{names.map((one) => <option key={one} value={one} />)}</datalist>
        </>
      )}
      <label class="unseen" for="outcome">Outcome</label>
      <select id="outcome" class="narrow" value={chosen("outcome")} onChange={(event) => setQuery("outcome", event.currentTarget.value)} data-testid="audit-outcome">
        <option value="">All outcomes</option><option value="ok">Done</option><option value="failed">Failed</option><option value="refused">Refused</option>
      </select>
      <label class="unseen" for="since">Since</label>
      <select id="since" class="narrow" value={since} onChange={(event) => setQuery("since", event.currentTarget.value)} data-testid="audit-since">
        <option value="">Any time</option>
        {SPANS.map(([name, , words]) => <option key={name} value={name}>{words}</option>)}
        {since && !SPANS.some(([name]) => name === since) && <option value={since}>Since {plain(since, 40)}</option>}
      </select>
    </div>
  );
}

/** Text to look for; the server is asked when nobody has typed for a moment. */
function Search() {
  const text = query.value.get("text") ?? "";
  const [typed, setTyped] = useState(text);
  const timer = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  useEffect(() => setTyped(text), [text]);
  const look = (value: string, wait: number) => {
    setTyped(value);
    clearTimeout(timer.current);
    timer.current = window.setTimeout(() => setQuery("text", value), wait);
  };
  const onKey = (event: KeyboardEvent & { currentTarget: HTMLInputElement }) => {
    if (event.key === "Enter") look(event.currentTarget.value, 0);
    if (event.key !== "Escape") return;
    look("", 0);
    event.currentTarget.blur();
  };
  return (
    <div class="filter">
      <label class="unseen" for="filter">Search requests, reasons and request ids</label>
      <input id="filter" data-testid="audit-text" type="search" placeholder="Search, also by request id" autocomplete="off" spellcheck={false}
        value={typed} onInput={(event) => look(event.currentTarget.value, TYPING_MS)} onKeyDown={onKey} />
      <kbd aria-hidden="true">/</kbd>
    </div>
  );
}

function Line({ line, close }: { line: Act; close: () => void }) {
  return (
    <Dialog title={plain(short(line.method), 100)} wide close={close} testid="audit-line">
      <Facts items={[["Who", plain(line.who)], ["When", <When time={line.time} />], ["From", plain(line.peer)], ["By", line.protocol], ["Method", <code>{plain(line.method)}</code>],
        ["Did", line.acts.map((act) => plain([act.method, act.request].filter(Boolean).join(" "), 120)).join(", ")],
        ["Outcome", <><Badge state={outcome(line)} /> {plain(line.code)}</>], ["Why", plain(line.why, 500)], ["Request id", line.requestId && <RequestId id={line.requestId} leave={close} />]]} />
      {line.request && <pre tabIndex={0}>{plain(line.request, 4000)}</pre>}
    </Dialog>
  );
}
