// A server that goes and comes back, names that would like to be markup, long
// lists.
import assert from "node:assert/strict";
import { Person, until } from "./lib.mjs";

/** The page lives through a restart: it says so, is not reloaded, and shows what is new. */
async function aRestart({ admin, server }) {
  await admin.go("#/");
  await admin.id("verdict").waitFor();
  await admin.page.evaluate(() => { globalThis.same = true; });
  admin.expected = /ERR_CONNECTION|ERR_INCOMPLETE|ERR_NETWORK|ERR_HTTP2|ERR_EMPTY/;
  await server.stop("SIGKILL");
  await admin.id("connection").getByText("connection to the server is lost").waitFor();
  await admin.accessible("lost connection");
  await server.start();
  await admin.id("connection").getByText("The server is back").waitFor();
  await admin.id("age").getByText("live").waitFor();
  admin.expected = undefined;
  assert.equal(await admin.page.evaluate(() => globalThis.same), true, "the page was not loaded anew");
  admin.quiet("restart");
}

/** A change of this machine's network breaks off what is being asked for: it is asked for again, and nobody notices. */
async function aBrokenRead({ admin }) {
  let broken = 0;
  await admin.page.route("**/edgeproto.FlavorApi/ShowFlavor", (route) => {
    broken += 1;
    return broken === 1 ? route.abort("connectionreset") : route.continue();
  });
  admin.expected = /ERR_CONNECTION_RESET/;
  await admin.go("#/");
  await admin.id("verdict").waitFor();
  await admin.go("#/cloudlets");
  await admin.page.getByText("1 vCPU, 64 MB, 1 GB").waitFor();
  await until("the second attempt", () => broken > 1);
  assert.equal(await admin.id("trouble").count(), 0, "nothing is wrong");
  await admin.page.unroute("**/edgeproto.FlavorApi/ShowFlavor");
  admin.expected = undefined;
  admin.quiet("broken read");
}

/** A session that ends soon says so while there is time to save one's work. */
async function aSessionThatEnds({ browser, server }) {
  const person = await Person.sit(browser, server);
  await person.page.route("**/selvage.identity.IdentityService/WhoAmI", async (route) => {
    const response = await route.fetch();
    if (!response.ok()) return route.fulfill({ response });
    const json = { ...(await response.json()), expires: new Date(Date.now() + 5 * 60_000).toISOString() };
    return route.fulfill({ response, json });
  });
  await person.logIn("admin", server.password);
  await person.page.getByText(/session ends/i).waitFor();
  await person.accessible("a session that ends");
  person.quiet("a session that ends");
  await person.leave();
}

/** A session that nobody uses: what the page asks for by itself is no use, it is said before the end, and a click goes on. */
async function aSessionThatIdles({ browser, server }) {
  const person = await Person.sit(browser, server);
  const asked = [];
  await person.page.route("**/selvage.identity.IdentityService/WhoAmI", async (route) => {
    const response = await route.fetch();
    if (!response.ok()) return route.fulfill({ response });
    const unattended = route.request().headers()["x-selvage-unattended"] !== undefined;
    asked.push(unattended);
    const json = { ...(await response.json()), idleEnd: new Date(Date.now() + (unattended ? 5 : 60) * 60_000).toISOString() };
    return route.fulfill({ response, json });
  });
  await person.page.clock.install();
  await person.logIn("admin", server.password);
  await person.id("verdict").waitFor();
  assert.deepEqual(asked, [false], "whoever logs in is there");
  assert.equal(await person.id("session-idles").count(), 0);
  await person.page.clock.fastForward(130_000);
  await person.id("session-idles").getByText("your session ends in").waitFor();
  assert.deepEqual(asked.slice(1), asked.slice(1).map(() => true), "nobody is there");
  await person.accessible("an idle session");
  const before = asked.length;
  await person.page.getByRole("button", { name: "Stay logged in" }).click();
  await person.id("session-idles").waitFor({ state: "detached" });
  await until("a use", () => asked.slice(before).includes(false));
  person.quiet("an idle session");
  await person.leave();
}

