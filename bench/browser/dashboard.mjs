// The page in a real browser, beside the dashboard of a Ceph manager where there is one.
// Started by the benchmark `dashboard`, with which it talks in lines of JSON: rows of
// figures to print, and questions for what only the benchmark can do.
// Usage: node dashboard.mjs BINARY DIRECTORY TRIALS [CEPH_URL CEPH_CONF USER PASSWORD]
import { once } from "node:events";
import { spawn } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync, openSync } from "node:fs";
import { createInterface } from "node:readline";
import { join } from "node:path";
import { openBrowser, Person, Server, until } from "../../tests/browser/dashboard/lib.mjs";

const [binary, directory, trialsText, cephUrl, cephConf, cephUser, cephPassword] = process.argv.slice(2);
const trials = Number(trialsText);
/** Variables of tests and benchmarks are no settings of an agent. */
const environment = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("SELVAGE_")));
const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const tell = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);
const row = (what, unit, values, goal, theirs) => tell({ row: { what, unit, values, goal, theirs: theirs ?? [] } });

/** Asks the benchmark for something, and waits for it. */
async function ask(message) {
  tell({ ask: message });
  return JSON.parse((await answers.next()).value);
}

function configuration() {
  if (!cephUrl) return "";
  writeFileSync(join(directory, "ceph.password"), cephPassword, { mode: 0o600 });
  return `[dashboard.ceph]\nurls = ["${cephUrl}"]\nusername = "${cephUser}"\npassword_file = "${join(directory, "ceph.password")}"\nprogram = "ceph"\nconf = "${cephConf}"\n`;
}

/** What a visit costs from the first byte on, and when `seen` is there. */
async function visit(page, context, address, seen) {
  const wire = await context.newCDPSession(page);
  await wire.send("Network.enable");
  await wire.send("Network.setCacheDisabled", { cacheDisabled: true });
  let [requests, bytes] = [0, 0];
  wire.on("Network.requestWillBeSent", ({ request }) => { if (request.url.startsWith("http")) requests += 1; });
  wire.on("Network.dataReceived", ({ encodedDataLength }) => { bytes += encodedDataLength; });
  await page.goto("about:blank");
  [requests, bytes] = [0, 0];
  const began = performance.now();
  await page.goto(address);
  await seen();
  const took = performance.now() - began;
  await wire.detach();
  return { requests, bytes, took };
}

async function cephPage(browser) {
  if (!cephUrl) return undefined;
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 } });
  const page = await context.newPage();
  const health = () => page.getByText(/HEALTH_(OK|WARN|ERR)/).first().waitFor({ timeout: 60_000 });
  await page.goto(`${cephUrl}/#/login`);
  await page.locator("input[name=username]").fill(cephUser);
  await page.locator("input[name=password]").fill(cephPassword);
  const began = performance.now();
  await page.locator("input[type=submit], button[type=submit]").first().click();
  await health();
  return { context, page, health, login: performance.now() - began };
}

async function firstLoads(server, browser, ceph) {
  const [ours, logins, theirs] = [[], [], []];
  for (let at = 0; at < trials; at += 1) {
    const person = await Person.sit(browser, server);
    await person.go("#/");
    await person.id("login-username").fill("admin");
    await person.id("login-password").fill(server.password);
    const began = performance.now();
    await person.id("login-button").click();
    await person.id("verdict").waitFor();
    logins.push(performance.now() - began);
    ours.push(await visit(person.page, person.context, `${server.endpoint}/#/`, () => person.id("verdict").waitFor()));
    await person.leave();
    if (ceph) theirs.push(await visit(ceph.page, ceph.context, `${cephUrl}/#/dashboard`, ceph.health));
  }
  const of = (list, name) => list.map((one) => one[name]);
  row("first load, compressed", "B", of(ours, "bytes"), 80_000, of(theirs, "bytes"));
  row("first load, requests", "", of(ours, "requests"), 6, of(theirs, "requests"));
  row("cold load until the verdict is there", "ms", of(ours, "took"), 500, of(theirs, "took"));
  row("login until the verdict is there", "ms", logins, 500, ceph ? [ceph.login] : []);
}

