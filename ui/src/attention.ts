// Attention: the page asks the server for news by itself, and that must not keep
// the session of somebody who has left alive.

/** Time after the last touch for which somebody is taken to be there. */
const ATTENTION_MS = 60_000;
/** Opening the page is a touch too. */
let touched = Date.now();

for (const kind of ["keydown", "pointerdown", "pointermove", "wheel", "touchstart"]) {
  addEventListener(kind, () => { touched = Date.now(); }, { capture: true, passive: true });
}

export const isAttended = (): boolean => Date.now() - touched < ATTENTION_MS;
