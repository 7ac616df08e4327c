// Users, roles and sessions.
import assert from "node:assert/strict";
import { Person, until } from "./lib.mjs";

const PAGES = ["overview", "map", "apps", "instances", "clusters", "operations", "cloudlets", "machines", "volumes", "people", "audit", "about"];
const ROLES = {
  operator: { grants: [{ role: "operator", organisation: "uiop" }], without: ["apps", "instances"], buttons: { cloudlets: ["new-cloudlet"] }, uses: aCloudletOfOnesOwn },
  developer: { grants: [{ role: "developer", organisation: "acme" }], without: ["machines", "volumes"], buttons: { apps: ["new-app"], instances: ["new-instance"], clusters: ["new-kubernetes"] }, uses: anAppOfOnesOwn },
  viewer: { grants: [{ role: "viewer" }], without: [], buttons: {} },
};
const BUTTONS = { apps: ["new-app"], instances: ["new-instance"], clusters: ["new-kubernetes"], cloudlets: ["new-cloudlet", "new-flavor"], machines: ["new-machine"], volumes: ["new-volume", "restore"], people: ["new-user"] };

/** Forms that an address opens. */
const FORMS = { apps: "app", instances: "instance", clusters: "kubernetes", cloudlets: "cloudlet", machines: "machine", volumes: "volume", people: "user" };

async function aUser({ admin }) {
  await admin.go("#/people?new=user");
  await admin.id("user-name").fill("bad name");
  await admin.id("submit").click();
  await admin.page.getByText("Letters, digits and . _ @ - only").waitFor();
  await admin.accessible("user form");
  await admin.id("user-name").fill("eve");
  await admin.id("user-role-0").selectOption("developer");
  await admin.id("submit").click();
  await admin.page.getByText("Choose an organisation.").waitFor();
  await admin.id("user-organisation-0").fill("acme");
  await admin.id("submit").click();
  const password = await admin.id("generated").textContent();
  assert.match(password, /\S{8,}/);
  await admin.page.keyboard.press("Escape");
  await admin.page.getByRole("cell", { name: "developer of acme" }).waitFor();
  await admin.accessible("people");
  await admin.page.getByRole("button", { name: "Remove eve" }).click();
  await admin.id("confirm-yes").click();
  await admin.page.getByRole("cell", { name: "developer of acme" }).waitFor({ state: "detached" });
  admin.quiet("user");
}

/** Every page as every role: nothing is offered that would be refused, and nothing that is shown fails. */
async function everyRole(world) {
  await Promise.all(Object.keys(ROLES).map((role) => oneRole(world, role)));
}

async function oneRole({ admin, browser, server }, role) {
  const { grants, without, buttons, uses } = ROLES[role];
  const { generatedPassword } = await admin.call("selvage.identity.IdentityService/AddUser", { user: { username: `a-${role}`, grants } });
  const person = await Person.sit(browser, server, { colorScheme: role === "viewer" ? "dark" : "light" });
  await person.logIn(`a-${role}`, generatedPassword);
  await person.id("first-password").waitFor();
  for (const name of PAGES) {
    const there = (await person.id(`nav-${name}`).count()) === 1;
    assert.equal(there, !without.includes(name), `${role} and ${name}`);
    if (!there) continue;
    await person.id(`nav-${name}`).click();
    await person.page.locator("main h1").waitFor();
    await until("all of the page", async () => (await person.page.locator(".waiting").count()) === 0);
    assert.equal(await person.id("trouble").count(), 0, `${role} at ${name}: ${await person.id("trouble").allTextContents()}`);
    for (const button of BUTTONS[name] ?? []) {
      assert.equal(await person.id(button).count(), buttons[name]?.includes(button) ? 1 : 0, `${role} and ${button}`);
    }
    // Every page once, in dark colours; in light ones the other scenarios look.
    if (role === "viewer") await person.accessible(`${role} at ${name}`);
  }
  // An address that somebody sent opens no form that its button does not.
  for (const [page, form] of Object.entries(FORMS)) {
    await person.go(`#/${page}?new=${form}`);
    await person.page.locator("main h1").waitFor();
    const mine = (buttons[page]?.length ?? 0) > 0;
    if (mine) await person.page.locator("dialog form").waitFor();
    await until("all of the page", async () => (await person.page.locator(".waiting").count()) === 0);
    assert.equal(await person.page.locator("dialog").count(), mine ? 1 : 0, `${role} and ${page}?new=${form}`);
  }
  await uses?.(person);
  person.quiet(role);
  await person.leave();
}

/** A developer registers an app, changes it and deletes it; the organisation is not asked for. */
async function anAppOfOnesOwn(person) {
  await person.go("#/apps?new=app");
  assert.deepEqual(await person.id("app-developer").locator("option").allTextContents(), ["acme"]);
  await person.id("app-name").fill("own-app");
  await person.id("app-version").fill("1");
  await person.id("app-image").fill("registry.example:5000/own/app:1");
  await person.id("submit").click();
  await person.page.getByRole("heading", { name: "own-app 1" }).waitFor();
  await person.id("edit-app").click();
  await person.id("app-ports").fill("tcp:8081");
  await person.id("submit").click();
  await person.page.locator("dialog").waitFor({ state: "detached" });
  await person.page.locator("main").getByText("tcp:8081").waitFor();
  await person.accessible("a developer's app");
  await person.id("delete-app").click();
  await person.id("confirm-yes").click();
  await person.page.getByRole("heading", { name: "Apps", exact: true }).waitFor();
}

