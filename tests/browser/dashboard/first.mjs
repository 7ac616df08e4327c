// Logging in, the overview, keys, narrow screens.
import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import assert from "node:assert/strict";
import { Person, until } from "./lib.mjs";

/** What a first visit costs, and that nothing of the session is within reach of scripts. */
async function aFirstLogin({ server, admin }) {
  const { page } = admin;
  await page.goto(server.endpoint);
  await admin.id("login").waitFor();
  await admin.accessible("login");
  await admin.id("login-username").fill("admin");
  await admin.id("login-password").fill("wrong");
  await admin.id("login-button").click();
  await page.getByText("Wrong user name or password").waitFor();

  await admin.logIn("admin", server.password);
  await admin.id("first-password").waitFor();
  const cookies = await admin.context.cookies();
  assert.ok(cookies.some((cookie) => cookie.name === "__Host-sid" && cookie.httpOnly && cookie.secure));
  assert.equal(await page.evaluate(() => document.cookie), "");
  assert.equal(await page.evaluate(() => localStorage.length + sessionStorage.length), 0);

  let requests = [];
  let [bytes, loader] = [0, ""];
  const wire = await admin.context.newCDPSession(page);
  await wire.send("Network.enable");
  await wire.send("Network.setCacheDisabled", { cacheDisabled: true });
  // What the page of before asks for while it goes is not of this visit.
  wire.on("Network.requestWillBeSent", ({ request, type, loaderId }) => {
    if (type === "Document") [requests, loader] = [[], loaderId];
    if (loaderId === loader && request.url.startsWith("https:")) requests.push(request.url);
  });
  wire.on("Network.dataReceived", ({ encodedDataLength }) => { bytes += encodedDataLength; });
  await page.reload();
  await admin.id("verdict").waitFor();
  await admin.id("capacity").waitFor();
  assert.ok(requests.length <= 6, requests.join("\n"));
  assert.ok(bytes <= 80_000, `${bytes} bytes`);
  console.log(`first load: ${requests.length} requests, ${(bytes / 1000).toFixed(1)} kB`);
  await wire.detach();
  admin.quiet("login");
}

/** Everything of the overview is on one screen, also below a banner. */
async function overview({ admin, browser, server }) {
  await admin.go("#/");
  await onOneScreen(admin);
  await admin.accessible("overview");
  admin.quiet("overview");
  const other = await Person.sit(browser, server);
  await other.logIn("admin", server.password);
  await other.id("first-password").waitFor();
  await onOneScreen(other);
  await other.leave();
}

async function onOneScreen(person) {
  await person.id("verdict").waitFor();
  for (const name of ["problems", "radar", "capacity", "map", "events"]) {
    const box = await person.id(name).boundingBox();
    assert.ok(box && box.y + box.height <= 900, `${name} is on the first screen`);
  }
}

/** In the page: the room of an overview gets these forecasts, each to one of its entries. */
function foresee(forecasts) {
  const parse = JSON.parse;
  JSON.parse = (text, reviver) => {
    const value = parse(text, reviver);
    const capacity = value?.overview?.capacity;
    if (capacity) value.overview.capacity = forecasts.map((one, at) => ({ ...capacity[0], object: { kind: "volume_group", name: `group${at}` }, ...one }));
    return value;
  };
}

/** When room is used up, with bounds; what is not known is not told. */
async function forecasts({ browser, server }) {
  const person = await Person.sit(browser, server);
  const days = (count) => new Date(Date.now() + (count + 0.1) * 86_400_000).toISOString();
  await person.page.addInitScript(foresee, [
    { knownFor: "604800s", fullAt: days(5), fullEarliest: days(3), fullLatest: days(9) },
    { knownFor: "604800s", fullEarliest: days(4) },
    { knownFor: "7200s" },
    { knownFor: undefined },
  ]);
  await person.logIn("admin", server.password);
  const told = person.id("forecast");
  await told.nth(3).waitFor();
  assert.match(await told.nth(0).textContent(), /^full in 5 d \(3 d to 9 d\) at this rate$/);
  assert.match(await told.nth(1).textContent(), /free; grows unevenly, not full for at least 4 d$/);
  assert.match(await told.nth(2).textContent(), /free; no sign of filling up$/);
  assert.match(await told.nth(3).textContent(), /free$/);
  await person.accessible("forecasts");
  person.quiet("forecasts");
  await person.leave();
}

