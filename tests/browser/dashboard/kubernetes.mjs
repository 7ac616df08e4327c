// Kubernetes clusters on simulated machines: made, changed, upgraded and deleted
// in the page, as every role.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { Person } from "./lib.mjs";

const CLUSTER = "#/clusters/prod";
const ready = (person, count) => person.id("machines-ready").getByText(`${count} of ${count} machines ready`).waitFor();

const runs = (person) => person.id("cluster-facts").getByText("running", { exact: true }).waitFor({ timeout: 60_000 });

/** A form that knows the rules, the plan before anything is done, and machines as they come. */
async function aKubernetesCluster({ admin }) {
  await admin.go("#/clusters");
  await admin.page.getByText("No Kubernetes clusters yet").waitFor();
  await admin.accessible("no clusters");
  await admin.page.keyboard.press("n");
  await admin.id("kubernetes-dialog").waitFor();
  await admin.id("submit").click();
  await admin.page.getByText("Give the cluster a name.").waitFor();
  await admin.id("kubernetes-name").fill("Prod_1");
  await admin.page.getByText("Small letters, digits and -").waitFor();
  await admin.id("kubernetes-name").fill("prod");
  const members = await admin.id("kubernetes-members").locator("option").evaluateAll((all) => all.map((one) => one.value));
  assert.deepEqual(members, ["1", "3", "5"]);
  await admin.id("kubernetes-members").selectOption("3");
  await admin.id("kubernetes-version").selectOption("1.36.4");
  await admin.id("kubernetes-organisation").fill("acme");
  await admin.id("pool-name-0").fill("web");
  await admin.id("pool-count-0").fill("-1");
  await admin.page.getByText("A whole number from 0 to 5000.").waitFor();
  await admin.id("pool-count-0").fill("2");
  await admin.id("pool-labels-0").fill("tier");
  await admin.page.getByText("is no label: write name=value").waitFor();
  await admin.id("pool-labels-0").fill("tier=front");
  await admin.id("more-pools").click();
  await admin.id("pool-name-1").fill("web");
  await admin.page.getByText("There is a pool of that name already.").waitFor();
  await admin.id("pool-name-1").fill("gpu");
  await admin.id("pool-type-1").fill("a100");
  await admin.id("show-plan").click();
  await admin.id("plan").getByText("add a machine to pool gpu with Kubernetes 1.36.4").first().waitFor();
  await admin.accessible("cluster form");
  await admin.id("submit").click();
  await admin.id("cluster-facts").getByText("running", { exact: true }).waitFor();
  await ready(admin, 6);
  assert.ok(admin.page.url().endsWith(CLUSTER), "the cluster has an address of its own");
  await admin.id("pool-gpu").getByText("of type a100").waitFor();
  await admin.id("pool-web").getByText("tier=front").waitFor();
  await admin.id("cluster-events").getByText("Ready").first().waitFor();
  await admin.accessible("cluster");
  admin.quiet("new cluster");
}

/** What one person changes the other sees, without loading anything anew. */
async function poolsOfACluster({ admin, browser, server }) {
  const other = await Person.sit(browser, server);
  await other.logIn("admin", server.password);
  await other.go(CLUSTER);
  await ready(other, 6);
  await other.page.evaluate(() => { globalThis.same = true; });

  await admin.go(CLUSTER);
  await admin.page.getByRole("button", { name: "Scale pool web" }).click();
  await admin.id("scale-count").fill("4");
  await admin.id("plan").getByText("add a machine to pool web").first().waitFor();
  await admin.accessible("scale form");
  await admin.id("submit").click();
  await ready(other, 8);

  await admin.id("pause").click();
  await other.page.getByText(/Paused( for \w+)?: nothing is changed/).waitFor();
  await admin.id("add-pool").click();
  await admin.id("pool-name-0").fill("gpu");
  await admin.id("submit").click();
  await admin.page.getByText("There is a pool of that name already.").waitFor();
  await admin.id("pool-name-0").fill("batch");
  await admin.id("submit").click();
  await other.id("pool-batch").getByText("0 of 1 ready").waitFor();
  await admin.accessible("paused cluster");
  await admin.id("pause").click();
  await ready(other, 9);

  await admin.page.getByRole("button", { name: "Delete pool batch" }).click();
  await admin.id("plan").getByText(/remove batch-/).waitFor();
  await admin.id("confirm-yes").click();
  await other.id("pool-batch").waitFor({ state: "detached" });
  await ready(other, 8);
  assert.equal(await other.page.evaluate(() => globalThis.same), true);
  other.quiet("the other's cluster");
  await other.leave();
  admin.quiet("pools");
}

