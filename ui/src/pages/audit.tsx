// Who did what.
import { useEffect, useState } from "preact/hooks";
import type { AuditLine } from "../contract";
import { plain } from "../format";
import { asCallError } from "../live";
import { Badge, Empty, Facts, Trouble, Waiting, When } from "../parts/bits";
import { Dialog } from "../parts/dialog";
import { Filter, Table } from "../parts/table";
import { query, setQuery } from "../router";
import { call, reconnects, type CallError } from "../rpc";
import { may } from "../session";
import type { State } from "../states";
import { Page } from "./frame";

const outcome = (line: AuditLine): State => {
  if (line.outcome === "ok") return { word: "done", tone: "good" };
  return line.outcome === "refused" ? { word: "refused", tone: "warn" } : { word: "failed", tone: "bad" };
};

/** "AppInstApi/CreateAppInst" of a full name; what is no call, such as "user.add", is short already. */
const short = (method = "") => (method.includes("/") ? method.split(".").pop() ?? "" : method);

export function AuditPage() {
  const [lines, setLines] = useState<AuditLine[]>();
  const [next, setNext] = useState("");
  const [error, setError] = useState<CallError>();
  const [open, setOpen] = useState<AuditLine>();
  const chosen = query.value.get("outcome") ?? "";
  const load = async (token: string, signal?: AbortSignal) => {
    const reply = await call("selvage.dashboard.DashboardService/ListAudit", { outcome: chosen, pageSize: 200, ...(token ? { pageToken: token } : {}) }, { signal });
    setLines((old) => (token ? [...(old ?? []), ...(reply.lines ?? [])] : reply.lines ?? []));
    setNext(reply.nextPageToken ?? "");
    setError(undefined);
  };
  useEffect(() => {
    const abort = new AbortController();
    load("", abort.signal).catch((failure: unknown) => !abort.signal.aborted && setError(asCallError(failure)));
    return () => abort.abort();
  }, [chosen, reconnects.value]);
  const choice = (
    <>
      <label class="unseen" for="outcome">Outcome</label>
      <select id="outcome" class="narrow" value={chosen} onChange={(event) => setQuery("outcome", event.currentTarget.value)} data-testid="audit-outcome">
        <option value="">All outcomes</option><option value="ok">Done</option><option value="failed">Failed</option><option value="refused">Refused</option>
      </select>
    </>
  );
  return (
    <Page title="Audit" actions={<><Filter what="these lines" />{choice}</>}>
      <p class="soft lead">{may.admin() ? "Every call that changed something, tried to, or was refused." : "Your own calls that changed something, tried to, or were refused."}</p>
      <Trouble error={error} retry={() => load("")} />
      {!lines ? !error && <Waiting /> : (
        <Table label="Audit" rows={lines} id={(one) => one.id ?? ""} empty={<Empty title="Nothing yet">As soon as somebody changes something it stands here.</Empty>} columns={[
          { title: "What", value: (one) => short(one.method), show: (one) => <button type="button" class="link" onClick={() => setOpen(one)}>{plain(short(one.method), 60)}</button> },
          { title: "Who", value: (one) => one.who ?? "" },
          { title: "Outcome", value: (one) => `${outcome(one).word} ${one.code ?? ""}`, show: (one) => <Badge state={outcome(one)} title={one.code} /> },
          { title: "When", value: (one) => one.time ?? "", show: (one) => <When time={one.time} /> },
          { title: "From", value: (one) => one.peer ?? "", wide: true },
          { title: "Request", value: (one) => one.request || one.why || "", show: (one) => <span class="mono soft">{plain(one.request || one.why, 90)}</span>, wide: true },
        ]} />
      )}
      {next && <p class="pager"><button type="button" class="quiet" onClick={() => void load(next).catch((failure: unknown) => setError(asCallError(failure)))}>Older lines</button></p>}
      {open && (
        <Dialog title={plain(short(open.method), 100)} wide close={() => setOpen(undefined)} testid="audit-line">
          <Facts items={[["Who", plain(open.who)], ["When", <When time={open.time} />], ["From", plain(open.peer)], ["By", open.protocol], ["Method", <code>{plain(open.method)}</code>],
            ["Outcome", <><Badge state={outcome(open)} /> {plain(open.code)}</>], ["Why", plain(open.why, 500)], ["Request id", plain(open.requestId)]]} />
          {open.request && <pre tabIndex={0}>{plain(open.request, 4000)}</pre>}
        </Dialog>
      )}
    </Page>
  );
}
