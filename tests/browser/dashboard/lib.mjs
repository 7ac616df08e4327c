// What the tests of the page share: a real server, real browsers, and eyes for
// what goes wrong in them.
import { createRequire } from "node:module";
import { spawn } from "node:child_process";
import { existsSync, openSync, readFileSync, rmSync } from "node:fs";
import { once } from "node:events";
import { join } from "node:path";
import assert from "node:assert/strict";

const require = createRequire(process.env.NODE_PATH + "/");
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

/** Variables of the tests are no settings of the server. */
const environment = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("SELVAGE_")));

/** `selvage up` in a directory; started again at the same port. */
export class Server {
  constructor(binary, directory, flags) {
    Object.assign(this, { binary, directory, flags, port: "0" });
  }

  async start() {
    const ready = join(this.directory, "ready.json");
    rmSync(ready, { force: true });
    const log = openSync(join(this.directory, "log"), "a");
    this.child = spawn(this.binary, ["up", "--data", join(this.directory, "data"), "--port", this.port, "--ready-file", ready, ...this.flags], { stdio: ["ignore", log, log], env: environment });
    this.exit = once(this.child, "exit");
    this.child.on("exit", (code) => { this.ended = code; });
    await until("the server", () => {
      assert.equal(this.ended, undefined, `the server ended: ${this.log()}`);
      return existsSync(ready) && readFileSync(ready, "utf8").trim().endsWith("}");
    });
    this.ready = JSON.parse(readFileSync(ready, "utf8"));
    this.endpoint = this.ready.endpoint;
    this.port = new URL(this.endpoint).port;
    this.password ??= readFileSync(this.ready.admin.password_file, "utf8").trim();
  }

  async stop(signal = "SIGTERM") {
    this.child.kill(signal);
    await this.exit;
    this.ended = undefined;
  }

  log() {
    return readFileSync(join(this.directory, "log"), "utf8").slice(-4000);
  }
}

/** Waits for a condition; a minute is far more than anything here takes. */
export async function until(what, condition) {
  for (const end = Date.now() + 60_000; Date.now() < end;) {
    const found = await condition();
    if (found) return found;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`waited in vain for ${what}`);
}

export async function openBrowser() {
  return chromium.launch({
    executablePath: "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
      "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"],
  });
}

/** A person in front of a screen of their own. */
export class Person {
  static async sit(browser, server, options = {}) {
    const person = new Person();
    person.server = server;
    person.context = await browser.newContext({ ignoreHTTPSErrors: true, viewport: { width: 1440, height: 900 }, ...options });
    person.page = await person.context.newPage();
    person.complaints = [];
    person.page.on("console", (message) => {
      if (message.type() !== "error" || person.expected?.test(message.text())) return;
      // Nobody can know whether there is a session before asking; and whoever
      // makes a container changes this machine's network.
      if (/Failed to load resource.*(401|ERR_NETWORK_CHANGED|ERR_SOCKET_NOT_CONNECTED)/.test(message.text())) return;
      person.complaints.push(`${message.text()} ${message.location().url}`);
    });
    person.page.on("pageerror", (error) => person.complaints.push(String(error)));
    person.page.on("dialog", (dialog) => {
      person.complaints.push(`a script opened a dialog: ${dialog.message()}`);
      void dialog.dismiss();
    });
    return person;
  }

  id(name) {
    return this.page.getByTestId(name);
  }

  async go(hash) {
    await this.page.goto(`${this.server.endpoint}/${hash}`);
  }

  async logIn(username, password) {
    await this.go("#/");
    await this.id("login-username").fill(username);
    await this.id("login-password").fill(password);
    await this.id("login-button").click();
    await this.id("main").waitFor();
    await this.id("whoami").getByText(username, { exact: true }).first().waitFor({ state: "attached" });
  }

  /** Calls a method with the session of this person, past the browser: what a container does to this machine's network breaks off calls in there. */
  async call(method, request, stream = false) {
    const text = Buffer.from(JSON.stringify(request));
    const head = Buffer.alloc(5);
    head.writeUInt32BE(text.length, 1);
    const response = await this.context.request.post(`${this.server.endpoint}/${method}`, {
      headers: { "content-type": stream ? "application/connect+json" : "application/json", origin: this.server.endpoint },
      data: stream ? Buffer.concat([head, text]) : text, ignoreHTTPSErrors: true,
    });
    const reply = await response.text();
    if (!response.ok() || reply.includes('"error"')) throw new Error(reply);
    return stream ? undefined : JSON.parse(reply);
  }

  /** Nothing on this page keeps anybody from using it. */
  async accessible(where) {
    await this.page.evaluate(axe);
    const { violations } = await this.page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
    const told = violations.map((one) => `${one.id}: ${one.help}\n  ${one.nodes.slice(0, 3).map((node) => `${node.html.slice(0, 200)} ${node.failureSummary?.slice(0, 200)}`).join("\n  ")}`);
    assert.equal(told.length, 0, `${where}:\n${told.join("\n")}`);
  }

  /** Does what is meant to be refused, of which the browser writes a line of its own. */
  async refused(pattern, act) {
    this.expected = pattern;
    await act();
    this.expected = undefined;
  }

  /** Nothing went wrong behind the page. */
  quiet(where) {
    assert.deepEqual(this.complaints, [], where);
  }

  async leave() {
    await this.context.close();
  }
}
