// From nothing to an app that runs: size, cloudlet, app, instance; its address,
// log, shell and use; update and delete. All by the page's own forms.
import assert from "node:assert/strict";
import { get } from "node:http";
import { Person, until } from "./lib.mjs";

/** Web sockets of logs and shells. */
const SHELL = /selvage\/v1\/shell/;

async function aSizeAndACloudlet({ admin }) {
  await admin.go("#/cloudlets");
  await admin.id("empty").waitFor();
  await admin.accessible("no cloudlets");
  await admin.id("new-flavor").click();
  await admin.id("submit").click();
  await admin.page.getByText("Give the size a name.").waitFor();
  await admin.id("flavor-name").fill("tiny");
  await admin.page.getByLabel("Memory, MB").fill("64");
  await admin.id("submit").click();
  await admin.page.getByText("1 vCPU, 64 MB, 1 GB").waitFor();

  await admin.page.keyboard.press("n");
  await admin.id("cloudlet-operator").fill("uiop");
  await admin.id("cloudlet-name").fill("site");
  await admin.id("cloudlet-latitude").fill("95");
  await admin.id("submit").click();
  await admin.page.getByText("Latitude is a number from -90 to 90.").waitFor();
  await admin.accessible("cloudlet form");
  await admin.id("cloudlet-latitude").fill("50.1");
  await admin.id("cloudlet-longitude").fill("8.7");
  await admin.id("submit").click();
  await admin.id("progress-done").click();
  await admin.page.getByRole("heading", { name: "uiop/site" }).waitFor();
  // Its agent is in the same process and connects by itself.
  await admin.page.getByText("ready", { exact: true }).first().waitFor();
  await admin.accessible("cloudlet");
  admin.quiet("cloudlet");
}

async function anApp({ admin, image }) {
  await admin.go("#/apps");
  await admin.id("empty").waitFor();
  await admin.id("new-app").click();
  await admin.id("submit").click();
  await admin.page.getByText("Give the app a name.").waitFor();
  await admin.id("app-developer").fill("acme");
  await admin.id("app-name").fill("<script>");
  await admin.id("submit").click();
  await admin.page.getByText("Letters, digits and - _ . & , ! only").waitFor();
  await admin.id("app-name").fill("web");
  await admin.id("app-version").fill("1");
  await admin.id("app-ports").fill("tcp:22");
  await admin.page.getByText("Port 22 is kept").waitFor();
  await admin.id("app-ports").fill("tcp:8080,tcp:8080");
  await admin.page.getByText("named twice").waitFor();
  await admin.accessible("app form");
  await admin.id("app-ports").fill("tcp:8080");
  await admin.id("app-image").fill(`file://${image}`);
  await admin.id("submit").click();
  await admin.page.getByRole("heading", { name: "web 1" }).waitFor();
  await admin.page.getByText("Not running anywhere yet").waitFor();
  await admin.accessible("app");
  admin.quiet("app");
}

async function anInstance({ admin }) {
  await admin.go("#/apps/acme/web/1");
  await admin.id("start-instance").click();
  await admin.id("instance-form").waitFor();
  assert.match(await admin.id("instance-cloudlet").inputValue(), /uiop\/site/);
  await admin.accessible("instance form");
  await admin.id("submit").click();
  await admin.id("progress").waitFor();
  await admin.id("progress-done").click();
  await admin.page.getByRole("heading", { name: "web 1 on uiop/site" }).waitFor();
  await admin.id("instance-facts").getByText("ready", { exact: true }).waitFor();
  const link = await admin.id("address").first().getAttribute("href");
  const page = await new Promise((resolve, reject) => {
    get(link, (reply) => reply.on("data", (data) => resolve(String(data))).on("end", () => resolve(""))).on("error", reject);
  });
  assert.match(page, /./, `${link} answers`);
  // The name that devices get is a link too, to the same port.
  const named = new URL(await admin.id("dns-name").first().getAttribute("href"));
  assert.match(named.hostname, /\.selvage\.internal$/);
  assert.equal(named.port, new URL(link).port);
  await admin.accessible("instance");
  await admin.go("#/operations");
  await admin.page.getByRole("row", { name: /^Create instance web 1 on uiop\/site succeeded/ }).getByRole("link").click();
  await admin.page.getByRole("heading", { name: "web 1 on uiop/site" }).waitFor();
  admin.quiet("instance");
}

