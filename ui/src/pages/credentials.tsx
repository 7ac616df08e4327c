// Tokens and certificates in people's names, for programs: made, shown once,
// ended.
import { useState } from "preact/hooks";
import type { Credential, Grant } from "../contract";
import { now, plain, plural } from "../format";
import { useLoad } from "../live";
import { Badge, Card, Command, Copy, Trouble, Waiting, When } from "../parts/bits";
import { Confirm, Dialog, note } from "../parts/dialog";
import { Area, Choice, Form, Text } from "../parts/form";
import { call } from "../rpc";
import { me, roleWords } from "../session";
import type { State } from "../states";

const DAY = 86_400;
const LIFETIMES = [[1, "a day"], [7, "a week"], [30, "30 days"], [90, "90 days"], [366, "a year"]] as const;

function state({ expires }: Credential): State {
  return Date.parse(expires ?? "") < now.value ? { word: "expired", tone: "off" } : { word: "active", tone: "good" };
}

export function Credentials({ everybody }: { everybody: boolean }) {
  const { data, error, refresh } = useLoad(async (signal) =>
    (await call("selvage.identity.IdentityService/ListCredentials", everybody ? { username: "*" } : {}, { signal })).credentials ?? [], [everybody], 5000);
  const [ending, setEnding] = useState<Credential>();
  const [creating, setCreating] = useState(false);
  // Whoever comes without a login has nobody in whose name a token could act.
  const person = me.value?.kind === "user";
  const create = person && <button type="button" class="quiet small" data-testid="new-token" onClick={() => setCreating(true)}>New token</button>;
  return (
    <Card title={everybody ? "Tokens and certificates" : "Your tokens and certificates"} className="sessions" testid="credentials" actions={create}>
      <Trouble error={error} retry={refresh} />
      {!data ? !error && <Waiting /> : data.length === 0 ? <p class="soft">None yet. A token lets a program, such as a CI job, act in your name, with no more rights than you have.</p> : (
        <table aria-label="Tokens and certificates">
          <thead><tr><th scope="col">Name</th><th scope="col" class="wide">Kind</th><th scope="col" class="wide">Rights</th><th scope="col">State</th><th scope="col" class="wide">Last used</th><th scope="col" class="wide">Expires</th><th scope="col">Actions</th></tr></thead>
          <tbody>{data.map((one) => <Line key={one.id} credential={one} end={() => setEnding(one)} />)}</tbody>
        </table>
      )}
      <p class="soft fine">To create a certificate, run this on the machine that keeps its key:</p>
      <Command text="selvage user cert create laptop" />
      {ending && <End credential={ending} close={() => setEnding(undefined)} done={refresh} />}
      {creating && <NewToken close={() => setCreating(false)} done={refresh} />}
    </Card>
  );
}

function Line({ credential, end }: { credential: Credential; end: () => void }) {
  const { name, kind, username, grants, methods = [], lastUsedAt, expires } = credential;
  const limited = methods.length > 0 && <span title={plain(methods.join("\n"), 2000)}>, {plural(methods.length, "method")} only</span>;
  return (
    <tr>
      <td><b>{plain(name, 64)}</b> <span class="soft">of {plain(username, 64)}</span></td>
      <td class="wide">{plain(kind, 20)}</td>
      <td class="wide">{plain(roleWords(grants), 200)}{limited}</td>
      <td><Badge state={state(credential)} /></td>
      <td class="wide"><When time={lastUsedAt} /></td>
      <td class="wide"><When time={expires} /></td>
      <td><button type="button" class="quiet danger small" data-testid="end-credential" aria-label={`End the ${kind} ${name} of ${username}`} onClick={end}>End it</button></td>
    </tr>
  );
}

function End({ credential, close, done }: { credential: Credential; close: () => void; done: () => Promise<void> }) {
  const { name, kind, username } = credential;
  const act = async () => {
    await call("selvage.identity.IdentityService/DeleteCredential", { id: credential.id ?? "" });
    note(`The ${kind} ${name} of ${username} has ended.`);
    await done();
  };
  return (
    <Confirm title={`End the ${plain(kind, 20)} ${plain(name, 64)} of ${plain(username, 64)}?`} yes={`End the ${plain(kind, 20)}`} close={close} act={act}>
      <p>Programs that show it are refused from now on. This cannot be undone; create another one instead.</p>
    </Confirm>
  );
}

/** Methods, one in each line. */
const lines = (text: string) => text.split(/[\s,]+/).filter(Boolean);
const METHOD = /^([a-z][\w.]*\.[A-Z]\w*\/(\*|[A-Z]\w*)|\/metrics)$/;

function NewToken({ close, done }: { close: () => void; done: () => Promise<void> }) {
  const own = me.value?.grants ?? [];
  const [name, setName] = useState("");
  const [chosen, setChosen] = useState<Grant[]>(own.slice(0, 1));
  const [days, setDays] = useState("30");
  const [methods, setMethods] = useState("");
  const [token, setToken] = useState("");
  const wrong = /^[A-Za-z0-9._@-]{1,64}$/.test(name) ? undefined : "Letters, digits and . _ @ - only, at most 64.";
  const none = chosen.length === 0 ? "Choose at least one role." : undefined;
  const odd = lines(methods).find((one) => !METHOD.test(one));
  const bad = odd && `"${plain(odd, 60)}" is not a method: write package.Service/Method, package.Service/* or /metrics.`;
  const send = async () => {
    const reply = await call("selvage.identity.IdentityService/CreateToken", { name, grants: chosen, methods: lines(methods), ttlSeconds: Number(days) * DAY });
    setToken(reply.token ?? "");
    await done();
  };
  if (token) return <Shown name={name} token={token} close={close} />;
  const toggle = (grant: Grant, on: boolean) => setChosen(on ? [...chosen, grant] : chosen.filter((one) => one !== grant));
  return (
    <Dialog title="New token" wide close={close} testid="token-dialog">
      <Form send={send} submit="Create the token" cancel={close} problems={[wrong, none, bad]}>
        {(tried) => (
          <>
            <Text label="Name" value={name} set={setName} hint="The program that uses it, such as ci." wrong={tried ? wrong : undefined} testid="token-name" />
            <fieldset>
              <legend>Roles</legend>
              {own.map((grant, at) => (
                <label class="row" key={at}><input type="checkbox" data-testid={`token-role-${at}`} checked={chosen.includes(grant)} onChange={(event) => toggle(grant, event.currentTarget.checked)} /> {roleWords([grant])}</label>
              ))}
              {tried && none && <p class="wrong">{none}</p>}
            </fieldset>
            <Choice label="Valid for" value={days} set={setDays} options={LIFETIMES.map(([value, text]) => ({ value: String(value), text }))} testid="token-days" />
            <Area label="Methods" rows={2} value={methods} set={setMethods} wrong={tried ? bad : undefined} testid="token-methods"
              hint="Optional: the only methods it may call, one per line, such as edgeproto.AppInstApi/*." />
          </>
        )}
      </Form>
    </Dialog>
  );
}

function Shown({ name, token, close }: { name: string; token: string; close: () => void }) {
  return (
    <Dialog title={`The token ${plain(name)}`} wide close={close} testid="token-dialog">
      <div class="secret"><p><b>Shown once.</b> Keep it where only {plain(name)} can read it:</p><p class="row"><code data-testid="new-token-text">{token}</code><Copy text={token} /></p></div>
      <p class="soft">Programs send it as the header <code>authorization: Bearer …</code>; the <code>selvage</code> command reads it from <code>SELVAGE_TOKEN</code>.</p>
    </Dialog>
  );
}
