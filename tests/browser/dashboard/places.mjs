// Map, machines, volumes, audit, about.
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import assert from "node:assert/strict";
import { Person, until } from "./lib.mjs";

async function theMap({ admin }) {
  await admin.go("#/map");
  await admin.page.getByRole("table", { name: "Cloudlets on the map" }).waitFor();
  await admin.page.getByRole("button", { name: "Zoom in" }).click();
  await admin.page.getByRole("button", { name: "Zoom in" }).click();
  await admin.page.locator(".spot .label").first().waitFor({ state: "attached" });
  await admin.page.getByRole("button", { name: "Whole world" }).click();
  await admin.accessible("map");
  admin.quiet("map");
}

async function aMachine({ admin }) {
  await admin.go("#/machines");
  await admin.page.getByRole("heading", { name: "Machines", exact: true }).waitFor();
  await admin.id("machine-here").click();
  await admin.page.locator(".uplot canvas").first().waitFor();
  await admin.accessible("machine");
  await admin.id("tab-processes").click();
  await admin.page.getByRole("table", { name: "Processes" }).waitFor();
  await admin.id("filter").fill("selvage");
  await admin.page.getByRole("cell", { name: "selvage", exact: true }).first().waitFor();
  await admin.accessible("processes");
  await admin.id("tab-containers").click();
  await admin.page.locator("[aria-label=Containers], [data-testid=empty], [data-testid=trouble]").first().waitFor();
  await admin.accessible("containers");
  await admin.id("tab-log").click();
  await admin.id("log").waitFor();
  await admin.id("tab-services").click();
  await admin.page.locator("[aria-label=Services], [data-testid=empty], [data-testid=trouble]").first().waitFor();
  await admin.id("reboot").click();
  await admin.page.getByText("this page comes back when it does").waitFor();
  await admin.page.keyboard.press("Escape");
  admin.quiet("machine");
}

async function aJoinToken({ admin }) {
  await admin.go("#/machines?new=machine");
  await admin.id("machine-name").fill("rack3-7");
  await admin.id("submit").click();
  await admin.id("make-token").click();
  await admin.id("token").getByText(/SELVAGE_JOIN_TOKEN=slvj_/).waitFor();
  await admin.accessible("join token");
  await admin.page.keyboard.press("Escape");
  await admin.id("token").waitFor({ state: "detached" });
  assert.ok(!(await admin.page.content()).includes("slvj_"), "the token is gone with the dialog");
}

async function aVolume({ admin }) {
  await admin.go("#/volumes");
  await admin.page.getByText("No volumes yet").waitFor();
  await admin.id("new-volume").click();
  await admin.id("submit").click();
  await admin.page.getByText("Letters, digits and _ + . - only").waitFor();
  await admin.id("volume-name").fill("data");
  await admin.id("volume-class").selectOption("thin");
  await admin.id("submit").click();
  await admin.page.getByRole("cell", { name: "data", exact: true }).waitFor();
  await admin.page.getByRole("button", { name: "Back up data", exact: true }).click();
  await admin.id("backup-name").fill("first");
  await admin.id("repository-path").fill("backups/test");
  await admin.id("repository-password").fill("of the repository");
  await admin.accessible("backup form");
  await admin.id("submit").click();
  await admin.page.getByRole("row", { name: /backup first done/ }).waitFor({ timeout: 60_000 });
  await openRepository(admin);
  await admin.page.getByRole("button", { name: "Restore first", exact: true }).click();
  await admin.id("submit").click();
  await admin.id("restore-dialog").getByText("Enter a name.").waitFor();
  await admin.accessible("restore form");
  await admin.id("restore-volume").fill("again");
  await admin.id("restore-class").selectOption("thin");
  await admin.id("submit").click();
  // Meanwhile the other volume can be changed.
  await admin.page.getByRole("button", { name: "Resize data" }).click();
  await admin.id("resize-size").fill("2");
  await admin.id("submit").click();
  await admin.page.getByRole("cell", { name: "2.0 GiB" }).waitFor();
  await admin.page.getByRole("button", { name: "Snapshot data" }).click();
  await admin.id("snapshot-name").fill("data-before");
  await admin.id("submit").click();
  await admin.page.getByRole("cell", { name: "data-before", exact: true }).waitFor();
  await admin.accessible("volumes");
  await admin.page.getByRole("cell", { name: "again", exact: true }).waitFor({ timeout: 60_000 });
  await admin.page.getByRole("button", { name: "Delete again" }).click();
  await admin.id("confirm-yes").click();
  await admin.page.getByRole("cell", { name: "again", exact: true }).waitFor({ state: "detached" });
  admin.quiet("volumes");
}