async function firstPassword({ admin }) {
  await admin.page.reload();
  await admin.id("verdict").waitFor();
  await admin.id("password").click();
  await admin.id("password-old").fill("not it at all");
  await admin.id("password-new").fill("short");
  await admin.id("submit").click();
  await admin.page.getByText("At least 8 characters.").waitFor();
  await admin.id("password-new").fill("a much longer one");
  await admin.id("password-again").fill("a much longer one");
  await admin.refused(/status of 40/, async () => {
    await admin.id("submit").click();
    await admin.id("trouble").waitFor();
  });
  await admin.page.keyboard.press("Escape");
}

/** Nothing but keys: log in, go to a page, filter, open, come back. */
async function keysOnly({ browser, server }) {
  const person = await Person.sit(browser, server);
  const { keyboard } = person.page;
  await person.go("#/");
  await person.page.locator("#username:focus").waitFor();
  await keyboard.type("admin");
  await keyboard.press("Tab");
  await keyboard.type(server.password);
  await keyboard.press("Enter");
  await person.id("verdict").waitFor();
  await keyboard.press("?");
  await person.id("keys").waitFor();
  await person.accessible("keys");
  await keyboard.press("Escape");
  await person.id("keys").waitFor({ state: "detached" });
  await keyboard.press("g");
  await keyboard.press("p");
  await person.page.getByRole("heading", { name: "People", exact: true }).waitFor();
  await person.page.getByRole("table", { name: "Users" }).waitFor();
  await keyboard.press("/");
  await keyboard.type("adm");
  await until("the filter in the address", () => person.page.url().includes("q=adm"));
  await keyboard.press("Escape");
  await keyboard.press("n");
  await person.id("user-dialog").waitFor();
  await keyboard.press("Escape");
  await person.id("user-dialog").waitFor({ state: "detached" });
  await keyboard.press("t");
  await until("the other theme", () => person.page.evaluate(() => Boolean(document.documentElement.dataset.theme)));
  await keyboard.press("g");
  await keyboard.press("o");
  await person.id("verdict").waitFor();
  person.quiet("keys");
  await person.leave();
}

/** A telephone: nothing is wider than the screen. */
async function narrow({ browser, server }) {
  const person = await Person.sit(browser, server, { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true });
  await person.logIn("admin", server.password);
  for (const hash of ["#/", "#/apps", "#/instances", "#/clusters", "#/operations", "#/cloudlets", "#/machines", "#/machines/here", "#/volumes", "#/people", "#/audit", "#/about", "#/map"]) {
    await person.go(hash);
    await person.page.locator("main h1").waitFor();
    const wide = await person.page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= 391, `${hash} is ${wide} wide`);
  }
  await person.go("#/");
  await person.id("first-password").waitFor();
  await apart(person);
  await person.go("#/people");
  const end = await person.id("end-session").first().boundingBox();
  assert.ok(end.x + end.width <= 390, "what can be done is within reach");
  await person.go("#/");
  await person.id("menu").click();
  await person.id("nav-apps").click();
  await person.page.getByRole("heading", { name: "Apps", exact: true }).waitFor();
  person.quiet("narrow");
  await person.leave();
}

/** Cards of the overview are below each other, and each holds what is in it. */
async function apart(person) {
  await person.id("verdict").waitFor();
  const cards = await person.page.locator(".overview > *").evaluateAll((all) => all.map((one) => {
    const { top, bottom } = one.getBoundingClientRect();
    const inside = [...one.children].map((child) => child.getBoundingClientRect().bottom);
    return { name: one.ariaLabel, top, bottom, content: Math.max(...inside) };
  }));
  cards.forEach((card, at) => {
    assert.ok(card.content <= card.bottom + 1, `${card.name} ends at ${card.bottom}, and what is in it at ${card.content}`);
    assert.ok(at === 0 || card.top >= cards[at - 1].bottom, `${card.name} begins before the card above ends`);
  });
}

/** What the page believes of the contracts is what the server says. */
async function theContract({ directory, admin }) {
  const document = await admin.page.evaluate(async () => (await fetch("/openapi.json")).text());
  const file = join(directory, "openapi.json");
  writeFileSync(file, document);
  const script = new URL("../../../ui/check-contract.mjs", import.meta.url).pathname;
  console.log(execFileSync("node", [script, file], { encoding: "utf8" }).trim());
}

/** In this order: what one makes the next one uses. */
export default { aFirstLogin, overview, forecasts, firstPassword, keysOnly, narrow, theContract };
