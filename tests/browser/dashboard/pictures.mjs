// Pictures for docs/, of a system with a few more places than a test needs.
// Taken when SELVAGE_TEST_SCREENSHOTS names a folder.
import { join } from "node:path";
import { Person } from "./lib.mjs";

const PLACES = [["dallas", 32.8, -96.8, "READY"], ["sydney", -33.9, 151.2, "OFFLINE"], ["tokyo", 35.7, 139.7, "READY"], ["nairobi", -1.3, 36.8, "READY"], ["lima", -12, -77, "ERRORS"]];

const CLUSTER = {
  name: "shop", k8sVersion: "1.36.4", controlPlaneNodes: { instanceType: "standard", count: 3 },
  workerNodePools: [{ name: "web", instanceType: "standard", count: 2, labels: [{ name: "tier", value: "front" }] }, { name: "gpu", instanceType: "a100", count: 1 }],
};

async function pictures({ admin, browser, server, shots }) {
  if (!shots) return;
  const person = await Person.sit(browser, server, { viewport: { width: 1440, height: 900 } });
  await person.go("#/");
  await person.id("login-button").waitFor();
  await person.page.screenshot({ path: join(shots, "dashboard-login.png") });
  await person.logIn("admin", server.password);
  await person.id("first-password").getByText("later", { exact: true }).click();
  for (const [name, latitude, longitude, state] of PLACES) {
    const key = { operatorKey: { name: "uiop" }, name };
    await admin.call("edgeproto.CloudletApi/CreateCloudlet", { key, location: { latitude, longitude }, numDynamicIps: 9 }, true);
    await admin.call("edgeproto.CloudletInfoApi/InjectCloudletInfo", { key, state: `CLOUDLET_STATE_${state}`, osMaxRam: "16384", osMaxVcores: "16", osMaxVolGb: "500", errors: state === "ERRORS" ? ["the container runtime does not answer"] : [] });
  }
  const shot = async (name, hash, ready) => {
    await person.go(hash);
    await ready();
    // Charts are drawn as numbers come in.
    await person.page.waitForTimeout(Number(process.env.SELVAGE_TEST_SCREENSHOT_WAIT ?? 2500));
    await person.page.screenshot({ path: join(shots, `${name}.png`) });
  };
  const instance = "#/instances/acme/web/1/uiop/site/autoclusterweb/acme";
  await shot("dashboard-map", "#/map", () => person.id("main").getByRole("table").waitFor());
  await shot("dashboard-instance", instance, () => person.id("instance-facts").waitFor());
  await shot("dashboard-log", `${instance}?tab=log`, () => person.id("log").waitFor());
  await shot("dashboard-shell", `${instance}?tab=shell`, async () => {
    await person.id("shell-state").getByText("Connected").waitFor();
    await person.page.keyboard.type("ls -l / && echo it works\n");
  });
  await shot("dashboard-usage", `${instance}?tab=usage`, () => person.page.locator(".uplot canvas").first().waitFor());
  await shot("dashboard-audit", "#/audit", () => person.page.getByRole("table").waitFor());
  for (const name of ["apps", "instances", "operations", "cloudlets", "machines", "people", "about"]) {
    await shot(`dashboard-${name}`, `#/${name}`, () => person.page.locator("main h1").waitFor());
  }
  await admin.call("cnct.kaas.api.Cluster/CreateCluster", CLUSTER);
  await shot("dashboard-clusters", "#/clusters", () => person.page.getByRole("link", { name: CLUSTER.name }).waitFor());
  await shot("dashboard-cluster", `#/clusters/${CLUSTER.name}`, () => person.id("machines-ready").getByText("6 of 6").waitFor());
  await shot("dashboard-upgrade", `#/clusters/${CLUSTER.name}`, async () => {
    await person.id("upgrade").click();
    await person.id("plan").waitFor();
  });
  await admin.call("cnct.kaas.api.Cluster/DeleteCluster", { name: CLUSTER.name });
  await person.go("#/clusters");
  await person.page.getByText("No Kubernetes clusters yet").waitFor();
  // Late, when there are numbers of some minutes.
  await shot("dashboard-overview", "#/", () => person.id("verdict").waitFor());
  await shot("dashboard-machine", "#/machines/here", () => person.page.locator(".uplot canvas").first().waitFor());
  await person.page.keyboard.press("t");
  await shot("dashboard-dark", "#/", () => person.id("verdict").waitFor());
  await person.leave();
}

export default { pictures };