/** Opens the repository of the test: a wrong password is said, and a backup is chosen from the list. */
async function openRepository(admin) {
  await admin.id("restore").click();
  await admin.id("repository-path").fill("backups/test@first");
  await admin.id("repository-password").fill("of somebody else");
  await admin.id("submit").click();
  await admin.page.getByText("Only the repository").waitFor();
  await admin.id("repository-path").fill("backups/test");
  await admin.refused(/status of 4/, async () => {
    await admin.id("submit").click();
    await admin.id("repository-dialog").getByTestId("trouble").waitFor();
  });
  await admin.accessible("repository form");
  await admin.id("repository-password").fill("of the repository");
  await admin.id("submit").click();
  await admin.page.getByRole("table", { name: "Stored backups" }).getByRole("cell", { name: "first", exact: true }).waitFor();
}

/** What is in a repository is listed, and what is deleted there is gone. */
async function storedBackups({ admin }) {
  await admin.go("#/volumes");
  // What opened a repository is not kept: the page asks again.
  await admin.page.reload();
  await admin.page.getByRole("table", { name: "Volumes" }).getByRole("cell", { name: "data", exact: true }).first().waitFor();
  assert.equal(await admin.id("stored").count(), 0);
  await openRepository(admin);
  await admin.accessible("stored backups");
  await admin.page.getByRole("button", { name: "Delete first", exact: true }).click();
  await admin.id("confirm").getByText("cannot be brought back").waitFor();
  await admin.id("confirm-yes").click();
  await admin.id("stored").getByText("It holds no backups yet").waitFor();
  await admin.id("close-repository").click();
  await admin.id("stored").waitFor({ state: "detached" });
  admin.quiet("stored backups");
}

/** A store of REST has an address, and the server is asked for it as such. */
async function aRestStore({ admin }) {
  await admin.go("#/volumes?new=restore");
  await admin.id("repository-store").selectOption("rest");
  await admin.id("repository-path").fill("backups/test");
  await admin.id("repository-password").fill("of the repository");
  await admin.id("repository-address").fill("https://me:secret@store.example");
  await admin.id("submit").click();
  await admin.page.getByText("without a user and password").waitFor();
  await admin.id("repository-address").fill("http://127.0.0.1:1");
  const asked = admin.page.waitForRequest((request) => request.url().endsWith("BackupsService/ListBackups") && request.postData().includes("rest:"));
  await admin.refused(/status of [45]/, async () => {
    await admin.id("submit").click();
    assert.equal((await asked).postDataJSON().repository.endpoint, "rest:http://127.0.0.1:1");
    await admin.id("repository-dialog").getByTestId("trouble").waitFor({ timeout: 60_000 });
  });
  await admin.accessible("REST store");
  await admin.page.keyboard.press("Escape");
  admin.quiet("REST store");
}

