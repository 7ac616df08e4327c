// Logging in, by password or through a provider, and the offer to change a
// first password.
import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { asCallError } from "../live";
import { Mark, Trouble } from "../parts/bits";
import { type CallError, reachable, sessionEnded } from "../rpc";
import { logIn, me } from "../session";
import { PasswordDialog } from "./password";

interface Provider { name: string; label?: string }
interface Ways { providers: Provider[]; password: boolean }

/** The password of the login of a moment ago, which a change of it need not ask for again. */
const typed = signal<string | undefined>(undefined);
/** The change of a first password was put off, until the next login. */
const later = signal(false);

async function waysIn(): Promise<Ways> {
  const response = await fetch("/api/config", { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" });
  const { login } = (await response.json()) as { login?: Partial<Ways> };
  return { providers: login?.providers ?? [], password: login?.password ?? true };
}

export function Login() {
  const [ways, setWays] = useState<Ways>({ providers: [], password: true });
  const [username, setUsername] = useState("");
  const [password, setPassword] = useState("");
  const [error, setError] = useState<CallError>();
  const [busy, setBusy] = useState(false);
  const name = useRef<HTMLInputElement>(null);
  useEffect(() => {
    document.title = "Log in · Selvage";
    waysIn().then(setWays, () => undefined);
    name.current?.focus();
  }, [reachable.value]);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setError(undefined);
    try {
      await logIn(username, password);
      later.value = false;
      typed.value = me.value?.firstPassword ? password : undefined;
    } catch (failure) {
      setError(asCallError(failure));
      setPassword("");
    } finally {
      setBusy(false);
    }
  };
  const refused = new URLSearchParams(location.search).get("reason");
  return (
    <main class="login" data-testid="login">
      <div class="login-card">
        <p class="brand"><svg class="mark" viewBox="0 0 32 32" aria-hidden="true"><Mark /></svg><span>Selvage</span></p>
        <div class="thread" aria-hidden="true" />
        <h1>Log in</h1>
        {sessionEnded.value && <p class="banner warn" role="status" data-testid="session-ended">Your session has ended. Log in to continue where you were.</p>}
        {!reachable.value && <p class="banner bad" role="status">The server cannot be reached; trying again.</p>}
        {refused && <p class="trouble" role="alert">The provider's login was not accepted: {refused.replaceAll("_", " ").slice(0, 80)}.</p>}
        {ways.password && (
          <form onSubmit={submit} class="form">
            <div class="field"><label for="username">User name</label>
              <input id="username" ref={name} data-testid="login-username" autocomplete="username" autocapitalize="none" spellcheck={false} required value={username} onInput={(event) => setUsername(event.currentTarget.value)} /></div>
            <div class="field"><label for="password">Password</label>
              <input id="password" data-testid="login-password" type="password" autocomplete="current-password" required value={password} onInput={(event) => setPassword(event.currentTarget.value)} /></div>
            <Trouble error={error} doing={error?.code === "unauthenticated" ? "Wrong user name or password." : undefined} />
            <button type="submit" disabled={busy} data-testid="login-button">{busy ? "One moment …" : "Log in"}</button>
          </form>
        )}
        {ways.providers.length > 0 && (
          <div class="providers">
            {ways.password && <p class="soft">or</p>}
            {ways.providers.map((provider) => (
              <a key={provider.name} class="button quiet" data-testid={`oidc-${provider.name}`} href={`/auth/oidc/${encodeURIComponent(provider.name)}/login`}>
                Log in with {provider.label || provider.name}
              </a>
            ))}
          </div>
        )}
        <p class="soft fine">First start? The server printed a password for <code>admin</code>; it is also in <code>initial-admin-password</code> in its data directory.</p>
      </div>
    </main>
  );
}

export function FirstPassword() {
  const [open, setOpen] = useState(false);
  if (!me.value?.firstPassword || later.value) return null;
  return (
    <>
      <p class="banner warn" role="status" data-testid="first-password">
        You are using this account's first password, which somebody else has seen. <button type="button" class="link" onClick={() => setOpen(true)} data-testid="change-first">Change it now</button> or{" "}
        <button type="button" class="link" onClick={() => { later.value = true; }}>later</button>.
      </p>
      {open && <PasswordDialog known={typed.value} close={() => setOpen(false)} />}
    </>
  );
}
