// Data that is kept fresh while somebody looks at it.
import { signal, type Signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { BrokenOff, CallError, reachable, reconnects } from "./rpc";
import { me } from "./session";

/** Something to show: the last good data, and why there is no newer. */
export interface Live<T> {
  data: T | undefined;
  error: CallError | undefined;
  refresh: () => Promise<void>;
}

/** When the server last pushed something; while it does, lists need not be asked for so often. */
export const pushed = signal(0);
const PUSH_LASTS = 20_000;
const RELAXED = 4;

/** Data that several parts of a page share. */
export class Resource<T> {
  readonly data: Signal<T | undefined> = signal(undefined);
  readonly error: Signal<CallError | undefined> = signal(undefined);
  private users = 0;
  private timer = 0;
  private running: Promise<void> | undefined;
  private again = false;

  constructor(private readonly load: () => Promise<T>, private readonly period = 5000) {
    all.add(this as Resource<unknown>);
  }

  /** For a component: fresh for as long as the component is there. */
  use(): Live<T> {
    useEffect(() => {
      this.users += 1;
      if (this.users === 1) void this.refresh();
      return () => {
        this.users -= 1;
        if (this.users === 0) clearTimeout(this.timer);
      };
    }, [this]);
    return { data: this.data.value, error: this.error.value, refresh: this.refresh };
  }

  /** Loads now. One that is asked for meanwhile is loaded afterwards, so that it has what was just changed. */
  refresh = (): Promise<void> => {
    if (this.running) {
      this.again = true;
      return this.running;
    }
    this.running = this.once().finally(() => {
      this.running = undefined;
      clearTimeout(this.timer);
      if (this.again) {
        this.again = false;
        return this.refresh();
      }
      if (this.users > 0) this.timer = window.setTimeout(this.tick, this.wait());
    });
    return this.running;
  };

  forget(): void {
    this.data.value = undefined;
    this.error.value = undefined;
  }

  get used(): boolean {
    return this.users > 0;
  }

  private wait(): number {
    return Date.now() - pushed.peek() < PUSH_LASTS ? this.period * RELAXED : this.period;
  }

  private tick = () => {
    if (document.hidden || !reachable.peek()) this.timer = window.setTimeout(this.tick, this.wait());
    else void this.refresh();
  };

  private async once(): Promise<void> {
    try {
      this.data.value = await this.load();
      this.error.value = undefined;
    } catch (error) {
      this.error.value = asCallError(error);
    }
  }
}

const all = new Set<Resource<unknown>>();

/** Loads again whatever is shown now. */
export function refreshAll(): void {
  for (const resource of all) if (resource.used) void resource.refresh();
}

let known: string | undefined;
me.subscribe((who) => {
  const name = who ? `${who.name} ${JSON.stringify(who.grants)}` : undefined;
  // What one user saw is not for the next one.
  if (known !== undefined && name !== known) for (const resource of all) resource.forget();
  known = name;
});
reconnects.subscribe((count) => count > 0 && refreshAll());

/** Data of one component, loaded again when a dependency changes. */
export function useLoad<T>(load: (abort: AbortSignal) => Promise<T>, dependencies: unknown[], period = 0): Live<T> {
  const [state, setState] = useState<{ data?: T; error?: CallError }>({});
  const [turn, setTurn] = useState(0);
  const back = reconnects.value;
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    const run = async () => {
      try {
        const data = await load(abort.signal);
        if (!abort.signal.aborted) setState({ data });
      } catch (error) {
        if (!abort.signal.aborted) setState((old) => ({ ...old, error: asCallError(error) }));
      }
      if (period && !abort.signal.aborted) timer = window.setTimeout(run, period);
    };
    void run();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [...dependencies, turn, back]);
  return { data: state.data, error: state.error, refresh: async () => setTurn((old) => old + 1) };
}

const RETRY_INTERVAL_MS = 1000;

/** What a stream says, until the component is gone; begun anew after it broke off, and when the server is back. */
export function useStream<T>(open: (signal: AbortSignal) => AsyncGenerator<T>, hear: (value: T) => void, dependencies: unknown[]): CallError | undefined {
  const [error, setError] = useState<CallError>();
  const [turn, setTurn] = useState(0);
  const back = reconnects.value;
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    const run = async () => {
      for await (const value of open(abort.signal)) {
        setError(undefined);
        hear(value);
      }
    };
    run().catch((failure: unknown) => {
      if (abort.signal.aborted) return;
      setError(asCallError(failure));
      if (failure instanceof BrokenOff) timer = window.setTimeout(() => setTurn((old) => old + 1), RETRY_INTERVAL_MS);
    });
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [...dependencies, turn, back]);
  return error;
}

export function asCallError(error: unknown): CallError {
  return error instanceof CallError ? error : new CallError("unknown", String(error), "");
}
