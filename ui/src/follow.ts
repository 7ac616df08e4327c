// Long work that outlives the connection it was begun on: an operation goes on
// when its caller is cut off, so the page finds it again and follows it.
import type { Method, Operation, Request } from "./contract";
import { BrokenOff, call, isUnanswered, stream } from "./rpc";

export type Streaming = Extract<Method, `edgeproto.${string}`>;

export interface Work<M extends Streaming = Streaming> {
  method: M;
  request: Request<M>;
  /** "instance hello on demo/here" */
  what: string;
  /** "created" */
  done: string;
  /** Whether an operation is this one, by kind and key. */
  isMine: (operation: Operation) => boolean;
}

const RETRY_INTERVAL_MS = 1000;
type Lines = AsyncIterable<{ message?: string }>;
type Show = (lines: string[]) => void;

/** Runs a call that streams its progress until the work has ended; throws as the call would. */
export async function runWork(work: Work, show: Show, signal: AbortSignal): Promise<void> {
  try {
    await showAll(stream(work.method, work.request as never) as Lines, show);
  } catch (error) {
    if (!(error instanceof BrokenOff)) throw error;
    const operation = await findAgain(work, signal);
    if (!operation?.id) throw error;
    await followToEnd(operation.id, show, signal);
  }
}

async function showAll(source: Lines, show: Show): Promise<void> {
  const lines: string[] = [];
  for await (const { message } of source) {
    if (message) lines.push(message);
    show([...lines]);
  }
}

/** The newest operation that is this work's, once the server answers. */
async function findAgain(work: Work, signal: AbortSignal): Promise<Operation | undefined> {
  for (;;) {
    try {
      const reply = await call("selvage.operations.OperationService/ListOperations", {}, { signal });
      return reply.operations?.find(work.isMine);
    } catch (error) {
      if (signal.aborted || !isUnanswered(error)) throw error;
    }
    await pause();
  }
}

/** What was said so far comes again, whatever was shown of it. */
async function followToEnd(id: string, show: Show, signal: AbortSignal): Promise<void> {
  for (;;) {
    try {
      return await showAll(stream("selvage.operations.OperationService/FollowOperation", { id }, { signal }), show);
    } catch (error) {
      if (signal.aborted || !isUnanswered(error)) throw error;
    }
    await pause();
  }
}

const pause = () => new Promise((resolve) => setTimeout(resolve, RETRY_INTERVAL_MS));
