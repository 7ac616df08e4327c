// People with browsers use the page at /: every page and form, as every role.
// Usage: node dashboard.mjs BINARY DIRECTORY IMAGE [SCENARIO...]
// DIRECTORY is empty and stays; IMAGE is a container image with a shell and a
// web server at port 8080. NODE_PATH must lead to playwright-core and axe-core.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { openBrowser, Person, Server } from "./dashboard/lib.mjs";
import first from "./dashboard/first.mjs";
import kubernetes from "./dashboard/kubernetes.mjs";
import apps from "./dashboard/apps.mjs";
import pictures from "./dashboard/pictures.mjs";
import places from "./dashboard/places.mjs";
import people from "./dashboard/people.mjs";
import trouble from "./dashboard/trouble.mjs";

const [binary, directory, image, ...chosen] = process.argv.slice(2);
const network = 160 + (process.pid % 60);
writeFileSync(join(directory, "site.yaml"), `common: {network_scheme: 10.${network}.0.0/16}\n`);
const server = new Server(binary, directory, [
  "--set", "crm.cloudlet=uiop/site", "--set", `crm.site=${join(directory, "site.yaml")}`, "--set", "crm.runtime=oci",
  "--set", "kaas.provider=sim", "--set", "crm.samples=2s", "--set", `crm.image_folders=${join(image, "..")}`,
]);
const browser = await openBrowser();
const world = { server, browser, image, directory, shots: process.env.SELVAGE_TEST_SCREENSHOTS };
const { deletions, aCancelledOperation, ...running } = apps;
const scenarios = { ...first, ...running, ...pictures, deletions, aCancelledOperation, ...places, ...people, ...kubernetes, ...trouble };
let failed;
try {
  await server.start();
  world.admin = await Person.sit(browser, server);
  for (const [name, run] of Object.entries(scenarios)) {
    if (name !== "aFirstLogin" && chosen.length && !chosen.includes(name)) continue;
    const began = Date.now();
    await run(world);
    console.log(`${name}: ${((Date.now() - began) / 1000).toFixed(1)} s`);
  }
} catch (error) {
  failed = error;
  await world.admin?.page.screenshot({ path: join(directory, "failed.png") }).catch(() => {});
  console.error(error, `\n${server.log().slice(-1500)}`);
} finally {
  await browser.close();
  await server.stop().catch(() => {});
}
if (failed) process.exit(1);
console.log("ok");
