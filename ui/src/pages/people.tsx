// People: users and their roles, sessions, tokens and certificates that can be ended.
import { useState } from "preact/hooks";
import type { Grant, Session, User } from "../contract";
import { plain } from "../format";
import { useLoad } from "../live";
import { Badge, Card, Copy, Empty, Trouble, Waiting, When } from "../parts/bits";
import { Confirm, Dialog, note } from "../parts/dialog";
import { Choice, Form, Text } from "../parts/form";
import { Filter, Table } from "../parts/table";
import { developers, operators, users } from "../resources";
import { query, setQuery } from "../router";
import { call } from "../rpc";
import { may, me, roleWords } from "../session";
import { Credentials } from "./credentials";
import { Page } from "./frame";
import { PasswordDialog } from "./password";

export function PeoplePage() {
  const admin = may.listUsers();
  const create = admin && <button type="button" data-new data-testid="new-user" onClick={() => setQuery("new", "user")}>New user</button>;
  return (
    <Page title="People" actions={admin && <><Filter what="people" />{create}</>}>
      {admin && <Users />}
      <Sessions everybody={admin} />
      <Credentials everybody={admin} />
      {admin && query.value.get("new") === "user" && <UserDialog close={() => setQuery("new", "")} />}
    </Page>
  );
}

function Users() {
  const { data, error, refresh } = users.use();
  const [open, setOpen] = useState<["edit" | "password" | "remove", User]>();
  const close = () => setOpen(undefined);
  if (!data) return error ? <Trouble error={error} retry={refresh} /> : <Waiting />;
  return (
    <>
      <Table label="Users" rows={data} id={(one) => one.username ?? ""} empty={null} order={[0, 1]} columns={[
        { title: "User", value: (one) => one.username ?? "", show: (one) => <b>{plain(one.username, 64)}{one.username === me.value?.name && <span class="soft"> (you)</span>}</b> },
        { title: "Roles", value: (one) => roleWords(one.grants) },
        { title: "State", value: (one) => (one.disabled ? "disabled" : "active"), show: (one) => <Badge state={one.disabled ? { word: "disabled", tone: "off" } : { word: "active", tone: "good" }} />, wide: true },
        { title: "Login by", value: (one) => one.source ?? "", wide: true },
        { title: "Password set", value: (one) => one.passwordChangedAt ?? "", show: (one) => <When time={one.passwordChangedAt} fallback="none" />, wide: true },
        { title: "Actions", value: () => "", show: (one) => (
          <span class="row">
            <button type="button" class="quiet small" onClick={() => setOpen(["edit", one])} aria-label={`Edit ${one.username}`}>Edit</button>
            {one.source === "password" && <button type="button" class="quiet small" onClick={() => setOpen(["password", one])} aria-label={`Password of ${one.username}`}>Password</button>}
            {one.username !== me.value?.name && <button type="button" class="quiet danger small" onClick={() => setOpen(["remove", one])} aria-label={`Remove ${one.username}`}>Remove</button>}
          </span>
        ) },
      ]} />
      {open?.[0] === "edit" && <UserDialog user={open[1]} close={close} />}
      {open?.[0] === "password" && <PasswordDialog username={open[1].username} close={close} />}
      {open?.[0] === "remove" && (
        <Confirm title={`Remove ${plain(open[1].username)}?`} yes="Remove the user" close={close} act={async () => {
          await call("selvage.identity.IdentityService/RemoveUser", { username: open[1].username ?? "" });
          note(`${open[1].username} is removed.`);
          await users.refresh();
        }}><p>All sessions of the user end at once. What the user made stays.</p></Confirm>
      )}
    </>
  );
}

const ROLES = [
  { value: "admin", text: "admin: everything" }, { value: "operator", text: "operator of an organisation: its cloudlets" },
  { value: "developer", text: "developer of an organisation: its apps" }, { value: "viewer", text: "viewer: sees everything that is not secret" },
];
const inOrganisation = (role: string | undefined) => role === "operator" || role === "developer";

