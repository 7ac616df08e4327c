// The overview as the server pushes it: everything once, then what changes.
import { computed, signal } from "@preact/signals";
import type { Happening, Overview, OverviewUpdate, Problem } from "./contract";
import { present } from "./format";
import { asCallError, pushed, refreshAll } from "./live";
import { checkServer, reachable, reconnects, stream, type CallError } from "./rpc";
import { me } from "./session";

export const overview = signal<Overview | undefined>(undefined);
export const overviewError = signal<CallError | undefined>(undefined);
/** When the server was last heard. */
export const heard = signal(0);
export const happenings = signal<Happening[]>([]);
const problemsById = signal<Map<string, Problem>>(new Map());

const RANK = { CRITICAL: 3, WARNING: 2, NOTICE: 1, OK: 0 };
export const problems = computed(() => [...problemsById.value.values()].sort((a, b) =>
  RANK[b.severity ?? "OK"] - RANK[a.severity ?? "OK"] || Date.parse(a.since ?? "") - Date.parse(b.since ?? "")));

const KEPT = 200;

function apply(update: OverviewUpdate, first: boolean): void {
  heard.value = present();
  pushed.value = Date.now();
  if (first) {
    overview.value = { ...update.overview };
    problemsById.value = new Map((update.overview?.problems ?? []).map((problem) => [problem.id ?? "", problem]));
  } else if (update.changed?.length) {
    const next: Overview = { ...overview.peek() };
    for (const name of update.changed.filter((field) => field !== "problems")) {
      const field = name.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase()) as keyof Overview;
      (next as Record<string, unknown>)[field] = update.overview?.[field];
    }
    overview.value = next;
  }
  if (update.problems?.length || update.problemsEnded?.length) {
    const next = new Map(problemsById.peek());
    for (const problem of update.problems ?? []) next.set(problem.id ?? "", problem);
    for (const id of update.problemsEnded ?? []) next.delete(id);
    problemsById.value = next;
  }
  if (update.events?.length) {
    happenings.value = [...update.events.slice().reverse(), ...happenings.peek()].slice(0, KEPT);
    // Something changed somewhere: whatever list is open shows it at once.
    refreshAll();
  }
}

/** Watches for as long as somebody is logged in. */
export function watchOverview(): () => void {
  let abort = new AbortController();
  let timer = 0;
  const run = async () => {
    abort.abort();
    clearTimeout(timer);
    const mine = new AbortController();
    abort = mine;
    if (!me.peek() || !reachable.peek()) return;
    let first = true;
    try {
      const since = new Date(present() - 3_600_000).toISOString();
      for await (const update of stream("selvage.dashboard.DashboardService/WatchOverview", { eventsSince: since }, { signal: mine.signal })) {
        if (first) happenings.value = [];
        apply(update, first);
        overviewError.value = undefined;
        first = false;
      }
    } catch (error) {
      if (mine.signal.aborted) return;
      overviewError.value = asCallError(error);
      if (overviewError.value.code === "unavailable") await checkServer();
    }
    if (!mine.signal.aborted && reachable.peek()) timer = window.setTimeout(run, 3000);
  };
  let known: string | undefined;
  const who = me.subscribe((person) => {
    if (person?.name === known) return;
    known = person?.name;
    void run();
  });
  // A page that is left breaks no connection.
  addEventListener("pagehide", () => abort.abort());
  addEventListener("pageshow", ({ persisted }) => persisted && void run());
  const back = reconnects.subscribe((count) => count > 0 && void run());
  return () => {
    abort.abort();
    clearTimeout(timer);
    who();
    back();
  };
}
