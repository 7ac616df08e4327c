// Map, machines, volumes, audit, about.
import assert from "node:assert/strict";

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
  await admin.id("restore").click();
  await admin.id("repository-path").fill("backups/test@first");
  await admin.id("repository-password").fill("of the repository");
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

async function auditAndAbout({ admin }) {
  await admin.go("#/audit");
  await admin.page.getByRole("button", { name: /AppApi\/CreateApp|IdentityService\/CreateJoinToken/ }).first().click();
  await admin.id("audit-line").waitFor();
  await admin.accessible("audit line");
  await admin.page.keyboard.press("Escape");
  await admin.id("audit-outcome").selectOption("failed");
  await admin.accessible("audit");
  await admin.go("#/about");
  await admin.page.getByText("encrypted, logins needed").waitFor();
  await admin.id("process").waitFor();
  await admin.accessible("about");
  admin.quiet("about");
}

/** In this order: what one makes the next one uses. */
export default { theMap, aMachine, aJoinToken, aVolume, auditAndAbout };