/** A schedule is set beside its volume, changed, followed to its repository, and ended. */
async function aSchedule({ admin, directory, shots }) {
  const folder = join(directory, "data/lvmd/credentials");
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, "nightly"), "RESTIC_PASSWORD=of the repository\n", { mode: 0o600 });
  await admin.go("#/volumes");
  await admin.page.getByRole("button", { name: "Schedule data", exact: true }).click();
  await admin.id("repository-path").fill("backups/test");
  await admin.id("submit").click();
  await admin.page.getByText("needs credentials kept on the machine").waitFor();
  await admin.accessible("schedule form");
  await admin.id("repository-credentials").fill("nobody");
  await admin.refused(/status of 4/, async () => {
    await admin.id("submit").click();
    await admin.id("schedule-dialog").getByTestId("trouble").waitFor();
  });
  await admin.id("repository-credentials").fill("nightly");
  await admin.id("submit").click();
  const row = admin.page.getByRole("table", { name: "Schedules" }).getByRole("row", { name: /^data-daily / });
  await row.getByText("every day").waitFor();
  await row.getByText("none yet").waitFor();
  await row.getByText("7 daily, 4 weekly").waitFor();
  await admin.accessible("schedules");
  await admin.page.getByRole("button", { name: "Change data-daily", exact: true }).click();
  assert.equal(await admin.id("repository-credentials").inputValue(), "nightly");
  await admin.id("schedule-every").selectOption({ label: "every hour" });
  assert.equal(await admin.id("schedule-at").inputValue(), "0", "no hour has two hours");
  await admin.id("submit").click();
  await row.getByText("every hour").waitFor();
  // Nobody has to type where it is, nor what opens it.
  await admin.page.getByRole("button", { name: "Backups of data-daily", exact: true }).click();
  await admin.page.getByRole("table", { name: "Stored backups" }).getByRole("cell", { name: "first", exact: true }).waitFor();
  if (shots) {
    if (await admin.id("first-password").count()) await admin.id("first-password").getByText("later", { exact: true }).click();
    await admin.page.locator(".notes p").first().waitFor({ state: "detached" });
    await admin.page.screenshot({ path: join(shots, "dashboard-volumes.png") });
  }
  // The scores of the overview no longer ask for one of this volume.
  const { radar } = await until("the mark", async () => {
    const overview = await admin.call("selvage.dashboard.DashboardService/GetOverview", {});
    return JSON.stringify(overview.radar).includes("volume data has no") ? undefined : overview;
  });
  assert.ok(radar.length > 0);
  await admin.page.getByRole("button", { name: "Delete data-daily", exact: true }).click();
  await admin.id("confirm-yes").click();
  await row.waitFor({ state: "detached" });
  admin.quiet("schedule");
}

/** How a reply told of an error leads to its line; and the server looks through all lines, not only those that are shown. */
async function theAudit({ admin }) {
  const refused = await admin.context.request.post(`${admin.server.endpoint}/edgeproto.FlavorApi/CreateFlavor`, {
    headers: { "content-type": "application/json", origin: admin.server.endpoint }, data: "{}", ignoreHTTPSErrors: true,
  });
  const id = refused.headers()["x-request-id"];
  assert.match(id, /./, "a reply has an id");
  const rows = admin.page.getByRole("table", { name: "Audit" }).locator("tbody tr");
  const found = async (what, count) => until(what, async () => {
    // Lines are kept within a second of their call.
    await admin.id("audit-again").click();
    return (await rows.count()) === count;
  });
  await admin.go(`#/audit?text=${id}`);
  await admin.page.locator("main h1").getByText("Audit").waitFor();
  await found("the line of the request", 1);
  await rows.first().getByRole("button").click();
  await admin.id("audit-line").getByText(id).waitFor();
  await admin.id("audit-line").getByText("edgeproto.FlavorApi/CreateFlavor").waitFor();
  await admin.accessible("audit line");
  await admin.page.keyboard.press("Escape");

  // Typed, the same; and it is in the address.
  await admin.go("#/audit");
  await until("all lines", async () => (await rows.count()) > 3);
  await admin.page.keyboard.press("/");
  await admin.page.keyboard.type(id);
  await until("the address", () => admin.page.url().includes(`text=${id}`));
  await until("one line", async () => (await rows.count()) === 1);
  await admin.id("audit-outcome").selectOption("ok");
  await admin.id("empty").getByText("No matching lines").waitFor();
  await admin.accessible("no audit line");
  await admin.id("empty").getByRole("button", { name: "Show all lines" }).click();
  await until("all lines again", async () => (await rows.count()) > 3);
  assert.doesNotMatch(admin.page.url(), /text=|outcome=/);

  await admin.id("audit-who").fill("nobody-here");
  await admin.id("audit-who").press("Enter");
  await admin.id("empty").waitFor();
  await admin.id("audit-who").fill("admin");
  await admin.id("audit-who").press("Enter");
  await until("lines of one", async () => (await rows.count()) > 3);
  const asked = admin.page.waitForRequest((request) => request.url().endsWith("/ListAudit"));
  await admin.id("audit-since").selectOption("1h");
  const { since, who } = (await asked).postDataJSON();
  assert.ok(Date.parse(since) < Date.now() && who === "admin", `${since} ${who}`);
  await admin.id("audit-outcome").selectOption("failed");
  await admin.accessible("audit");
  admin.quiet("audit");
}

