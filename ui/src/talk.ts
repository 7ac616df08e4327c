// The conversation with a command in an instance: the web socket of
// docs/shell.md.
import type { ExecRequest } from "./contract";
import { call, CallError } from "./rpc";

export interface Talk {
  send: (bytes: Uint8Array<ArrayBuffer> | string) => void;
  resize: (columns: number, rows: number) => void;
  close: () => void;
}

export interface Hearer {
  data: (bytes: Uint8Array) => void;
  /** How it ended: an exit code, or why the line broke. */
  ended: (code: number | undefined, reason: string) => void;
}

/** Begins a command or a log. `size` is that of the terminal; without one there is none. */
export async function talk(request: ExecRequest, size: [number, number] | undefined, hearer: Hearer): Promise<Talk> {
  const method = "edgeproto.ExecApi/RunCommand";
  const { answer, err } = await call(method, { ...request, terminal: size !== undefined });
  if (err || !answer) throw new CallError("unavailable", err || "the cloudlet did not answer", method);
  const socket = new WebSocket(here(answer));
  socket.binaryType = "arraybuffer";
  const control = (message: unknown) => socket.readyState === WebSocket.OPEN && socket.send(JSON.stringify(message));
  let over = false;
  const end = (code: number | undefined, reason: string) => {
    if (!over) hearer.ended(code, reason);
    over = true;
  };
  socket.onopen = () => {
    control({ resize: size ?? [0, 0] });
    if (!size) control({ end: true });
  };
  socket.onmessage = ({ data }) => {
    if (typeof data !== "string") return hearer.data(new Uint8Array(data as ArrayBuffer));
    const { exit, reason } = JSON.parse(data) as { exit?: number; reason?: string };
    if (exit !== undefined) end(exit, reason ?? "");
  };
  socket.onclose = ({ reason }) => end(undefined, reason || "the connection broke off");
  return {
    send: (bytes) => socket.readyState === WebSocket.OPEN && socket.send(typeof bytes === "string" ? new TextEncoder().encode(bytes) : bytes),
    resize: (columns, rows) => control({ resize: [columns, rows] }),
    close: () => {
      over = true;
      socket.close();
    },
  };
}

/** The same place, by the name under which this page was opened: the session is good there. */
function here(answer: string): string {
  const { pathname, search } = new URL(answer);
  return `${location.protocol === "https:" ? "wss:" : "ws:"}//${location.host}${pathname}${search}`;
}
