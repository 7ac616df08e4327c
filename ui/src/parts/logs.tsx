// What an instance writes, as it writes it.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { AppInst } from "../contract";
import { plain, plural } from "../format";
import { asCallError } from "../live";
import { reconnects, type CallError } from "../rpc";
import { talk } from "../talk";
import { Trouble } from "./bits";

const KEPT = 5000;
const NOTHING_YET = "Nothing has been written yet.";
/** When it is opened anew: soon where it broke off, later where it ended or was refused, and ever later while there is nothing: each time is a line of the audit. */
const RETRY_INTERVAL_MS = 1000;
const LOOK_INTERVAL_MS = 4000;
const LONGEST_INTERVAL_MS = 120_000;

/** Lines of a stream of bytes, the last of which may go on. */
class Lines {
  private rest = "";
  private readonly decoder = new TextDecoder();

  add(bytes: Uint8Array): string[] {
    const parts = (this.rest + this.decoder.decode(bytes, { stream: true })).split(/\r?\n/);
    this.rest = parts.pop() ?? "";
    return parts;
  }
}

export function Logs({ instance }: { instance: AppInst }) {
  const [lines, setLines] = useState<string[]>([]);
  const [search, setSearch] = useState("");
  const [follow, setFollow] = useState(true);
  const [open, setOpen] = useState(false);
  const [ended, setEnded] = useState("");
  const [error, setError] = useState<CallError>();
  const [turn, setTurn] = useState(0);
  const looks = useRef(0);
  const back = reconnects.value;
  useEffect(() => {
    const abort = new AbortController();
    const reader = new Lines();
    let [fresh, first, retry] = [[] as string[], true, 0];
    // Drawn at most ten times a second, however fast it is written.
    const timer = setInterval(() => {
      if (fresh.length === 0) return;
      // Lines of before stay until those of a new connection are there.
      const [more, anew] = [fresh, first];
      [fresh, first] = [[], false];
      setLines((old) => [...(anew ? [] : old), ...more].slice(-KEPT));
    }, 100);
    const again = (wait: number) => { retry = window.setTimeout(() => setTurn((old) => old + 1), wait); };
    const look = () => {
      again(Math.min(LOOK_INTERVAL_MS * 2 ** looks.current, LONGEST_INTERVAL_MS));
      looks.current += 1;
    };
    talk({ appInstKey: instance.key, logs: { follow: true, tail: "1000" } }, undefined, {
      data: (bytes) => {
        looks.current = 0;
        fresh.push(...reader.add(bytes));
      },
      // A log ends with its container; after an update or a crash there is another.
      ended: (code, reason) => {
        setEnded(code === undefined ? `${reason}; connecting again …` : `${reason || "the log has ended"}; waiting for the next one …`);
        if (code === undefined) again(RETRY_INTERVAL_MS);
        else look();
      },
    }, abort.signal).then(() => {
      if (abort.signal.aborted) return;
      setOpen(true);
      setEnded("");
      setError(undefined);
    }, (failure: unknown) => {
      if (abort.signal.aborted) return;
      setOpen(false);
      setError(asCallError(failure));
      look();
    });
    return () => {
      abort.abort();
      clearInterval(timer);
      clearTimeout(retry);
    };
  }, [JSON.stringify(instance.key), back, turn]);
  useEffect(() => {
    setLines([]);
    setOpen(false);
  }, [JSON.stringify(instance.key)]);
  const shown = useMemo(() => {
    const word = search.toLowerCase();
    return word ? lines.filter((text) => text.toLowerCase().includes(word)) : lines;
  }, [lines, search]);
  const empty = lines.length > 0 ? "No line has these words." : open ? NOTHING_YET : error ? "" : "Connecting …";
  return (
    <div class="logs">
      <div class="row">
        <label class="unseen" for="log-search">Search the log</label>
        <input id="log-search" type="search" placeholder="Search the log" value={search} onInput={(event) => setSearch(event.currentTarget.value)} data-testid="log-search" />
        <label class="row"><input type="checkbox" checked={follow} onChange={(event) => setFollow(event.currentTarget.checked)} data-testid="log-follow" /> Follow</label>
        <span class="soft fine" role="status">{search ? `${shown.length} of ${plural(lines.length, "line")}` : plural(lines.length, "line")}{ended && ` · ${plain(ended)}`}</span>
      </div>
      <Trouble error={error} />
      <Page lines={shown} follow={follow} empty={empty} />
    </div>
  );
}

/** The text itself; it stays at its end while it is followed. */
export function Page({ lines, follow, label = "Log", empty = NOTHING_YET }: { lines: string[]; follow: boolean; label?: string; empty?: string }) {
  const box = useRef<HTMLPreElement>(null);
  useEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines, follow]);
  return (
    <pre class="log" ref={box} tabIndex={0} role="log" aria-live="off" aria-label={label} data-testid="log">
      {lines.length === 0 ? empty : lines.join("\n")}
    </pre>
  );
}
