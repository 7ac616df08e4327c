// What stands around every page: navigation, banners, keys.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { isAttended } from "../attention";
import { ago, now, plain } from "../format";
import { heard, problems } from "../overview";
import { Glyph, Mark } from "../parts/bits";
import { Dialog, Notes } from "../parts/dialog";
import { go, path } from "../router";
import { reachable } from "../rpc";
import { logOut, may, me, roleWords, whoAmI } from "../session";
import { nextTheme, isDark } from "../theme";
import { PasswordDialog } from "./password";

interface Place { to: string; name: string; key: string; may?: () => boolean; group?: string }

export const PLACES: Place[] = [
  { to: "", name: "Overview", key: "o" },
  { to: "map", name: "Map", key: "m" },
  { to: "apps", name: "Apps", key: "a", may: may.seeApps, group: "Run" },
  { to: "instances", name: "Instances", key: "i", may: may.seeApps },
  { to: "clusters", name: "Clusters", key: "c", may: may.seeClusters },
  { to: "operations", name: "Operations", key: "w" },
  { to: "cloudlets", name: "Cloudlets", key: "l", group: "Places" },
  { to: "machines", name: "Machines", key: "n", may: may.seeMachines },
  { to: "volumes", name: "Volumes", key: "v", may: may.seeVolumes },
  { to: "people", name: "People", key: "p", group: "System" },
  { to: "audit", name: "Audit", key: "u" },
  { to: "about", name: "About", key: "b" },
];

const helpOpen = signal(false);
const menuOpen = signal(false);
const passwordOpen = signal(false);

const allowed = () => PLACES.filter((place) => place.may?.() ?? true);
const current = () => path.value[0] ?? "";

export function Frame({ children }: { children: ComponentChildren }) {
  const main = useRef<HTMLElement>(null);
  const here = path.value.join("/");
  useKeys();
  useEffect(() => {
    menuOpen.value = false;
    main.current?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }, [here]);
  return (
    <div class="app">
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>Skip to the page</a>
      <Side />
      <div class="page">
        <ConnectionBanner />
        <SessionBanner />
        <main id="main" ref={main} tabIndex={-1} data-testid="main">{children}</main>
      </div>
      <Notes />
      {helpOpen.value && <Help />}
      {passwordOpen.value && <PasswordDialog close={() => { passwordOpen.value = false; }} />}
    </div>
  );
}

function Side() {
  const open = menuOpen.value;
  const worst = problems.value[0]?.severity;
  return (
    <header class={open ? "side open" : "side"} data-testid="side">
      <div class="bar">
        <a class="brand" href="#/" aria-label="Selvage, overview"><svg class="mark" viewBox="0 0 32 32" aria-hidden="true"><Mark /></svg><span>Selvage</span></a>
        <button type="button" class="quiet menu" aria-expanded={open} aria-controls="nav" data-testid="menu" onClick={() => { menuOpen.value = !open; }}>Menu</button>
      </div>
      <div class="thread" aria-hidden="true" />
      <nav id="nav" aria-label="Pages">
        <ul>
          {allowed().map((place) => (
            <li key={place.to}>
              {place.group && <span class="group" aria-hidden="true">{place.group}</span>}
              <a href={`#/${place.to}`} aria-current={current() === place.to ? "page" : undefined} data-testid={`nav-${place.to || "overview"}`}>
                {place.name}
                {place.to === "" && problems.value.length > 0 && (
                  <span class="tally" title={`${problems.value.length} problems`}>
                    <Glyph tone={worst === "CRITICAL" ? "bad" : worst === "WARNING" ? "warn" : "busy"} />{problems.value.length}<span class="unseen"> problems</span>
                  </span>
                )}
              </a>
            </li>
          ))}
        </ul>
      </nav>
      <Person />
    </header>
  );
}

function Person() {
  const who = me.value;
  return (
    <div class="person">
      <p data-testid="whoami"><strong>{plain(who?.name, 40) || "you"}</strong><span class="soft">{who?.kind === "insecure" ? "insecure mode: everybody is admin" : plain(roleWords(who?.grants), 80)}</span></p>
      <p class="row">
        <button type="button" class="link" onClick={() => nextTheme()} data-testid="theme">{isDark() ? "Light" : "Dark"}</button>
        <button type="button" class="link" onClick={() => { helpOpen.value = true; }} data-testid="help">Keys</button>
        {who?.kind === "user" && <button type="button" class="link" onClick={() => { passwordOpen.value = true; }} data-testid="password">Password</button>}
        {who?.kind === "user" && <button type="button" class="link" onClick={() => void logOut()} data-testid="logout">Log out</button>}
      </p>
    </div>
  );
}