async function itsLog({ admin }) {
  await openTab(admin, "log");
  await admin.id("log").getByText("started").waitFor();
  await admin.id("log-search").fill("nothing like it");
  await admin.page.getByText(/^0 of /).waitFor();
  await admin.id("log-search").fill("START");
  await admin.id("log").getByText("started").waitFor();
  await admin.accessible("log");
  admin.quiet("log");
}

/** A log whose connection breaks is opened anew by itself, and goes on. */
async function aBrokenLog({ browser, server }) {
  const person = await Person.sit(browser, server);
  const sockets = [];
  await person.page.routeWebSocket(SHELL, (socket) => {
    socket.connectToServer();
    sockets.push(socket);
  });
  await person.logIn("admin", server.password);
  await openTab(person, "log");
  await person.id("log").getByText("started").waitFor();
  assert.equal(sockets.length, 1);
  await sockets[0].close({ code: 1001 });
  await until("another connection", () => sockets.length === 2);
  const count = async () => (await person.id("log").textContent()).split("\n").length;
  const before = await count();
  await until("more lines", async () => (await count()) > before);
  await person.id("log").getByText("started").waitFor();
  person.quiet("broken log");
  await person.leave();
}

/** Nothing says Connected before it is: whoever types then loses no key, however long it took. */
async function aSlowShell({ browser, server }) {
  const person = await Person.sit(browser, server);
  let release;
  const held = new Promise((resolve) => { release = resolve; });
  let asked = false;
  await person.page.routeWebSocket(SHELL, async (socket) => {
    asked = true;
    await held;
    socket.connectToServer();
  });
  await person.logIn("admin", server.password);
  await openTab(person, "shell");
  await until("the socket", () => asked);
  await person.id("shell-state").getByText("Opening a shell").waitFor();
  assert.equal(await person.id("shell-state").getByText("Connected").count(), 0, "it is not connected yet");
  release();
  await inTheShell(person);
  person.quiet("slow shell");
  await person.leave();
}

/** Neither a login nor a request that breaks off, as when this machine's network changes, nor a socket that never opens keeps a log silent. */
async function aLogAgainstOdds({ browser, server }) {
  const person = await Person.sit(browser, server);
  let [requests, sockets, logins] = [0, 0, 0];
  await person.page.route("**/services.auth.AuthService/Login", (route) => {
    logins += 1;
    return logins === 1 ? route.abort("connectionreset") : route.continue();
  });
  await person.page.route("**/edgeproto.ExecApi/RunCommand", (route) => {
    requests += 1;
    return requests === 1 ? route.abort("connectionreset") : route.continue();
  });
  await person.page.routeWebSocket(SHELL, async (socket) => {
    sockets += 1;
    if (sockets === 1) await new Promise(() => {});
    socket.connectToServer();
  });
  person.expected = /ERR_CONNECTION_RESET/;
  await person.page.clock.install();
  await person.logIn("admin", server.password);
  await openTab(person, "log");
  await until("the first socket", () => sockets === 1);
  await person.page.clock.fastForward(10_000);
  await person.id("log").getByText("started").waitFor();
  assert.equal(await person.id("trouble").count(), 0, "nobody is told of it");
  assert.deepEqual([logins, requests, sockets], [2, 3, 2]);
  person.quiet("log against odds");
  await person.leave();
}

async function inTheShell(admin) {
  await admin.id("shell-state").getByText("Connected").waitFor();
  await admin.page.keyboard.type("echo he''llo $((20+22))\n");
  await admin.id("terminal").getByText("hello 42").waitFor();
}

async function itsShell({ admin }) {
  await openTab(admin, "shell");
  await inTheShell(admin);
  await admin.page.keyboard.type("printf '\\033[38;2;1;200;3mtrue''color\\033[0m\\n'\n");
  await admin.id("terminal").getByText("truecolor").waitFor();
  await admin.accessible("shell");
  await admin.page.keyboard.type("exit 3\n");
  await admin.page.getByText("ended with code 3").waitFor();
  await admin.id("shell-again").click();
  await admin.id("shell-state").getByText("Connected").waitFor();
  admin.quiet("shell");
}

