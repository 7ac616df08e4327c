// Small things that all pages share.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { ago, exact, now, plain } from "../format";
import type { CallError } from "../rpc";
import { me } from "../session";
import type { State, Tone } from "../states";

/** One shape for each tone, so that nothing is told by colour alone. */
const SHAPES: Record<Tone, string> = {
  good: "M8 1.5a6.5 6.5 0 1 0 0 13a6.5 6.5 0 0 0 0-13zM5 8.2l2.1 2.1L11.2 6",
  busy: "M8 1.5a6.5 6.5 0 1 0 0 13a6.5 6.5 0 0 0 0-13zM8 4.5V8h3",
  warn: "M8 2L15 14H1zM8 6.5v3.2M8 11.6v.6",
  bad: "M5.2 1.5h5.6l3.7 3.7v5.6l-3.7 3.7H5.2l-3.7-3.7V5.2zM5.6 5.6l4.8 4.8M10.4 5.6l-4.8 4.8",
  off: "M8 1.5a6.5 6.5 0 1 0 0 13a6.5 6.5 0 0 0 0-13zM5 8h6",
};

export function Glyph({ tone }: { tone: Tone }) {
  return (
    <svg class={`glyph ${tone}`} viewBox="0 0 16 16" aria-hidden="true"><path d={SHAPES[tone]} /></svg>
  );
}

export function Badge({ state, title }: { state: State; title?: string }) {
  return <span class={`badge ${state.tone}`} title={title && plain(title, 1000)}><Glyph tone={state.tone} />{plain(state.word, 60)}</span>;
}

/** How long ago, with the exact time on hover and for those who listen. */
export function When({ time, fallback = "never" }: { time: string | number | undefined; fallback?: string }) {
  const at = typeof time === "number" ? time : Date.parse(time ?? "");
  if (!Number.isFinite(at)) return <span class="soft">{fallback}</span>;
  return <time dateTime={new Date(at).toISOString()} title={exact(at)}>{ago(at, now.value)}</time>;
}

/** A failed call in words. */
export function Trouble({ error, retry, doing }: { error: CallError | undefined; retry?: () => unknown; doing?: string }) {
  if (!error) return null;
  return (
    <div class="trouble" role="alert" data-testid="trouble">
      <p><strong>{doing ?? TITLES[error.code] ?? "That did not work."}</strong> {plain(error.message, 2000)}</p>
      <p class="fine">
        {error.code}{error.method && ` · ${error.method}`}{error.requestId && <> · request <RequestId id={error.requestId} /></>}
        {retry && <> · <button type="button" class="link" onClick={() => retry()}>Try again</button></>}
      </p>
    </div>
  );
}

/** Id of a request, which leads to its line of the audit log. */
export function RequestId({ id, leave }: { id: string; leave?: () => void }) {
  return me.value ? <a href={`#/audit?text=${encodeURIComponent(id)}`} onClick={leave} data-testid="request-id">{plain(id)}</a> : <>{plain(id)}</>;
}

const TITLES: Record<string, string> = {
  permission_denied: "You are not allowed to do that.",
  unavailable: "The server cannot be reached.",
  unimplemented: "This server does not offer that.",
  not_found: "Not found.",
  already_exists: "It already exists.",
  invalid_argument: "Please check what you entered.",
  resource_exhausted: "There is not enough capacity for that now.",
};

/** Nothing to show yet, and what to do about it. */
export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty" data-testid="empty">
      <svg class="mark" viewBox="0 0 32 32" aria-hidden="true"><Mark /></svg>
      <h2>{title}</h2>
      {children && <div class="soft">{children}</div>}
    </div>
  );
}

export function Mark() {
  return (
    <>
      <path class="warp" d="M5 1v30M13 1v30M21 1v30M29 1v30" />
      <path class="weft" d="M1 5h7M10 5h12M24 5h7M1 13h1M4 13h14M20 13h11M1 21h7M10 21h12M24 21h7M1 29h1M4 29h14M20 29h11" />
    </>
  );
}

export const Waiting = ({ what = "Loading" }: { what?: string }) => <p class="waiting" role="status">{what} …</p>;

/** Text to take along, such as a command. */
export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    // A command that is pasted into a terminal must not press Enter.
    await navigator.clipboard.writeText(plain(text, Infinity)).then(() => setDone(true), () => setDone(false));
    setTimeout(() => setDone(false), 2000);
  };
  return <button type="button" class="quiet small" onClick={copy}>{done ? "Copied" : label}</button>;
}

export function Command({ text }: { text: string }) {
  return <p class="command"><code>{plain(text, 400)}</code><Copy text={text} /></p>;
}

/** Pairs of a name and a value. */
export function Facts({ items }: { items: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {items.filter(([, value]) => value !== undefined && value !== null && value !== "").map(([name, value]) => (
        <div key={name}><dt>{name}</dt><dd>{value}</dd></div>
      ))}
    </dl>
  );
}

/** A box with a heading; `name` is one that others gave, and keeps its letters. */
export function Card({ title, name = "", children, actions, className = "", testid }: {
  title: string; name?: string; children: ComponentChildren; actions?: ComponentChildren; className?: string; testid?: string;
}) {
  return (
    <section class={`card ${className}`} aria-label={`${title} ${name}`.trim()} data-testid={testid}>
      <header><h2>{title}{name && <> <span class="name">{name}</span></>}</h2>{actions}</header>
      {children}
    </section>
  );
}

/** Share of something that is used, with ticks where it gets tight. */
export function Meter({ used, total, ticks = [], label }: { used: number; total: number; ticks?: number[]; label: string }) {
  const share = total > 0 ? Math.min(1, used / total) : 0;
  const [near = 0.85, full = 0.95] = ticks;
  const tone = share >= full ? "bad" : share >= near ? "warn" : "good";
  return (
    <div class={`meter ${tone}`} role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(share * 100)}>
      <span class="fill" style={{ width: `${share * 100}%` }} />
      {ticks.map((tick) => <span key={tick} class="tick" style={{ left: `${tick * 100}%` }} />)}
    </div>
  );
}
