// Values as people read them.
import { signal } from "@preact/signals";
import type { Big } from "./contract";

/** The present time, for what is told relative to it. */
export const now = signal(Date.now());
setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 1000);
document.addEventListener("visibilitychange", () => {
  now.value = Date.now();
});

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
