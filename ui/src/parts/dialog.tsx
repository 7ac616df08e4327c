// Dialogs: the browser's own, which keep the focus inside and give it back.
import type { ComponentChildren } from "preact";
import { signal } from "@preact/signals";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { plain } from "../format";
import { asCallError } from "../live";
import type { CallError } from "../rpc";
import { Trouble } from "./bits";

export function Dialog({ title, children, close, wide, testid }: {
  title: string; children: ComponentChildren; close: () => void; wide?: boolean; testid?: string;
}) {
  const box = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    box.current?.showModal();
    box.current?.querySelector<HTMLElement>(".inner > :not(header) :is(input, select, textarea, button)")?.focus();
  }, []);
  return (
    <dialog ref={box} class={wide ? "wide" : undefined} aria-labelledby={id} data-testid={testid} onClose={close}
      onClick={(event) => event.target === box.current && close()}>
      <div class="inner">
        <header>
          <h2 id={id}>{plain(title)}</h2>
          <button type="button" class="quiet small" aria-label="Close" onClick={close}>✕</button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

/** A question before something is done that cannot be undone. */
export function Confirm({ title, children, yes, act, close, danger = true }: {
  title: string; children: ComponentChildren; yes: string; act: () => Promise<unknown>; close: () => void; danger?: boolean;
}) {
  const [error, setError] = useState<CallError>();
  const [busy, setBusy] = useState(false);
  const run = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await act();
      close();
    } catch (failure) {
      setError(asCallError(failure));
      setBusy(false);
    }
  };
  return (
    <Dialog title={title} close={close} testid="confirm">
      <form class="form" onSubmit={run}>
        {children}
        <Trouble error={error} />
        <div class="actions">
          <button type="submit" class={danger ? "danger" : ""} disabled={busy} data-testid="confirm-yes">{busy ? "One moment …" : yes}</button>
          <button type="button" class="quiet" onClick={close}>Cancel</button>
        </div>
      </form>
    </Dialog>
  );
}

/** What was just done, said to everybody. */
const notes = signal<{ id: number; text: string }[]>([]);
let last = 0;

export function note(text: string): void {
  last += 1;
  const id = last;
  notes.value = [...notes.value, { id, text }].slice(-3);
  setTimeout(() => {
    notes.value = notes.value.filter((one) => one.id !== id);
  }, 6000);
}

export function Notes() {
  return <div class="notes" role="status" aria-live="polite">{notes.value.map(({ id, text }) => <p key={id}>{plain(text)}</p>)}</div>;
}
