// A person with a browser: opens the page, logs in, calls methods, logs out.
// Usage: node docs.mjs ENDPOINT USERNAME PASSWORD_FILE SCREENSHOT
// NODE_PATH must lead to playwright-core.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import assert from "node:assert/strict";

const require = createRequire(process.env.NODE_PATH + "/");
const { chromium } = require("playwright-core");
const [endpoint, username, passwordFile, screenshot] = process.argv.slice(2);

const browser = await chromium.launch({
  executablePath: "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"],
});
const context = await browser.newContext({ ignoreHTTPSErrors: true, viewport: { width: 1280, height: 860 } });
const page = await context.newPage();
const complaints = [];
page.on("console", (message) => message.type() === "error" && complaints.push(message.text()));
page.on("pageerror", (error) => complaints.push(String(error)));

await page.goto(endpoint + "/docs");
await page.getByTestId("filter").waitFor();

// What cannot be called without a login says so.
await page.getByTestId("filter").fill("WhoAmI");
await page.getByTestId("method-selvage.identity.IdentityService/WhoAmI").click();
await page.getByTestId("send-button").click();
await page.getByText("unauthenticated", { exact: false }).first().waitFor();
const before = complaints.length;

await page.getByTestId("login-toggle").click();
await page.getByTestId("login-username").fill(username);
await page.getByTestId("login-password").fill(readFileSync(passwordFile, "utf8").trim());
await page.getByTestId("login-button").click();
await page.getByTestId("whoami").getByText(username).waitFor();

await page.getByTestId("send-button").click();
await page.getByTestId("response-body").getByText(`"${username}"`).first().waitFor();
const cookies = await context.cookies();
assert.ok(cookies.some((cookie) => cookie.name === "__Host-sid" && cookie.httpOnly && cookie.secure), "cookie");
assert.equal(await page.evaluate(() => document.cookie), "", "scripts cannot read the session");
assert.equal(await page.evaluate(() => localStorage.length + sessionStorage.length), 0, "no token in storage");
await page.screenshot({ path: screenshot });

await page.getByTestId("logout-button").click();
await page.getByTestId("login-toggle").waitFor();
assert.equal(complaints.slice(before).filter((text) => !text.includes("401")).length, 0, complaints.join("\n"));
await browser.close();
console.log("ok");