/** Nothing is upgraded before its plan was shown. */
async function anUpgrade({ admin }) {
  await admin.go(CLUSTER);
  await admin.id("upgrade").click();
  await admin.id("upgrade-version").selectOption("1.37.1");
  await admin.id("plan").getByText(/upgrade .* to control plane 1\.37\.1/).first().waitFor();
  await admin.accessible("upgrade");
  const before = await admin.call("selvage.clusters.ClusterService/GetCluster", { name: "prod" });
  assert.equal(before.cluster.version, "1.36.4", "showing a plan changes nothing");
  await admin.id("submit").click();
  await admin.id("cluster-facts").getByText("1.37.1", { exact: true }).waitFor();
  await admin.page.getByRole("row", { name: /^control-plane-.*(?<!→) 1\.37\.1/ }).nth(2).waitFor();
  await admin.page.getByRole("row", { name: /^web-.*(?<!→) 1\.37\.1/ }).nth(3).waitFor();
  await admin.id("upgrade").click();
  await admin.page.getByText("This server offers no newer version").waitFor();
  await admin.page.keyboard.press("Escape");
  admin.quiet("upgrade");
}

/** A secret: it is in the file, and nowhere else. */
async function aKubeconfig({ admin }) {
  const addresses = [];
  const hear = (request) => addresses.push(request.url());
  admin.page.on("request", hear);
  await admin.go(CLUSTER);
  await admin.id("kubeconfig").click();
  await admin.accessible("kubeconfig");
  const [download] = await Promise.all([admin.page.waitForEvent("download"), admin.id("kubeconfig-download").click()]);
  assert.equal(download.suggestedFilename(), "prod.kubeconfig");
  // JSON is YAML too.
  const { clusters, users } = JSON.parse(readFileSync(await download.path(), "utf8"));
  assert.match(clusters[0].cluster["certificate-authority-data"], /^\S{100}/);
  const key = users[0].user["client-key-data"];
  assert.match(key, /^\S{100}/);
  assert.ok(!(await admin.page.content()).includes(key), "the key is not in the page");
  assert.ok(addresses.every((address) => !address.includes("?")), addresses.join("\n"));
  admin.page.off("request", hear);
  await admin.page.keyboard.press("Escape");
  admin.quiet("kubeconfig");
}

/** Sleep and waking up, new certificates, and an upgrade that is taken back in time. */
async function upkeep({ admin }) {
  await admin.go(CLUSTER);
  await runs(admin);
  await admin.id("hibernate").click();
  await admin.page.getByText("Everything in it stops, its API included.").waitFor();
  await admin.accessible("hibernate");
  await admin.id("confirm-yes").click();
  await admin.id("cluster-facts").getByText("asleep", { exact: true }).waitFor();
  assert.equal(await admin.id("upgrade").count(), 0, "what sleeps is not upgraded");
  assert.ok(await admin.id("backup-cluster").isDisabled(), "nor backed up");
  await admin.accessible("a cluster asleep");
  await admin.id("wake").click();
  await admin.id("confirm-yes").click();
  await runs(admin);
  await admin.id("rotate").click();
  await admin.id("confirm-yes").click();
  await admin.id("cluster-events").getByText(/certificate/).first().waitFor();
  await runs(admin);
  admin.quiet("upkeep");
}

/** A snapshot is taken, makes another cluster, brings its own back, and is found after its cluster is gone. */
async function backupsOfACluster({ admin }) {
  await admin.go(CLUSTER);
  const table = admin.page.getByRole("table", { name: "Backups of the cluster" });
  await admin.id("backup-cluster").click();
  await table.getByText("admin asked for it").waitFor();
  await table.getByRole("button", { name: /^Restore prod-/ }).first().click();
  await admin.id("restore-copy").check();
  await admin.id("restore-name").fill("Prod");
  await admin.id("submit").click();
  await admin.page.getByText("Small letters, digits and -").waitFor();
  await admin.id("restore-name").fill("twin");
  await admin.accessible("restore");
  await admin.id("submit").click();
  await admin.page.getByRole("heading", { name: "twin", exact: true }).waitFor();
  await runs(admin);
  await admin.id("backup-cluster").click();
  await table.getByText("admin asked for it").waitFor();
  await admin.id("delete-cluster").click();
  await admin.refused(/status of 404/, async () => {
    await admin.id("confirm-yes").click();
    await admin.page.getByText("The cluster is deleted").waitFor();
  });
  await admin.go("#/clusters");
  await admin.id("orphan-backups").getByRole("button", { name: /^Delete twin-/ }).click();
  await admin.accessible("backups of deleted clusters");
  await admin.id("confirm-yes").click();
  await admin.id("orphan-backups").waitFor({ state: "detached" });
  await admin.go(CLUSTER);
  await admin.page.getByRole("button", { name: /^Restore prod-/ }).first().click();
  await admin.id("submit").click();
  await admin.id("cluster-events").getByText("asked for backup prod-").waitFor();
  await runs(admin);
  admin.quiet("backups of a cluster");
}