/** An operator registers a cloudlet and deletes it. */
async function aCloudletOfOnesOwn(person) {
  await person.go("#/cloudlets?new=cloudlet");
  assert.deepEqual(await person.id("cloudlet-operator").locator("option").allTextContents(), ["uiop"]);
  await person.id("cloudlet-name").fill("own-site");
  await person.id("cloudlet-latitude").fill("48.1");
  await person.id("cloudlet-longitude").fill("11.6");
  await person.id("submit").click();
  await person.id("progress-done").click();
  await person.page.getByRole("heading", { name: "uiop/own-site" }).waitFor();
  await person.accessible("an operator's cloudlet");
  await person.id("delete-cloudlet").click();
  await person.id("confirm-yes").click();
  await person.id("progress-done").click();
  await person.page.getByRole("heading", { name: "Cloudlets", exact: true }).waitFor();
}

/** Whoever has a password that somebody else made changes it, and is not asked again. */
async function aFirstPassword({ admin, browser, server }) {
  const { generatedPassword } = await admin.call("selvage.identity.IdentityService/AddUser", { user: { username: "new-here", grants: [{ role: "viewer" }] } });
  const person = await Person.sit(browser, server);
  await person.logIn("new-here", generatedPassword);
  await person.id("change-first").click();
  await person.id("password-new").fill("of my own 77");
  await person.id("password-again").fill("of my own 77");
  await person.id("submit").click();
  await person.id("first-password").waitFor({ state: "detached" });
  await person.page.reload();
  await person.id("verdict").waitFor();
  assert.equal(await person.id("first-password").count(), 0);
  person.quiet("first password");
  await person.leave();
}

/** Two browsers: one ends the other's session, and the other is asked to log in. */
async function anEndedSession({ admin, browser, server }) {
  const other = await Person.sit(browser, server);
  await other.logIn("admin", server.password);
  await admin.go("#/people");
  // A list of before would be shown first, without the latest sessions.
  await admin.page.reload();
  await admin.page.getByText("(this page)").waitFor();
  const others = () => admin.id("end-session").count();
  for (let left = await others(); left > 0; left -= 1) {
    await admin.id("end-session").first().click();
    await until("the session to go", async () => (await others()) < left);
  }
  // Whatever is asked for next is refused.
  await other.go("#/cloudlets");
  await other.id("session-ended").waitFor({ timeout: 60_000 });
  await other.accessible("ended session");
  // Back where it was after a new login.
  await other.id("login-username").fill("admin");
  await other.id("login-password").fill(server.password);
  await other.id("login-button").click();
  await other.page.getByRole("heading", { name: "Cloudlets", exact: true }).waitFor();
  other.quiet("ended session");
  await other.leave();
}

/** A token is shown once, does what its owner may, and nothing from the moment it is ended. */
async function aToken({ admin, server }) {
  await admin.go("#/people");
  await admin.id("new-token").click();
  await admin.id("submit").click();
  await admin.page.getByText("Letters, digits and . _ @ - only, at most 64.").waitFor();
  await admin.id("token-name").fill("ci");
  await admin.id("token-methods").fill("ListUsers");
  await admin.page.getByText('"ListUsers" is not a method').waitFor();
  await admin.id("token-methods").fill("selvage.identity.IdentityService/WhoAmI");
  await admin.id("token-role-0").uncheck();
  await admin.page.getByText("Choose at least one role.").waitFor();
  await admin.id("token-role-0").check();
  await admin.accessible("token form");
  await admin.id("submit").click();
  const token = await admin.id("new-token-text").textContent();
  await admin.accessible("a new token");
  await admin.page.keyboard.press("Escape");
  await admin.id("token-dialog").waitFor({ state: "detached" });
  assert.ok(!(await admin.page.content()).includes(token), "the token is gone with the dialog");
  const call = async (method) => (await admin.context.request.post(`${server.endpoint}/selvage.identity.IdentityService/${method}`, {
    headers: { authorization: `Bearer ${token}`, "content-type": "application/json", cookie: "" }, data: "{}",
  })).status();
  assert.equal(await call("WhoAmI"), 200);
  assert.equal(await call("ListUsers"), 403, "it is limited to one method");
  const row = admin.id("credentials").getByRole("row", { name: /ci of admin token admin, 1 method only/ });
  await row.waitFor();
  await admin.accessible("tokens");
  await row.getByTestId("end-credential").click();
  await admin.id("confirm-yes").click();
  await row.waitFor({ state: "detached" });
  assert.equal(await call("WhoAmI"), 401);
  admin.quiet("token");
}

/** In this order: what one makes the next one uses. */
export default { aToken, aUser, everyRole, aFirstPassword, anEndedSession };