/** From an act until something is to be seen on a page. */
async function until_seen(act, ...seen) {
  const began = performance.now();
  const waits = seen.map((one) => one().then(() => performance.now() - began));
  await act();
  return Promise.all(waits);
}

async function deadOsds(admin, ceph) {
  if (!ceph) return;
  const [ours, theirs] = [[], []];
  const word = /osds? down/i;
  for (let at = 0; at < trials; at += 1) {
    const daemon = `osd.${at % 3}`;
    const [own, other] = await until_seen(() => ask({ kill: daemon }),
      () => admin.id("problems").getByText(word).first().waitFor({ timeout: 120_000 }),
      () => ceph.page.getByText(/HEALTH_(WARN|ERR)|1 down/).first().waitFor({ timeout: 120_000 }));
    ours.push(own);
    theirs.push(other);
    await ask({ start: daemon });
    await admin.id("problems").getByText(word).first().waitFor({ state: "detached", timeout: 240_000 });
    await ceph.page.getByText("HEALTH_OK").first().waitFor({ timeout: 240_000 });
  }
  row("an OSD is killed: the page says so", "ms", ours, 800, theirs);
}

/** A machine's agent, joined to the server. */
async function joinAgent(server, admin, name) {
  const { token } = await admin.call("selvage.identity.IdentityService/CreateJoinToken", { machine: `node/${name}` });
  const place = join(directory, name);
  mkdirSync(place, { recursive: true });
  const file = join(place, "token");
  writeFileSync(file, token, { mode: 0o600 });
  return () => {
    const log = openSync(join(place, "log"), "a");
    const child = spawn(binary, ["node", "--port", "0", "--data", join(place, "data"), "--controller", new URL(server.endpoint).host, "--join-file", file], { stdio: ["ignore", log, log], env: environment });
    child.gone = once(child, "exit");
    return child;
  };
}

async function deadAgents(server, admin) {
  const start = await joinAgent(server, admin, "rack1");
  const away = () => admin.id("problems").getByText("Machine node/rack1 is away");
  const well = async () => {
    await until("the machine", async () => {
      const { series } = await admin.call("selvage.dashboard.DashboardService/GetSeries", { names: ["cpu_percent"], kind: "machine", name: "node/rack1", range: "60s" });
      return series?.length;
    });
    await away().waitFor({ state: "detached", timeout: 120_000 });
  };
  const [killed, stopped] = [[], []];
  for (let at = 0; at < trials; at += 1) {
    const agent = start();
    await well();
    stopped.push(...await until_seen(() => agent.kill("SIGSTOP"), () => away().waitFor({ timeout: 120_000 })));
    agent.kill("SIGCONT");
    await well();
    killed.push(...await until_seen(() => agent.kill("SIGKILL"), () => away().waitFor({ timeout: 120_000 })));
    await agent.gone;
  }
  row("an agent is killed: its machine is away on the page", "ms", killed, 2000);
  row("an agent hangs: its machine is away on the page", "ms", stopped, 10_000);
}

/** The state of a cloudlet, as its agent reports it to the controller. */
async function changes(admin) {
  const key = { operatorKey: { name: "bench" }, name: "site" };
  await admin.call("edgeproto.OperatorApi/CreateOperator", { key: { name: "bench" } });
  await admin.call("edgeproto.CloudletApi/CreateCloudlet", { key, location: { latitude: 1, longitude: 2 }, numDynamicIps: 1 }, true);
  const problem = admin.id("problems").getByText("Cloudlet bench/site reports errors");
  const inject = (state) => admin.call("edgeproto.CloudletInfoApi/InjectCloudletInfo", { key, state: `CLOUDLET_STATE_${state}`, errors: state === "ERRORS" ? ["no runtime"] : [] });
  const taken = [];
  // What was reported last stays until it is taken back.
  const evict = () => admin.call("edgeproto.CloudletInfoApi/EvictCloudletInfo", { key });
  for (let at = 0; at < Math.max(trials, 10); at += 1) {
    taken.push(...await until_seen(() => inject("ERRORS"), () => problem.waitFor()));
    await evict();
    await problem.waitFor({ state: "detached" });
  }
  row("a cloudlet reports errors: the page says so", "ms", taken, 1000);
}