/** Text of others is only ever text. */
async function hostileNames({ admin }) {
  const markup = `<img src=x onerror="globalThis.owned=1"><script>globalThis.owned=1</script>`;
  const turned = "\u202egnp.exe\u202c";
  const key = { operatorKey: { name: "uiop" }, name: "evil" };
  await admin.go("#/");
  await admin.call("edgeproto.CloudletApi/CreateCloudlet", { key, location: { latitude: 1, longitude: 2 }, numDynamicIps: 1 }, true);
  await admin.call("edgeproto.CloudletInfoApi/InjectCloudletInfo", { key, state: "CLOUDLET_STATE_ERRORS", errors: [markup, turned, "x".repeat(10_000)] });
  await admin.call("edgeproto.DeveloperApi/CreateDeveloper", { key: { name: "evil" } });
  await admin.call("edgeproto.AppApi/CreateApp", {
    key: { developerKey: { name: "evil" }, name: "evil", version: "1" }, imageType: "IMAGE_TYPE_DOCKER", deployment: "docker",
    imagePath: "registry.example:5000/a/b:1", defaultFlavor: { name: "tiny" }, command: `sh -c '${markup.replaceAll("'", "")}'`,
  });
  // There is no such machine, and the browser notes it.
  admin.expected = /status of/;
  for (const hash of ["#/", "#/cloudlets/uiop/evil", "#/apps/evil/evil/1", "#/cloudlets", "#/map", "#/audit",
    `#/instances/${encodeURIComponent(markup)}/x/1/a/b/c/d`, "#/machines/node/%3Cimg%20src=x%20onerror=alert(1)%3E", "#/%00/%ff"]) {
    await admin.go(hash);
    await admin.page.locator("main h1").waitFor();
    assert.equal(await admin.page.evaluate(() => globalThis.owned), undefined, hash);
    assert.equal(await admin.page.locator("main img").count(), 0, hash);
    const wide = await admin.page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= 1440, `${hash} is ${wide} wide`);
  }
  admin.expected = undefined;
  await admin.go("#/");
  await admin.id("problems").getByText("selvage cloudletinfo show --operator uiop --name evil").waitFor();
  await admin.id("events").getByText("Cloudlet uiop/evil reports errors", { exact: true }).first().waitFor();
  await admin.go("#/cloudlets/uiop/evil");
  await admin.page.getByText("<img src=x").first().waitFor();
  assert.ok(!(await admin.page.locator("main").textContent()).includes("\u202e"), "nothing turns the direction of text");
  admin.quiet("hostile names");
}

/** In the page: whatever a reply says gets a tail that would like to be markup, to turn the text, and to fill the screen. */
function hostile() {
  const tail = `<img src=x onerror="globalThis.owned=1">\u202e\u0007`;
  // Words by which the page decides, and numbers.
  const kept = /^(kind|state|status|phase|role|severity|unit|what|id|source|outcome|deployment|proto|type|bytes|provider|expires)$/;
  const twist = (value, name = "") => {
    if (typeof value === "string") return kept.test(name) || /^([A-Z][A-Z0-9_]*|[-+.\d]+s?|\d{4}-\d\d-.*)?$/.test(value) ? value : value + tail + "x".repeat(value.length % 3 ? 50 : 10_000);
    if (Array.isArray(value)) return value.map((one) => twist(one, name));
    if (typeof value !== "object" || value === null || value.times) return value;
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, twist(one, key)]));
  };
  const [parse, json] = [JSON.parse, Response.prototype.json];
  JSON.parse = (text, reviver) => twist(parse(text, reviver));
  Response.prototype.json = async function json_() { return twist(await json.call(this)); };
}

/** Nothing of it ran, turned the text, or is wider than the screen, also in what is told on hover or to those who listen. */
async function harmless(person, where) {
  const found = await person.page.evaluate(() => {
    const told = [...document.querySelectorAll("[title], [aria-label], [placeholder]")].flatMap((one) => [one.title, one.ariaLabel, one.placeholder]);
    const turned = [document.title, document.body.textContent, ...told].filter((text) => /[\u202a-\u202e\u0007]/.test(text ?? "")).map((text) => text.slice(0, 60));
    const over = document.documentElement.scrollWidth > innerWidth;
    const wide = [...document.querySelectorAll(over ? "main *" : "none")].filter((one) => one.getBoundingClientRect().right > innerWidth + 1);
    return { owned: globalThis.owned, images: document.images.length, turned, over, wide: wide.slice(-3).map((one) => one.outerHTML.slice(0, 150)) };
  });
  assert.deepEqual(found, { owned: undefined, images: 0, turned: [], over: false, wide: [] }, where);
}

