// Fields of forms: a label, a hint, and what is wrong, read together.
import type { ComponentChildren } from "preact";
import { useId, useState } from "preact/hooks";
import { plain } from "../format";
import { asCallError } from "../live";
import type { CallError } from "../rpc";
import { Trouble } from "./bits";

interface Base { label: string; hint?: ComponentChildren; wrong?: string; testid?: string }

function Wrapped({ label, hint, wrong, id, children }: Base & { id: string; children: ComponentChildren }) {
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children}
      {(wrong || hint) && <p id={`${id}-more`} class={wrong ? "wrong" : "hint"}>{wrong || hint}</p>}
    </div>
  );
}

export function Text({ value, set, label, hint, wrong, testid, list, type, placeholder, disabled, autocomplete = "off" }: Base & {
  value: string; set: (value: string) => void; list?: string[]; type?: "password" | "number"; placeholder?: string; disabled?: boolean; autocomplete?: string;
}) {
  const id = useId();
  const props = {
    id, value, placeholder, disabled, autocomplete, spellcheck: false, "data-testid": testid,
    onInput: (event: { currentTarget: HTMLInputElement }) => set(event.currentTarget.value),
    "aria-invalid": wrong ? true : undefined, "aria-describedby": wrong || hint ? `${id}-more` : undefined,
  };
  return (
    <Wrapped {...{ label, hint, wrong, id }}>
      {type === "password" ? <input {...props} type="password" /> : type === "number" ? <input {...props} type="number" step="any" /> : <input {...props} type="text" list={list && `${id}-list`} />}
      {list && <datalist id={`${id}-list`}>{list.map((one) => <option key={one} value={one} />)}</datalist>}
    </Wrapped>
  );
}

export function Area({ value, set, label, hint, wrong, testid, rows = 4 }: Base & { value: string; set: (value: string) => void; rows?: number }) {
  const id = useId();
  return (
    <Wrapped {...{ label, hint, wrong, id }}>
      <textarea id={id} data-testid={testid} value={value} rows={rows} spellcheck={false} onInput={(event) => set(event.currentTarget.value)}
        aria-invalid={wrong ? true : undefined} aria-describedby={wrong || hint ? `${id}-more` : undefined} />
    </Wrapped>
  );
}

export function Choice({ value, set, label, hint, wrong, testid, options }: Base & {
  value: string; set: (value: string) => void; options: { value: string; text: string }[];
}) {
  const id = useId();
  return (
    <Wrapped {...{ label, hint, wrong, id }}>
      <select id={id} data-testid={testid} value={value} onChange={(event) => set(event.currentTarget.value)}
        aria-invalid={wrong ? true : undefined} aria-describedby={wrong || hint ? `${id}-more` : undefined}>
        {options.map((option) => <option key={option.value} value={option.value}>{plain(option.text, 120)}</option>)}
      </select>
    </Wrapped>
  );
}

/** A form that shows what is wrong once somebody tried to send it. */
export function Form({ send, submit, problems = [], cancel, children, testid }: {
  send: () => Promise<unknown>; submit: string; problems?: (string | undefined)[]; cancel?: () => void; children: (tried: boolean) => ComponentChildren; testid?: string;
}) {
  const [tried, setTried] = useState(false);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<CallError>();
  const onSubmit = async (event: Event) => {
    event.preventDefault();
    setTried(true);
    const form = event.currentTarget as HTMLFormElement;
    if (problems.some(Boolean)) {
      requestAnimationFrame(() => form.querySelector<HTMLElement>("[aria-invalid]")?.focus());
      return;
    }
    setBusy(true);
    setError(undefined);
    try {
      await send();
    } catch (failure) {
      setError(asCallError(failure));
    } finally {
      setBusy(false);
    }
  };
  return (
    <form class="form" onSubmit={onSubmit} noValidate data-testid={testid}>
      {children(tried)}
      <Trouble error={error} />
      <div class="actions">
        <button type="submit" disabled={busy} data-testid="submit">{busy ? "One moment …" : submit}</button>
        {cancel && <button type="button" class="quiet" onClick={cancel}>Cancel</button>}
      </div>
    </form>
  );
}

/** Rules of names in the edge contract. */
export function nameProblem(name: string, what: string): string | undefined {
  if (!name) return `Give the ${what} a name.`;
  return /^[A-Za-z0-9][-A-Za-z0-9_ .&,!]*$/.test(name) ? undefined : "Letters, digits and - _ . & , ! only, and a letter or digit first.";
}

const PORT = /^(tcp|udp|http):(\d{1,5})(?:-(\d{1,5}))?(?::(?:tls|intvis|maxpktsize=\d+))*$/i;

/** Rules of a list of ports such as "tcp:80,http:443,udp:5000-5010". */
export function portsProblem(ports: string, deployment = ""): string | undefined {
  if (!ports.trim()) return undefined;
  const taken: { kind: string; first: number; last: number }[] = [];
  for (const part of ports.split(",")) {
    const [, protocol, start, end] = PORT.exec(part.trim()) ?? [];
    if (!protocol) return `"${part.trim().slice(0, 30)}" is no port: write protocol:port, such as tcp:80, udp:5000-5010 or http:443.`;
    const [first, last] = [Number(start), Number(end ?? start)];
    if (first < 1 || last > 65535 || last < first) return `${part.trim()} is not within 1 to 65535.`;
    const kind = protocol.toLowerCase() === "udp" ? "udp" : "tcp";
    if (taken.some((other) => other.kind === kind && first <= other.last && last >= other.first)) return `Port ${start} is named twice.`;
    if (kind === "tcp" && first <= 22 && last >= 22 && deployment !== "vm") return "Port 22 is kept for SSH to load balancers.";
    taken.push({ kind, first, last });
  }
  return undefined;
}
