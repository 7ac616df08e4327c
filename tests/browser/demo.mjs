// Somebody who starts the demonstration and has read nothing: the printed
// address, the printed password, and there the app runs, with its address, its
// log and a shell.
// Usage: node demo.mjs BINARY DIRECTORY
// DIRECTORY is empty and stays. NODE_PATH must lead to playwright-core and axe-core.
import { get } from "node:http";
import { openBrowser, Person, Server, until } from "./dashboard/lib.mjs";

const [binary, directory] = process.argv.slice(2);
const server = new Server(binary, directory, ["--demo", "--set", "crm.runtime=oci"]);

const fetched = (address) => new Promise((resolve) => {
  get(address, (reply) => {
    let text = "";
    reply.on("data", (data) => { text += data; }).on("end", () => resolve(text));
  }).on("error", () => resolve(""));
});

async function visit(browser) {
  // What stands on the terminal is all that is known.
  const [, endpoint] = /answers on (\S+)/.exec(server.log());
  const [, password] = /Log in as admin with the password (\S+)/.exec(server.log());
  const person = await Person.sit(browser, { endpoint });
  await person.logIn("admin", password);
  await person.id("nav-instances").click();
  const row = person.page.getByRole("row", { name: /hello 1/ });
  await row.getByText("ready", { exact: true }).waitFor({ timeout: 60_000 });
  await row.getByRole("link").first().click();
  await person.page.getByRole("heading", { name: "hello 1 on demo/here" }).waitFor();
  await person.accessible("the demonstration");
  const address = await person.id("address").first().getAttribute("href");
  await until("the app's page", async () => (await fetched(address)).includes("Hello from the edge"));
  await person.id("tab-log").click();
  await person.id("log").getByText("hello listens on port 80").waitFor();
  await person.id("tab-shell").click();
  await person.id("shell-state").getByText("Connected").waitFor();
  await person.page.keyboard.type("cat /www/index.html\n");
  await person.id("terminal").getByText("Hello from the edge").waitFor();
  await person.id("nav-overview").click();
  await person.id("verdict").waitFor();
  person.quiet("the demonstration");
  // What runs outlives its server, and is not left behind.
  await person.id("nav-instances").click();
  await person.page.getByRole("link", { name: "hello 1" }).click();
  await person.id("delete-instance").click();
  await person.id("delete-yes").click();
  await person.id("progress-done").click({ timeout: 60_000 });
}

const browser = await openBrowser();
let failed;
try {
  await server.start();
  await visit(browser);
} catch (error) {
  failed = error;
  console.error(error, `\n${server.log().slice(-1500)}`);
} finally {
  await browser.close();
  await server.stop().catch(() => {});
}
if (failed) process.exit(1);
console.log("ok");