/** Names and texts of all replies are hostile, on every page, on a large screen and on a telephone. */
async function hostileReplies({ browser, server }) {
  const person = await Person.sit(browser, server);
  await person.page.addInitScript(hostile);
  await person.logIn("admin", server.password);
  const look = async (where) => {
    await person.page.locator("main h1").first().waitFor();
    await until("all of the page", async () => (await person.page.locator(".waiting").count()) === 0);
    for (const width of [390, 1440]) {
      await person.page.setViewportSize({ width, height: 900 });
      await harmless(person, `${where} at ${width}`);
    }
  };
  for (const page of ["", "map", "apps", "instances", "clusters", "operations", "cloudlets", "machines", "machines/here", "volumes", "people", "audit", "about"]) {
    await person.go(`#/${page}`);
    await look(page);
    const row = person.page.locator("main tbody tr.opens td a").first();
    if ((await row.count()) === 0) continue;
    await row.click();
    await look(`the first of ${page}`);
  }
  for (const form of ["apps?new=app", "instances?new=instance", "cloudlets?new=cloudlet", "volumes?new=volume", "people?new=user"]) {
    await person.go(`#/${form}`);
    await person.page.locator("dialog form").waitFor();
    await harmless(person, form);
  }
  await person.leave();
}

/** Ten thousand instances: few are drawn, and each can be reached. */
async function aLongList({ admin }) {
  const count = 10_000;
  const frames = [];
  for (let at = 0; at < count; at += 1) {
    const body = Buffer.from(JSON.stringify({
      key: { appKey: { developerKey: { name: "acme" }, name: `app-${at}`, version: "1" }, clusterInstKey: { clusterKey: { name: "c" }, cloudletKey: { operatorKey: { name: "op" }, name: `site-${at % 50}` }, developer: "acme" } },
      state: at % 97 ? "READY" : "CREATE_ERROR",
    }));
    const head = Buffer.alloc(5);
    head.writeUInt32BE(body.length, 1);
    frames.push(head, body);
  }
  frames.push(Buffer.from([2, 0, 0, 0, 2]), Buffer.from("{}"));
  const body = Buffer.concat(frames);
  await admin.page.route("**/edgeproto.AppInstApi/ShowAppInst", (route) => route.fulfill({ contentType: "application/connect+json", body }));
  await admin.go("#/instances");
  await admin.page.getByText("10,000 rows").waitFor();
  assert.ok(await admin.page.locator("tbody tr").count() < 80, "only what is in sight is drawn");
  const took = await admin.page.evaluate(async () => {
    const input = document.querySelector("#filter");
    const began = performance.now();
    input.value = "app-4242";
    input.dispatchEvent(new Event("input", { bubbles: true }));
    while (!document.querySelector("[data-testid=count]").textContent.startsWith("1 of")) await new Promise(requestAnimationFrame);
    return performance.now() - began;
  });
  assert.equal(await admin.id("count").textContent(), "1 of 10,000 rows");
  assert.deepEqual(await admin.page.locator("tbody tr[data-index] td:first-child").allTextContents(), ["app-4242 1"]);
  const slowest = await admin.page.evaluate(async () => {
    const input = document.querySelector("#filter");
    input.value = "";
    input.dispatchEvent(new Event("input", { bubbles: true }));
    await new Promise((resolve) => setTimeout(resolve, 300));
    const box = document.querySelector(".scroller");
    let worst = 0;
    let most = 0;
    let last = performance.now();
    for (let at = 0; at < 120; at += 1) {
      box.scrollTop += 400;
      await new Promise(requestAnimationFrame);
      worst = Math.max(worst, performance.now() - last);
      last = performance.now();
      most = Math.max(most, document.querySelectorAll("tbody tr[data-index]").length);
    }
    return { worst, most, top: box.scrollTop, first: Number(document.querySelector("tbody tr[data-index]").dataset.index) };
  });
  console.log(`10,000 rows: filtered in ${took.toFixed(0)} ms, slowest of 120 frames ${slowest.worst.toFixed(0)} ms`);
  assert.ok(slowest.most < 80, `${slowest.most} rows were drawn at a time`);
  assert.equal(slowest.top, 120 * 400, "it scrolled all the way");
  assert.ok(slowest.first > 1000, `row ${slowest.first} is the first that is drawn`);
  await admin.page.evaluate(() => { document.querySelector(".scroller").scrollTop = 1e9; });
  await until("the last row", () => admin.page.getByRole("link", { name: "app-9999 1" }).count());
  await admin.page.getByRole("link", { name: "app-9999 1" }).focus();
  await admin.page.keyboard.press("ArrowUp");
  await until("the row before", () => admin.page.evaluate(() => document.activeElement?.textContent === "app-9998 1"));
  await admin.accessible("long list");
  await admin.page.unroute("**/edgeproto.AppInstApi/ShowAppInst");
  admin.quiet("long list");
}

