// A person who logs in through a provider of OIDC: by the button of the login
// page, the provider's own form, and back.
// Usage: node provider.mjs BINARY DIRECTORY PROVIDER
// DIRECTORY is empty and stays; PROVIDER is the command that starts the
// provider. NODE_PATH must lead to playwright-core and axe-core.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { openBrowser, Person, Server, until } from "./dashboard/lib.mjs";

const [binary, directory, command] = process.argv.slice(2);

/** A port that nobody had a moment ago. */
const freePort = () => new Promise((resolve) => {
  const socket = createServer().listen(0, "127.0.0.1", () => {
    const { port } = socket.address();
    socket.close(() => resolve(port));
  });
});

async function startProvider() {
  const port = await freePort();
  const [program, ...words] = command.split(/\s+/);
  const child = spawn(program, [...words, "--port", String(port)], { stdio: "ignore" });
  const issuer = `http://127.0.0.1:${port}`;
  await until("the provider", () => fetch(`${issuer}/.well-known/openid-configuration`).then(({ ok }) => ok, () => false));
  for (const [name, group] of [["anna", "edge-admins"], ["eve", "guests"]]) {
    const body = JSON.stringify({ preferred_username: name, groups: [group] });
    const reply = await fetch(`${issuer}/users/s-${name}`, { method: "PUT", headers: { "content-type": "application/json" }, body });
    assert.ok(reply.ok, `${name}: ${reply.status}`);
  }
  return { child, issuer };
}

function settings(issuer, port) {
  const secret = join(directory, "secret");
  writeFileSync(secret, "any\n", { mode: 0o600 });
  const file = join(directory, "selvage.toml");
  writeFileSync(file, `[auth]
public_url = "https://127.0.0.1:${port}"
[[auth.oidc]]
name = "corp"
label = "the company"
issuer = "${issuer}"
client_id = "selvage"
client_secret_file = "${secret}"
group_grants = [{ group = "edge-admins", role = "admin" }]
`);
  return file;
}

async function through(person, subject) {
  await person.go("#/people");
  await person.id("oidc-corp").getByText("Log in with the company").waitFor();
  await person.accessible("login with a provider");
  // The provider's own page asks for things that are not there.
  await person.refused(/Failed to load resource/, async () => {
    await person.id("oidc-corp").click();
    await person.page.locator("input[name=sub]").fill(subject);
    await person.page.getByRole("button", { name: "Authorize" }).click();
    await person.page.waitForURL((url) => url.origin === person.server.endpoint);
  });
}

async function visit(browser, server) {
  const anna = await Person.sit(browser, server);
  await through(anna, "s-anna");
  await anna.id("whoami").getByText("anna", { exact: true }).waitFor();
  assert.doesNotMatch(anna.page.url(), /token|code=/, "nothing secret is in the address");
  const cookies = await anna.context.cookies(server.endpoint);
  assert.ok(cookies.some((cookie) => cookie.name === "__Host-sid" && cookie.httpOnly && cookie.secure));
  await anna.id("nav-people").click();
  await anna.page.getByText("(this page)").waitFor();
  anna.quiet("a login through a provider");
  await anna.id("logout").click();
  await anna.id("login").waitFor();

  // In no group that has a grant: back at the login page, which says so.
  const eve = await Person.sit(browser, server);
  await through(eve, "s-eve");
  await eve.page.getByText("The provider's login was not accepted: not allowed").waitFor();
  assert.equal(await eve.id("whoami").count(), 0);
  await eve.accessible("a login that was refused");
}

const browser = await openBrowser();
let failed, provider, server;
try {
  provider = await startProvider();
  const port = await freePort();
  server = new Server(binary, directory, ["--config", settings(provider.issuer, port)]);
  server.port = String(port);
  await server.start();
  await visit(browser, server);
} catch (error) {
  failed = error;
  console.error(error, `\n${server?.log().slice(-1500)}`);
} finally {
  await browser.close();
  await server?.stop().catch(() => {});
  provider?.child.kill();
}
if (failed) process.exit(1);
console.log("ok");