/** Machines that no cluster gets, as the server lists them: simulated ones do not fail. */
async function quarantine({ admin }) {
  let held = [{ providerId: "m-17", hostname: "rack3-7", failures: 3, reason: "it never booted", failedAt: new Date().toISOString(), cluster: "prod" }];
  const released = [];
  await admin.page.route("**/selvage.clusters.ClusterService/ListQuarantinedMachines", (route) => route.fulfill({ json: { machines: held } }));
  await admin.page.route("**/selvage.clusters.ClusterService/ReleaseQuarantinedMachine", (route) => {
    released.push(route.request().postDataJSON());
    held = [];
    return route.fulfill({ json: {} });
  });
  await admin.go("#/clusters");
  await admin.page.reload();
  await admin.id("quarantine").getByText("it never booted").waitFor();
  await admin.accessible("quarantine");
  await admin.page.getByRole("button", { name: "Release rack3-7" }).click();
  await admin.id("confirm-yes").click();
  await admin.id("quarantine").waitFor({ state: "detached" });
  assert.deepEqual(released, [{ providerId: "m-17" }]);
  await admin.page.unroute("**/selvage.clusters.ClusterService/ListQuarantinedMachines");
  await admin.page.unroute("**/selvage.clusters.ClusterService/ReleaseQuarantinedMachine");
  admin.quiet("quarantine");
}

const ROLES = {
  developer: { grants: [{ role: "developer", organisation: "acme" }], owns: true },
  operator: { grants: [{ role: "operator", organisation: "uiop" }], owns: false },
  viewer: { grants: [{ role: "viewer" }], owns: false },
};
const BUTTONS = ["kubeconfig", "upgrade", "pause", "delete-cluster", "add-pool", "hibernate", "rotate", "backup-cluster"];

/** Those who own it change it, others look, and whoever is of another organisation does not learn of it. */
async function rolesAtACluster({ admin, browser, server }) {
  const enter = async (name, grants, options) => {
    const { generatedPassword } = await admin.call("selvage.identity.IdentityService/AddUser", { user: { username: name, grants } });
    const person = await Person.sit(browser, server, options);
    await person.logIn(name, generatedPassword);
    await person.go(CLUSTER);
    return person;
  };
  for (const [role, { grants, owns }] of Object.entries(ROLES)) {
    const person = await enter(`k-${role}`, grants, { viewport: { width: 390, height: 844 }, colorScheme: role === "viewer" ? "dark" : "light" });
    await ready(person, 8);
    for (const button of BUTTONS) assert.equal(await person.id(button).count(), owns ? 1 : 0, `${role} and ${button}`);
    assert.equal(await person.page.getByRole("button", { name: "Scale pool web" }).count(), owns ? 1 : 0, role);
    const wide = await person.page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= 391, `the cluster is ${wide} wide for the ${role}`);
    await person.accessible(`${role} at a cluster`);
    const { cluster } = await person.call("cnct.kaas.api.Cluster/GetCluster", { name: "prod" });
    assert.equal(cluster.name, "prod", role);
    assert.equal((cluster.kubeconfig ?? "").includes("client-key-data"), owns, `${role} and the kubeconfig`);
    person.quiet(role);
    await person.leave();
  }
  const stranger = await enter("k-stranger", [{ role: "developer", organisation: "other" }]);
  await stranger.page.getByText("There is no such cluster").waitFor();
  await stranger.go("#/clusters");
  await stranger.page.getByText("No Kubernetes clusters yet").waitFor();
  assert.equal(await stranger.id("new-kubernetes").count(), 1);
  await stranger.leave();
}

/** The page of a cluster goes on after its server was killed. */
async function aClusterOverARestart({ admin, server }) {
  await admin.go(CLUSTER);
  await ready(admin, 8);
  await admin.page.evaluate(() => { globalThis.same = true; });
  admin.expected = /ERR_CONNECTION|ERR_INCOMPLETE|ERR_NETWORK|ERR_HTTP2|ERR_EMPTY/;
  await server.stop("SIGKILL");
  await admin.id("connection").getByText("connection to the server is lost").waitFor();
  await server.start();
  await admin.id("connection").getByText("The server is back").waitFor();
  admin.expected = undefined;
  await admin.call("cnct.kaas.api.Cluster/ScaleNodePool", { clusterName: "prod", nodePools: [{ name: "web", count: 1 }] });
  await ready(admin, 5);
  assert.equal(await admin.id("trouble").count(), 0);
  assert.equal(await admin.page.evaluate(() => globalThis.same), true, "the page was not loaded anew");
  admin.quiet("restart at a cluster");
}

async function theEndOfACluster({ admin }) {
  await admin.go(CLUSTER);
  await admin.id("delete-cluster").click();
  await admin.id("goes-too").getByText("5 machines, wiped and given back, with pools gpu, web").waitFor();
  await admin.id("plan").getByText("forget the cluster and its keys").waitFor();
  await admin.accessible("delete a cluster");
  // The page may be reading the cluster's events when it goes.
  await admin.refused(/status of 404/, async () => {
    await admin.id("confirm-yes").click();
    await admin.page.getByText("The cluster is deleted").waitFor();
  });
  await admin.accessible("deleted cluster");
  await admin.page.getByRole("link", { name: "All clusters" }).click();
  await admin.page.getByText("No Kubernetes clusters yet").waitFor();
  admin.quiet("deleted cluster");
}

/** In this order: what one makes the next one uses. */
export default { aKubernetesCluster, poolsOfACluster, anUpgrade, aKubeconfig, upkeep, backupsOfACluster, quarantine, rolesAtACluster, aClusterOverARestart, theEndOfACluster };