/** In the page: after the first update of the overview there are so many more as fast as they are taken, each with a problem that ends with the next one. */
function manyUpdates(count) {
  const real = globalThis.fetch;
  const framed = (message) => {
    const text = new TextEncoder().encode(JSON.stringify(message));
    const frame = new Uint8Array(5 + text.length);
    new DataView(frame.buffer).setUint32(1, text.length);
    frame.set(text, 5);
    return frame;
  };
  const update = (at) => {
    const object = { kind: "cloudlet", name: `uiop/site-${at}` };
    const summary = `Cloudlet uiop/site-${at} is offline. ${"x".repeat(1000)}`;
    const time = new Date().toISOString();
    return {
      version: String(1e6 + at), time, changed: ["verdict"], overview: { verdict: { severity: "WARNING", sentence: summary } },
      problems: [{ id: `many-${at}`, severity: "WARNING", rule: "cloudlet_offline", summary, object, since: time, command: "selvage cloudletinfo show" }],
      problemsEnded: [`many-${at - 1}`], events: [{ id: `many-${at}`, time, what: "began", severity: "WARNING", text: summary, object }],
    };
  };
  globalThis.updates = 0;
  globalThis.allowed = 0;
  globalThis.fetch = async (input, init) => {
    const response = await real(input, init);
    if (!String(input).endsWith("/WatchOverview") || globalThis.updates > 0) return response;
    const server = response.body.getReader();
    const body = new ReadableStream({
      async start(controller) {
        let bytes = new Uint8Array(0);
        while (bytes.length < 5 || bytes.length < 5 + new DataView(bytes.buffer).getUint32(1)) {
          const { value } = await server.read();
          bytes = Uint8Array.from([...bytes, ...value]);
        }
        controller.enqueue(bytes);
      },
      async pull(controller) {
        while (globalThis.updates >= globalThis.allowed) await new Promise((resolve) => setTimeout(resolve, 20));
        for (let at = 0; at < 40 && globalThis.updates < count; at += 1) controller.enqueue(framed(update(globalThis.updates += 1)));
        await new Promise((resolve) => setTimeout(resolve));
      },
    });
    return new Response(body, { status: response.status, headers: response.headers });
  };
}

/** A change every five minutes for a week: what the page holds does not grow. */
async function aWeek({ browser, server }) {
  const count = 7 * 24 * 12;
  const person = await Person.sit(browser, server);
  await person.page.addInitScript(manyUpdates, count);
  await person.logIn("admin", server.password);
  await person.id("verdict").waitFor();
  const wire = await person.context.newCDPSession(person.page);
  const after = async (updates) => {
    await person.page.evaluate((most) => { globalThis.allowed = most; }, updates);
    await person.id("events").getByText(`site-${updates} is offline`).first().waitFor({ timeout: 300_000 });
    await wire.send("HeapProfiler.collectGarbage");
    const { usedSize } = await wire.send("Runtime.getHeapUsage");
    return { mib: usedSize / 2 ** 20, elements: await person.page.locator("*").count() };
  };
  const [early, late] = [await after(count / 8), await after(count)];
  console.log(`${count} changes: ${early.mib.toFixed(1)} MiB, then ${late.mib.toFixed(1)} MiB`);
  assert.ok(late.mib < early.mib + 1.5, `${early.mib} MiB became ${late.mib} MiB`);
  assert.ok(late.elements < early.elements + 50, `${early.elements} elements became ${late.elements}`);
  await wire.detach();
  person.quiet("a week");
  await person.leave();
}

/** In this order: what one makes the next one uses. */
export default { aRestart, aBrokenRead, aSessionThatEnds, aSessionThatIdles, hostileNames, hostileReplies, aLongList, aWeek };
