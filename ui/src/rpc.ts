// Calls to the server: Connect's JSON, with the session cookie. Requests and
// replies have the types of contract.ts.
import { signal } from "@preact/signals";
import { isAttended } from "./attention";
import type { Method, Request, Reply } from "./contract";
import { followClock } from "./format";

/** A call that failed, in the server's words. */
export class CallError extends Error {
  constructor(
    readonly code: string,
    message: string,
    readonly method: string,
    readonly requestId = "",
  ) {
    super(message);
  }
}

/** A reply that began and was cut off: what the call began may go on. */
export class BrokenOff extends CallError {
  constructor(method: string, requestId = "") {
    super("unavailable", "The connection to the server broke off.", method, requestId);
  }
}

/** The server did not say anything, or not all of it: an error of its own has a request id. */
export const isUnanswered = (error: unknown) =>
  error instanceof BrokenOff || (error instanceof CallError && error.code === "unavailable" && !error.requestId);

/** Whether the server can be reached; the page says so when it cannot. */
export const reachable = signal(true);
/** Grows when the server is back, so that what was open begins anew. */
export const reconnects = signal(0);
/** Called when the server says that the session has ended. */
export const sessionEnded = signal(false);

export interface CallOptions {
  signal?: AbortSignal;
  headers?: Record<string, string>;
}

/** One request, one reply. */
export async function call<M extends Method>(method: M, request: Request<M>, options: CallOptions = {}): Promise<Reply<M>> {
  const response = await send(method, "application/json", JSON.stringify(request), options);
  if (!response.ok) throw await failure(method, response);
  return (await response.json().catch(() => {
    throw new BrokenOff(method, requestId(response));
  })) as Reply<M>;
}

/** One request, replies as they come. */
export async function* stream<M extends Method>(method: M, request: Request<M>, options: CallOptions = {}): AsyncGenerator<Reply<M>> {
  const response = await send(method, "application/connect+json", envelope(JSON.stringify(request)), options);
  const type = response.headers.get("content-type") ?? "";
  if (!response.body || !type.startsWith("application/connect+json")) throw await failure(method, response);
  for await (const [last, text] of envelopes(response.body, method)) {
    const value = JSON.parse(text || "{}");
    if (!last) yield value as Reply<M>;
    else if (value.error) throw failed(method, value.error.code, value.error.message, requestId(response));
    else return;
  }
  throw new BrokenOff(method, requestId(response));
}

/** All replies of a stream. */
export async function list<M extends Method>(method: M, request: Request<M>, options: CallOptions = {}): Promise<Reply<M>[]> {
  const all: Reply<M>[] = [];
  for await (const one of stream(method, request, options)) all.push(one);
  return all;
}

/** Methods that may be called again when no reply came: they change nothing, or begin a session that then nobody uses. */
const isRepeatable = (method: string) => /\/(Get|List|Show|Watch|Follow|Find|WhoAmI|Plan|Containers|Dmesg|ServiceList|Login)/.test(method);
const ATTEMPTS = 3;
/** Says that nobody is there: such a call does not keep a session alive. */
const UNATTENDED = { "X-Selvage-Unattended": "1" };

async function send(method: string, type: string, body: BodyInit, { signal: abort, headers }: CallOptions): Promise<Response> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      const response = await fetch(`/${method}`, {
        method: "POST", body, signal: abort, credentials: "same-origin", cache: "no-store",
        headers: { "Content-Type": type, "Connect-Protocol-Version": "1", ...(isAttended() ? {} : UNATTENDED), ...headers },
      });
      reachable.value || returned();
      followClock(response.headers.get("date"));
      return response;
    } catch (error) {
      if (abort?.aborted) throw error;
      await checkServer();
      if (reachable.value && isRepeatable(method) && attempt < ATTEMPTS) continue;
      throw new CallError("unavailable", reachable.value ? "The connection broke off; try again." : "The server cannot be reached.", method);
    }
  }
}

async function failure(method: string, response: Response): Promise<CallError> {
  const text = await response.text();
  let problem: { code?: string; message?: string } = {};
  try {
    problem = JSON.parse(text);
  } catch {
    problem = { message: text.slice(0, 400) };
  }
  return failed(method, problem.code ?? "unknown", problem.message || response.statusText, requestId(response));
}

function failed(method: string, code: string, message: string, id: string): CallError {
  if (code === "unauthenticated" && !method.startsWith("services.auth.")) sessionEnded.value = true;
  return new CallError(code, message ?? "", method, id);
}

const requestId = (response: Response) => response.headers.get("x-request-id") ?? "";

function envelope(message: string): Uint8Array<ArrayBuffer> {
  const payload = new TextEncoder().encode(message);
  const framed = new Uint8Array(5 + payload.length);
  new DataView(framed.buffer).setUint32(1, payload.length);
  framed.set(payload, 5);
  return framed;
}

/** The messages of a body: whether each is the last, and its text. */
async function* envelopes(body: ReadableStream<Uint8Array>, method: string): AsyncGenerator<[boolean, string]> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = new Uint8Array(0);
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(() => {
        throw new BrokenOff(method);
      });
      if (done) return;
      const bytes = rest.length ? joined(rest, value) : value;
      let at = 0;
      while (bytes.length - at >= 5) {
        const length = new DataView(bytes.buffer, bytes.byteOffset + at).getUint32(1);
        if (bytes.length - at < 5 + length) break;
        yield [(bytes[at]! & 2) !== 0, decoder.decode(bytes.subarray(at + 5, at + 5 + length))];
        at += 5 + length;
      }
      rest = bytes.slice(at);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function joined(left: Uint8Array, right: Uint8Array): Uint8Array<ArrayBuffer> {
  const both = new Uint8Array(left.length + right.length);
  both.set(left);
  both.set(right, left.length);
  return both;
}

/** Says that the server is away, and asks for it until it is back. */
function lost(): void {
  if (!reachable.value) return;
  reachable.value = false;
  probe(500);
}

function probe(wait: number): void {
  setTimeout(async () => {
    const alive = await fetch("/healthz", { cache: "no-store" }).then((response) => response.ok, () => false);
    if (alive) returned();
    else if (!reachable.value) probe(Math.min(wait * 1.5, 5000));
  }, wait);
}

function returned(): void {
  if (reachable.value) return;
  reachable.value = true;
  reconnects.value += 1;
}

/** Something broke off: is the server still there? A change of this machine's own network breaks connections too. */
export async function checkServer(): Promise<void> {
  const alive = await fetch("/healthz", { cache: "no-store" }).then((response) => response.ok, () => false);
  if (!alive) lost();
}
