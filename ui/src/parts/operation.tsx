// Long work as it goes: what was said so far, which step, and a way to stop it.
import { useEffect, useRef, useState } from "preact/hooks";
import type { Operation } from "../contract";
import { runWork, type Work } from "../follow";
import { plain } from "../format";
import { asCallError, refreshAll } from "../live";
import { operationWords } from "../keys";
import { call, type CallError } from "../rpc";
import { operationState } from "../states";
import { Badge, Glyph, Meter, Trouble } from "./bits";
import { note } from "./dialog";

/** Runs a call that streams its progress, and shows it. */
export function Progress({ work, finished, close }: { work: Work; finished: () => void; close: () => void }) {
  const [lines, setLines] = useState<string[]>([]);
  const [state, setState] = useState<"running" | "done" | "failed">("running");
  const [error, setError] = useState<CallError>();
  const operation = useOperation(work, state === "running");
  const end = useRef<HTMLLIElement>(null);
  useEffect(() => {
    const abort = new AbortController();
    const live = () => !abort.signal.aborted;
    const run = async () => {
      try {
        await runWork(work, (lines) => live() && setLines(lines), abort.signal);
        if (live()) setState("done");
        note(`${work.what} is ${work.done}.`);
      } catch (failure) {
        if (live()) setError(asCallError(failure));
        if (live()) setState("failed");
      }
      refreshAll();
    };
    void run();
    return () => abort.abort();
  }, []);
  useEffect(() => end.current?.scrollIntoView({ block: "nearest" }), [lines.length]);
  return (
    <div class="progress" data-testid="progress">
      {operation && (operation.stepsTotal ?? 0) > 0 && state === "running" && (
        <Meter used={operation.stepsDone ?? 0} total={operation.stepsTotal ?? 1} ticks={[2, 2]} label="Steps done" />
      )}
      <ul class="steps" role="log" aria-label="Progress" tabIndex={0}>
        {lines.map((line, at) => (
          <li key={at}><Glyph tone={state === "running" && at === lines.length - 1 ? "busy" : "good"} />{plain(line, 400)}</li>
        ))}
        {state === "running" && lines.length === 0 && <li><Glyph tone="busy" />Starting …</li>}
        {state === "failed" && <li><Glyph tone="bad" />It failed, and what was done so far is undone.</li>}
        <li ref={end} aria-hidden="true" />
      </ul>
      <Trouble error={error} />
      <div class="actions">
        {state === "running" && operation && <Cancel operation={operation} />}
        {state === "running" && <button type="button" class="quiet" onClick={close} data-testid="progress-leave">Continue in the background</button>}
        {state === "done" && <button type="button" onClick={finished} data-testid="progress-done">Continue</button>}
        {state === "failed" && <button type="button" class="quiet" onClick={close}>Back</button>}
      </div>
    </div>
  );
}

/** What is done, and to what. */
export function OperationName({ operation }: { operation: Operation }) {
  const { verb, name, href } = operationWords(operation);
  return <span title={operation.kind}><b>{plain(verb, 60)}</b> {href ? <a href={href}>{plain(name, 120)}</a> : plain(name, 120)}</span>;
}

export function Cancel({ operation }: { operation: Operation }) {
  const [error, setError] = useState<CallError>();
  const cancel = () => call("selvage.operations.OperationService/CancelOperation", { id: operation.id ?? "" }).then(
    () => note("Cancelled; what was done so far is being undone."), (failure: unknown) => setError(asCallError(failure)));
  if (operation.state !== "RUNNING" && operation.state !== "UNDOING") return <Badge state={operationState(operation.state)} />;
  return (
    <>
      <button type="button" class="quiet danger" disabled={operation.cancelling} onClick={() => void cancel()} data-testid="cancel-operation">
        {operation.cancelling || operation.state === "UNDOING" ? "Undoing …" : "Cancel and undo"}
      </button>
      <Trouble error={error} />
    </>
  );
}

/** The operation that a call began, found by its key. */
function useOperation(work: Work, running: boolean): Operation | undefined {
  const [found, setFound] = useState<Operation>();
  useEffect(() => {
    if (!running) return undefined;
    const abort = new AbortController();
    let timer = 0;
    const look = async () => {
      const reply = await call("selvage.operations.OperationService/ListOperations", { active: true }, { signal: abort.signal }).catch(() => undefined);
      if (abort.signal.aborted) return;
      setFound(reply?.operations?.find(work.isMine));
      timer = window.setTimeout(look, 700);
    };
    void look();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [running]);
  return found;
}