/** The id beside an error is a link to its line. */
async function anErrorAndItsLine({ admin }) {
  await admin.go("#/volumes");
  await admin.page.getByRole("button", { name: "Snapshot data", exact: true }).click();
  await admin.id("snapshot-name").fill("data");
  await admin.refused(/status of 4/, async () => {
    await admin.id("submit").click();
    await admin.id("request-id").waitFor();
  });
  const id = await admin.id("request-id").textContent();
  await admin.id("request-id").click();
  await admin.page.getByRole("heading", { name: "Audit", exact: true }).waitFor();
  await until("its line", async () => {
    await admin.id("audit-again").click();
    return (await admin.page.getByRole("cell", { name: "VolumesService/CreateSnapshot" }).count()) === 1;
  });
  assert.equal(await admin.id("audit-text").inputValue(), id);
  admin.quiet("error and its line");
}

async function about({ admin }) {
  await admin.go("#/about");
  await admin.page.getByText("TLS on, login required").waitFor();
  await admin.id("process").waitFor();
  await admin.id("reconcilers").getByRole("listitem").first().waitFor();
  await admin.accessible("about");
  // One that fails says so in words, and comes first.
  await admin.page.route("**/selvage.system.SystemService/GetStatus", async (route) => {
    const response = await route.fetch();
    const status = await response.json();
    status.reconcilers.push({ name: "zzz-of-the-test", runs: "9", failures: "4", failing: 3, lastRun: String(Math.floor(Date.now() / 1000)), lastError: "the <disk> is full" });
    await route.fulfill({ response, json: status });
  });
  const first = admin.id("reconcilers").getByRole("listitem").first();
  await first.getByText("zzz-of-the-test").waitFor();
  await first.getByText("failed 3× in a row").waitFor();
  await first.getByText("the <disk> is full").waitFor();
  await first.getByText("9 runs, 4 failed").waitFor();
  await admin.accessible("a reconciler that fails");
  await admin.page.unroute("**/selvage.system.SystemService/GetStatus");
  admin.quiet("about");
}

/** Why scores are not higher: the rule and a command to take along, in sight. */
async function theScores({ admin }) {
  await admin.go("#/");
  const reason = admin.id("radar").getByRole("listitem").filter({ hasText: "volume_backup" }).first();
  await reason.getByText(/selvage backup schedule set \S+ \S+ backups/).waitFor();
  await admin.context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: admin.server.endpoint });
  await reason.getByRole("button", { name: "Copy" }).click();
  assert.match(await admin.page.evaluate(() => navigator.clipboard.readText()), /^selvage backup schedule set /);
  await admin.accessible("scores");
  admin.quiet("scores");
}

/** A machine whose clock is three hours behind shows the times of the server all the same. */
async function aWrongClock({ browser, server }) {
  const person = await Person.sit(browser, server);
  await person.page.addInitScript(() => {
    const real = Date.now.bind(Date);
    Date.now = () => real() - 3 * 3_600_000;
  });
  await person.logIn("admin", server.password);
  await person.go("#/audit");
  const newest = person.page.getByRole("table", { name: "Audit" }).locator("tbody td.wide time").first();
  await newest.waitFor();
  assert.match(await newest.textContent(), /^(just now|\d+ (s|min) ago)$/);
  person.quiet("wrong clock");
  await person.leave();
}

/** In this order: what one makes the next one uses. */
export default { theMap, aMachine, aJoinToken, aVolume, theScores, aRestStore, aSchedule, storedBackups, theAudit, anErrorAndItsLine, about, aWrongClock };
