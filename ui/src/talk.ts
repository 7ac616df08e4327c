// The conversation with a command in an instance: the web socket of
// docs/shell.md.
import type { ExecRequest } from "./contract";
import { call, CallError, checkServer, isUnanswered, reachable } from "./rpc";

export interface Talk {
  send: (bytes: Uint8Array<ArrayBuffer> | string) => void;
  resize: (columns: number, rows: number) => void;
  close: () => void;
}

export interface Hearer {
  data: (bytes: Uint8Array) => void;
  /** The end: an exit code, or the reason why the connection broke. */
  ended: (code: number | undefined, reason: string) => void;
}

const METHOD = "edgeproto.ExecApi/RunCommand";
/** Attempts to open one: a change of this machine's network breaks off sockets that are being opened. */
const ATTEMPTS = 4;
const RETRY_INTERVAL_MS = 500;
/** A socket that is not open by then never will be: browsers may leave one pending when their network changes. */
const OPEN_TIMEOUT_MS = 6000;

/**
 * Begins a command or a log; returns once the socket is open, so that nothing
 * that is typed from then on is lost. `size` is that of the terminal; without
 * one there is none.
 */
export async function talk(request: ExecRequest, size: [number, number] | undefined, hearer: Hearer, signal: AbortSignal): Promise<Talk> {
  for (let attempt = 1; ; attempt += 1) {
    const socket = await open({ ...request, terminal: size !== undefined }, hearer, signal);
    if (socket) return conversation(socket, size);
    await checkServer();
    if (attempt === ATTEMPTS || !reachable.value) throw new CallError("unavailable", "the connection could not be opened; try again", METHOD);
    await new Promise((resolve) => setTimeout(resolve, RETRY_INTERVAL_MS * attempt));
  }
}

/**
 * Address of the socket; undefined where no reply came. It may be asked for again
 * then: nothing runs before somebody comes to the socket.
 */
async function ask(request: ExecRequest, signal: AbortSignal): Promise<string | undefined> {
  const reply = await call(METHOD, request, { signal }).catch((error: unknown) => {
    if (signal.aborted || !isUnanswered(error)) throw error;
    return undefined;
  });
  if (!reply) return undefined;
  if (reply.err || !reply.answer) throw new CallError("unavailable", reply.err || "the cloudlet did not answer", METHOD);
  return reply.answer;
}

/** An open socket; undefined where it broke before that. A token is good once, so each attempt asks for one. */
async function open(request: ExecRequest, hearer: Hearer, signal: AbortSignal): Promise<WebSocket | undefined> {
  const answer = await ask(request, signal);
  signal.throwIfAborted();
  if (answer === undefined) return undefined;
  const socket = new WebSocket(here(answer));
  socket.binaryType = "arraybuffer";
  // Browsers complain of a socket that is closed while it is being opened.
  const close = () => socket.readyState === WebSocket.CONNECTING || socket.close();
  signal.addEventListener("abort", close, { once: true });
  return new Promise((resolve) => {
    let opened = false;
    let over = false;
    const timer = setTimeout(() => {
      socket.close();
      resolve(undefined);
    }, OPEN_TIMEOUT_MS);
    const end = (code: number | undefined, reason: string) => {
      if (opened && !over && !signal.aborted) hearer.ended(code, reason);
      over = true;
    };
    socket.onopen = () => {
      opened = true;
      clearTimeout(timer);
      if (signal.aborted) socket.close();
      resolve(socket);
    };
    socket.onmessage = ({ data }) => {
      if (typeof data !== "string") return hearer.data(new Uint8Array(data as ArrayBuffer));
      const { exit, reason } = JSON.parse(data) as { exit?: number; reason?: string };
      if (exit !== undefined) end(exit, reason ?? "");
    };
    socket.onclose = ({ reason }) => {
      clearTimeout(timer);
      end(undefined, reason || "the connection broke off");
      resolve(undefined);
    };
  });
}

function conversation(socket: WebSocket, size: [number, number] | undefined): Talk {
  const control = (message: unknown) => socket.readyState === WebSocket.OPEN && socket.send(JSON.stringify(message));
  control({ resize: size ?? [0, 0] });
  if (!size) control({ end: true });
  return {
    send: (bytes) => socket.readyState === WebSocket.OPEN && socket.send(typeof bytes === "string" ? new TextEncoder().encode(bytes) : bytes),
    resize: (columns, rows) => control({ resize: [columns, rows] }),
    close: () => socket.close(),
  };
}

/** The same address by the name under which this page was opened: the session is good there. */
function here(answer: string): string {
  const { pathname, search } = new URL(answer);
  return `${location.protocol === "https:" ? "wss:" : "ws:"}//${location.host}${pathname}${search}`;
}
