// Values as people read them.
import { signal } from "@preact/signals";
import type { Big } from "./contract";

/** Milliseconds by which the server's clock is ahead of this machine's. */
let ahead = 0;
/** Replies tell whole seconds and take a moment: what differs by less is the same time. */
const CLOCK_TOLERANCE_MS = 2500;

/** The server's time, which all times that it tells of are compared with. */
export const present = (): number => Date.now() + ahead;

/** The present time, for what is told relative to it. */
export const now = signal(present());
setInterval(() => {
  if (!document.hidden) now.value = present();
}, 1000);
document.addEventListener("visibilitychange", () => {
  now.value = present();
});

/** Goes by the server's clock from now on: that of this machine may be wrong. */
export function followClock(date: string | null): void {
  const difference = Date.parse(date ?? "") - Date.now();
  if (!(Math.abs(difference - ahead) > CLOCK_TOLERANCE_MS)) return;
  ahead = difference;
  now.value = present();
}

export const number = (value: Big | undefined): number => Number(value ?? 0);

export function bytes(value: Big | undefined): string {
  let rest = number(value);
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (Math.abs(rest) < 1024) return `${unit === "B" || rest >= 100 ? Math.round(rest) : rest.toFixed(1)} ${unit}`;
    rest /= 1024;
  }
  return `${rest.toFixed(1)} PiB`;
}

const STEPS: [number, string, string][] = [
  [60, "s", "second"], [60, "min", "minute"], [24, "h", "hour"], [365, "d", "day"], [Infinity, "y", "year"],
];

/** A span of seconds in its largest unit: "3 min". */
export function span(seconds: number): string {
  let rest = Math.max(0, seconds);
  for (const [size, short] of STEPS) {
    if (rest < size) return `${Math.floor(rest)} ${short}`;
    rest /= size;
  }
  return "";
}

export function ago(at: number, present: number): string {
  const seconds = (present - at) / 1000;
  if (seconds < -5) return `in ${span(-seconds)}`;
  return seconds < 5 ? "just now" : `${span(seconds)} ago`;
}

export function exact(at: number): string {
  return Number.isFinite(at) ? new Date(at).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" }) : "";
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

/** A value in the unit of its series. */
export function measured(value: number, unit: string | undefined): string {
  if (unit === "bytes") return bytes(value);
  if (unit === "bytes/s") return `${bytes(value)}/s`;
  if (unit === "percent") return `${value.toFixed(value === 0 || value >= 10 ? 0 : value < 1 ? 2 : 1)} %`;
  return value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
}

/** Control characters but tabs and line ends, and what turns the direction of text. */
const TURNING = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Text of others as it stands on the page, lines and all. */
export const calm = (text: string): string => text.replace(TURNING, "·");

/**
 * Text of others, fit to stand in a line: no control characters, and nothing
 * that turns the direction of what follows it.
 */
export function plain(text: string | undefined, longest = 200): string {
  const clean = (text ?? "").replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g, "·");
  return clean.length > longest ? `${clean.slice(0, longest)}…` : clean;
}