function UserDialog({ user, close }: { user?: User; close: () => void }) {
  const [username, setUsername] = useState(user?.username ?? "");
  const [grants, setGrants] = useState<Grant[]>(user?.grants?.length ? user.grants : [{ role: "viewer" }]);
  const [disabled, setDisabled] = useState(user?.disabled ?? false);
  const [generated, setGenerated] = useState("");
  const known = { developer: developers.use().data, operator: operators.use().data };
  const wrong = /^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$/.test(username) ? undefined : "Letters, digits and . _ @ - only, a letter or digit first.";
  const missing = grants.some((grant) => inOrganisation(grant.role) && !grant.organisation) ? "Choose an organisation." : undefined;
  const set = (at: number, grant: Grant) => setGrants(grants.map((old, index) => (index === at ? grant : old)));
  const send = async () => {
    if (user) await call("selvage.identity.IdentityService/UpdateUser", { username, grants, disabled });
    else setGenerated((await call("selvage.identity.IdentityService/AddUser", { user: { username, grants } })).generatedPassword ?? "");
    await users.refresh();
    note(`${username} is ${user ? "changed" : "added"}.`);
    if (user) close();
  };
  if (generated) {
    return (
      <Dialog title={`${plain(username)} can log in`} close={close} testid="user-dialog">
        <div class="secret"><p><b>Shown once.</b> Give this first password to {plain(username)}:</p><p class="row"><code data-testid="generated">{generated}</code><Copy text={generated} /></p></div>
      </Dialog>
    );
  }
  return (
    <Dialog title={user ? `Edit ${plain(username)}` : "New user"} wide close={close} testid="user-dialog">
      <Form send={send} submit={user ? "Save and end the user's sessions" : "Add the user"} cancel={close} problems={[wrong, missing]}>
        {(tried) => (
          <>
            {!user && <Text label="User name" value={username} set={setUsername} wrong={tried ? wrong : undefined} testid="user-name" />}
            {grants.map((grant, at) => (
              <div class="two" key={at}>
                <Choice label="Role" value={grant.role ?? ""} set={(role) => set(at, { role, organisation: inOrganisation(role) ? grant.organisation : "" })} options={ROLES} testid={`user-role-${at}`} />
                {inOrganisation(grant.role) && <Text label="Organisation" value={grant.organisation ?? ""} set={(organisation) => set(at, { ...grant, organisation })} wrong={tried ? missing : undefined} testid={`user-organisation-${at}`}
                  list={(known[grant.role as "developer" | "operator"] ?? []).map((one) => one.key?.name ?? "")} />}
              </div>
            ))}
            <p class="row">
              <button type="button" class="quiet small" onClick={() => setGrants([...grants, { role: "viewer" }])}>Add a role</button>
              {grants.length > 1 && <button type="button" class="quiet small" onClick={() => setGrants(grants.slice(0, -1))}>Remove the last role</button>}
            </p>
            {user ? <label class="row"><input type="checkbox" checked={disabled} onChange={(event) => setDisabled(event.currentTarget.checked)} /> Disabled: cannot log in</label>
              : <p class="soft fine">The server generates a first password and shows it once.</p>}
          </>
        )}
      </Form>
    </Dialog>
  );
}

function Sessions({ everybody }: { everybody: boolean }) {
  const { data, error, refresh } = useLoad(async (signal) =>
    (await call("selvage.identity.IdentityService/ListSessions", everybody ? { username: "*" } : {}, { signal })).sessions ?? [], [everybody], 5000);
  const end = async (session: Session) => {
    await call("selvage.identity.IdentityService/RevokeSession", { id: session.id ?? "" });
    note(`The session of ${session.username} has ended.`);
    await refresh();
  };
  return (
    <Card title={everybody ? "Sessions" : "Your sessions"} className="sessions" testid="sessions">
      <Trouble error={error} retry={refresh} />
      {!data ? !error && <Waiting /> : (
        <table aria-label="Sessions">
          <thead><tr><th scope="col">User</th><th scope="col">From</th><th scope="col" class="wide">Kind</th><th scope="col" class="wide">Started</th><th scope="col" class="wide">Last used</th><th scope="col">Actions</th></tr></thead>
          <tbody>
            {data.map((session) => (
              <tr key={session.id}>
                <td>{plain(session.username, 64)}{session.current && <span class="soft"> (this page)</span>}</td>
                <td class="mono">{plain(session.peer, 60)}</td>
                <td class="wide">{session.kind === "cookie" ? "browser" : "token"}</td>
                <td class="wide"><When time={session.createdAt} /></td>
                <td class="wide"><When time={session.lastUsedAt} /></td>
                <td>{session.current ? <span class="soft">log out instead</span> : <button type="button" class="quiet danger small" data-testid="end-session" aria-label={`End the session of ${session.username} from ${session.peer}`} onClick={() => void end(session)}>End it</button>}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {data?.length === 0 && <Empty title="No sessions" />}
    </Card>
  );
}