/** Many logs and shells, one after the other: each has something to say. */
async function manyConversations({ admin }) {
  for (let round = 0; round < 4; round += 1) {
    await openTab(admin, "log");
    await admin.id("log").getByText("started").waitFor();
    await openTab(admin, "shell");
    await inTheShell(admin);
  }
  admin.quiet("many conversations");
}

async function itsUse({ admin }) {
  await openTab(admin, "usage");
  await admin.page.locator(".uplot canvas").first().waitFor({ timeout: 60_000 });
  await admin.page.getByRole("img", { name: /Working set: memory now/ }).waitFor();
  await admin.accessible("usage");
  admin.quiet("usage");
}

async function anUpdate({ admin }) {
  await admin.go("#/apps/acme/web/1");
  await admin.id("edit-app").click();
  assert.ok(await admin.id("app-ports").isDisabled(), "ports are fixed while it runs");
  await admin.id("app-command").fill("/bin/sh -c 'trap exit TERM; echo started anew; httpd -f -p 8080 -h /www & wait'");
  await admin.id("submit").click();
  await admin.page.getByText("started anew").first().waitFor();
  // The log that is open goes on with that of the new container.
  await openTab(admin, "log");
  await admin.id("log").getByText("tick").waitFor();
  await admin.id("update-instance").click();
  await admin.id("progress-done").click({ timeout: 60_000 });
  await admin.id("log").getByText("started anew").waitFor();
  admin.quiet("update");
}

/** What runs cannot be deleted, and the page says what is in the way. */
async function deletions({ admin }) {
  await admin.go("#/apps/acme/web/1");
  await admin.id("delete-app").click();
  await admin.page.getByText("Delete these instances first").waitFor();
  await admin.refused(/status of 400/, async () => {
    await admin.id("confirm-yes").click();
    await admin.id("trouble").waitFor();
  });
  await admin.page.keyboard.press("Escape");
  await openTab(admin, "overview");
  await admin.id("delete-instance").click();
  await admin.id("delete-dialog").getByText("is deleted too").waitFor();
  await admin.accessible("delete dialog");
  await admin.id("delete-yes").click();
  await admin.id("progress-done").click({ timeout: 60_000 });
  await admin.page.getByText("Nothing runs yet").waitFor();
  admin.quiet("delete");
}

/** An instance that waits for an agent that never comes: it can be told to stop, and left to itself. */
async function aCancelledOperation({ admin }) {
  await admin.call("edgeproto.CloudletApi/CreateCloudlet", { key: { operatorKey: { name: "uiop" }, name: "far" }, location: { latitude: -33.9, longitude: 151.2 }, numDynamicIps: 9 }, true);
  await admin.call("edgeproto.CloudletInfoApi/InjectCloudletInfo", { key: { operatorKey: { name: "uiop" }, name: "far" }, state: "CLOUDLET_STATE_READY", osMaxRam: "9999", osMaxVcores: "99", osMaxVolGb: "999", flavors: [{ name: "f", vcpus: "9", ram: "9000", disk: "90" }] });
  await admin.go("#/instances?new=instance");
  await admin.id("instance-form").waitFor();
  await admin.id("instance-cloudlet").selectOption("uiop/far");
  await admin.id("submit").click();
  await admin.id("cancel-operation").click();
  await admin.page.getByText("Undoing").waitFor();
  await admin.id("progress-leave").click();
  await admin.go("#/operations");
  await admin.page.getByText("undoing").first().waitFor();
  await admin.accessible("operations");
  admin.quiet("cancel");
}

async function openTab(admin, tab) {
  await admin.go("#/instances");
  await admin.page.getByRole("link", { name: "web 1" }).click();
  await admin.id("tab-overview").waitFor();
  await admin.id(`tab-${tab}`).click();
  await until("the tab", async () => (await admin.id(`tab-${tab}`).getAttribute("aria-current")) === "page");
}

/** In this order: what one makes the next one uses. */
export default { aSizeAndACloudlet, anApp, anInstance, itsLog, itsShell, manyConversations, aBrokenLog, aSlowShell, aLogAgainstOdds, itsUse, anUpdate, deletions, aCancelledOperation };
