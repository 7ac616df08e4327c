// Addresses of pages: what follows the # in the address bar, so that every
// page, with its filter, can be kept and sent to others.
import { computed, signal } from "@preact/signals";

const read = () => location.hash.replace(/^#/, "") || "/";
const hash = signal(read());

addEventListener("hashchange", () => {
  hash.value = read();
});

export const path = computed(() => {
  const [first = ""] = hash.value.split("?");
  return first.split("/").filter(Boolean).map(decode);
});
export const query = computed(() => new URLSearchParams(hash.value.split("?")[1] ?? ""));

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Address of a page; each part is escaped. */
export function to(...parts: (string | undefined)[]): string {
  return `#/${parts.map((part) => encodeURIComponent(part ?? "")).join("/")}`;
}

export function go(address: string): void {
  location.hash = address;
}

/** Sets a part of the query without a new entry in the history. */
export function setQuery(name: string, value: string): void {
  const next = new URLSearchParams(query.peek());
  if (value) next.set(name, value);
  else next.delete(name);
  const text = next.toString();
  const address = `#${hash.peek().split("?")[0]}${text ? `?${text}` : ""}`;
  history.replaceState(null, "", address);
  hash.value = read();
}
