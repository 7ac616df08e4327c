// A shell in the page.
import type { FitAddon } from "@xterm/addon-fit";
import type { Terminal as XTerminal } from "@xterm/xterm";
import { useEffect, useRef, useState } from "preact/hooks";
import type { AppInst } from "../contract";
import { plain } from "../format";
import { lazy } from "../lazy";
import { asCallError } from "../live";
import type { CallError } from "../rpc";
import { talk } from "../talk";
import { Glyph, Trouble } from "./bits";
import { Choice } from "./form";

interface Library {
  Terminal: typeof XTerminal;
  FitAddon: typeof FitAddon;
}

const colour = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name);

/** A theme from the colours of the page; the terminal itself stays dark. */
function colours() {
  return { background: "#0d1217", foreground: "#e6e9ec", cursor: "#efb252", selectionBackground: "#2f5c6b" };
}

export function Shell({ instance }: { instance: AppInst }) {
  const containers = instance.runtimeInfo?.containerIds ?? [];
  const [container, setContainer] = useState("");
  const [turn, setTurn] = useState(0);
  return (
    <>
      {containers.length > 1 && (
        <Choice label="Container" value={container} set={setContainer} options={containers.map((name, at) => ({ value: at ? name : "", text: name }))} />
      )}
      <Session key={`${container} ${turn}`} instance={instance} container={container} again={() => setTurn(turn + 1)} />
    </>
  );
}

function Session({ instance, container, again }: { instance: AppInst; container: string; again: () => void }) {
  const box = useRef<HTMLDivElement>(null);
  const [state, setState] = useState<"opening" | "open" | string>("opening");
  const [error, setError] = useState<CallError>();
  useEffect(() => {
    const abort = new AbortController();
    let cleanup = () => {};
    const run = async () => {
      const { Terminal, FitAddon } = await lazy<Library>("terminal");
      if (abort.signal.aborted || !box.current) return;
      const terminal = new Terminal({ fontFamily: colour("--mono"), fontSize: 14, theme: colours(), cursorBlink: true, scrollback: 5000, screenReaderMode: false });
      const fit = new FitAddon();
      terminal.loadAddon(fit);
      terminal.open(box.current);
      fit.fit();
      const watch = new ResizeObserver(() => fit.fit());
      watch.observe(box.current);
      cleanup = () => {
        watch.disconnect();
        terminal.dispose();
      };
      const { send, resize } = await talk({ appInstKey: instance.key, words: ["sh"], ...(container ? { containerId: container } : {}) }, [terminal.cols, terminal.rows], {
        data: (bytes) => terminal.write(bytes),
        ended: (code, reason) => setState(code === undefined ? `The shell was disconnected: ${reason}.` : `The shell ended with code ${code}${reason ? `: ${reason}` : ""}.`),
      }, abort.signal);
      terminal.onData((text) => send(text));
      terminal.onResize(({ cols, rows }) => resize(cols, rows));
      terminal.focus();
      setState((old) => (old === "opening" ? "open" : old));
    };
    run().catch((failure: unknown) => abort.signal.aborted || setError(asCallError(failure)));
    return () => {
      abort.abort();
      cleanup();
    };
  }, []);
  const over = state !== "open" && state !== "opening";
  return (
    <>
      <p class="row shell-state" role="status" data-testid="shell-state">
        {error ? null : state === "opening" ? "Opening a shell …" : over ? <><Glyph tone="off" />{plain(state, 300)}</> : <><Glyph tone="good" />Connected. What you type runs in the instance.</>}
        {(over || error) && <button type="button" class="quiet small" onClick={again} data-testid="shell-again">Open again</button>}
      </p>
      <Trouble error={error} />
      <div class="shell-box" ref={box} data-testid="terminal" />
    </>
  );
}