/** Says that the server is away, and for a moment that it is back. */
function ConnectionBanner() {
  const away = !reachable.value;
  const [was, setWas] = useState(false);
  useEffect(() => {
    if (away) setWas(true);
    else if (was) {
      const timer = setTimeout(() => setWas(false), 5000);
      return () => clearTimeout(timer);
    }
    return undefined;
  }, [away, was]);
  return (
    <div role="status" aria-live="assertive" data-testid="connection">
      {away && (
        <p class="banner bad"><Glyph tone="bad" /> The connection to the server is lost; reconnecting. What you see is from {heard.value ? ago(heard.value, now.value) : "before"}.</p>
      )}
      {!away && was && <p class="banner good"><Glyph tone="good" /> The server is back, and this page is live again.</p>}
    </div>
  );
}

/** Minutes before the end of a session from which it is said. */
const WARN = 10;

function SessionBanner() {
  const [ends, idles] = [me.value?.expires, me.value?.idleEnd].map((time) => Date.parse(time ?? ""));
  const soon = (time: number) => (time - now.value) / 60000 < WARN;
  const when = (time: number) => (time > now.value ? ago(time, now.value) : "now");
  if (soon(ends!)) {
    return (
      <p class="banner warn" role="status" data-testid="session-ends">
        <Glyph tone="warn" /> Your session ends {when(ends!)}. Finish what you are doing, then{" "}
        <button type="button" class="link" onClick={() => void logOut()}>log in again</button>.
      </p>
    );
  }
  if (!soon(idles!) || isAttended()) return null;
  return (
    <p class="banner warn" role="status" data-testid="session-idles">
      <Glyph tone="warn" /> Nobody has done anything here for a while: your session ends {when(idles!)}.{" "}
      <button type="button" class="link" onClick={() => void whoAmI()}>Stay logged in</button>
    </p>
  );
}

const KEYS: [string, string][] = [
  ["/", "filter the list"], ["↓ ↑", "move from row to row"], ["Enter", "open the row"], ["n", "create something, where the page has that button"],
  ["Esc", "clear the filter, close what is open"], ["t", "dark or light"], ["?", "this list"],
];

function Help() {
  return (
    <Dialog title="Keyboard shortcuts" close={() => { helpOpen.value = false; }} testid="keys">
      <div class="keys">
        <dl>{KEYS.map(([key, what]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{what}</dd></div>)}</dl>
        <dl>{allowed().map((place) => <div key={place.key}><dt><kbd>g</kbd> <kbd>{place.key}</kbd></dt><dd>{place.name}</dd></div>)}</dl>
      </div>
    </Dialog>
  );
}

const typing = (target: EventTarget | null) => (target as Element | null)?.closest?.("input, textarea, select, [contenteditable], .shell-box");

function useKeys(): void {
  useEffect(() => {
    let pending = false;
    const onKey = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target) || document.querySelector("dialog[open]")) return;
      if (pending) {
        pending = false;
        const place = allowed().find(({ key }) => key === event.key);
        if (place) return go(`#/${place.to}`);
      }
      if (event.key === "g") pending = true;
      else if (event.key === "?") helpOpen.value = true;
      else if (event.key === "t") nextTheme();
      else if (event.key === "/") press(event, "#filter");
      else if (event.key === "n") press(event, "[data-new]");
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
}

function press(event: KeyboardEvent, selector: string): void {
  const target = document.querySelector<HTMLElement>(selector);
  if (!target) return;
  event.preventDefault();
  if (target instanceof HTMLInputElement) target.select();
  else target.click();
}

/** Title, what can be done, and the page below. */
export function Page({ title, crumbs = [], actions, children }: {
  title: string; crumbs?: [string, string][]; actions?: ComponentChildren; children: ComponentChildren;
}) {
  useEffect(() => {
    document.title = `${plain(title, 80)} · Selvage`;
  }, [title]);
  return (
    <>
      <div class="head">
        <div>
          {crumbs.length > 0 && <p class="crumbs">{crumbs.map(([name, address], at) => <span key={address}>{at > 0 && " / "}<a href={address}>{plain(name, 60)}</a></span>)}</p>}
          <h1>{plain(title, 120)}</h1>
        </div>
        {actions && <div class="tools">{actions}</div>}
      </div>
      {children}
    </>
  );
}