/** Ten thousand instances in the list. */
async function longList(admin) {
  const frames = [];
  for (let at = 0; at < 10_000; at += 1) {
    const body = Buffer.from(JSON.stringify({
      key: { appKey: { developerKey: { name: "acme" }, name: `app-${at}`, version: "1" }, clusterInstKey: { clusterKey: { name: "c" }, cloudletKey: { operatorKey: { name: "op" }, name: `site-${at % 50}` }, developer: "acme" } },
      state: at % 97 ? "READY" : "CREATE_ERROR",
    }));
    const head = Buffer.alloc(5);
    head.writeUInt32BE(body.length, 1);
    frames.push(head, body);
  }
  frames.push(Buffer.from([2, 0, 0, 0, 2]), Buffer.from("{}"));
  await admin.page.route("**/edgeproto.AppInstApi/ShowAppInst", (route) => route.fulfill({ contentType: "application/connect+json", body: Buffer.concat(frames) }));
  await admin.go("#/instances");
  await admin.page.getByText("10,000 rows").waitFor();
  const filtered = await admin.page.evaluate(async (count) => {
    const input = document.querySelector("#filter");
    const told = () => document.querySelector("[data-testid=count]").textContent;
    const taken = [];
    for (let at = 0; at < count; at += 1) {
      const began = performance.now();
      input.value = `app-${4242 + at}`;
      input.dispatchEvent(new Event("input", { bubbles: true }));
      while (!told().startsWith("1 of") || !document.querySelector("tbody a")?.textContent.startsWith(input.value)) await new Promise((resolve) => setTimeout(resolve));
      taken.push(performance.now() - began);
    }
    input.value = "";
    input.dispatchEvent(new Event("input", { bubbles: true }));
    return taken;
  }, Math.max(trials, 10));
  const scrolled = await admin.page.evaluate(async () => {
    await new Promise((resolve) => setTimeout(resolve, 500));
    const box = document.querySelector(".scroller");
    const taken = [];
    let last = performance.now();
    for (let at = 0; at < 300; at += 1) {
      box.scrollTop += 400;
      await new Promise(requestAnimationFrame);
      taken.push(performance.now() - last);
      last = performance.now();
    }
    return taken;
  });
  row("10,000 instances: filtered", "ms", filtered, 50);
  row("10,000 instances: a frame while scrolling", "ms", scrolled, 1000 / 60 + 0.5);
  await admin.page.unroute("**/edgeproto.AppInstApi/ShowAppInst");
}

const config = join(directory, "bench.toml");
writeFileSync(config, configuration());
const server = new Server(binary, directory, ["--config", config]);
const browser = await openBrowser();
let failed;
try {
  await server.start();
  const ceph = await cephPage(browser);
  await firstLoads(server, browser, ceph);
  const admin = await Person.sit(browser, server);
  await admin.logIn("admin", server.password);
  await changes(admin);
  await admin.go("#/");
  await deadAgents(server, admin);
  await deadOsds(admin, ceph);
  await longList(admin);
  const login = await admin.context.request.post(`${server.endpoint}/services.auth.AuthService/Login`, { data: { username: "admin", password: server.password }, ignoreHTTPSErrors: true });
  await browser.close();
  await ask({ watch: { endpoint: server.endpoint, ca: readFileSync(server.ready.ca, "utf8"), token: (await login.json()).token, pid: server.child.pid } });
} catch (error) {
  failed = error;
  console.error(error, `\n${server.log().slice(-1500)}`);
} finally {
  await browser.close();
  await server.stop().catch(() => {});
}
process.exit(failed ? 1 : 0);
