// A person with a browser: logs in, opens a shell in an instance by a web
// socket, types, reads what comes and how it ended.
// Usage: node shell.mjs ENDPOINT USERNAME PASSWORD_FILE KEY FILE
// where KEY is the instance's, as JSON, and FILE is here and there the same.
// NODE_PATH must lead to playwright-core.
import { createRequire } from "node:module";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import assert from "node:assert/strict";

const require = createRequire(process.env.NODE_PATH + "/");
const { chromium } = require("playwright-core");
const [endpoint, username, passwordFile, key, file] = process.argv.slice(2);

const browser = await chromium.launch({
  executablePath: "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"],
});

// A page of ours, with what its scripts would have.
async function open() {
  const context = await browser.newContext({ ignoreHTTPSErrors: true });
  const page = await context.newPage();
  await page.goto(endpoint + "/docs");
  await page.evaluate(() => {
    window.call = async (method, request, headers = {}) => {
      const response = await fetch("/" + method, {
        method: "POST",
        headers: { "content-type": "application/json", ...headers },
        body: JSON.stringify(request),
      });
      const reply = await response.json();
      if (!response.ok) throw new Error(JSON.stringify(reply));
      return reply;
    };
    // Says all that it is told to, and returns all that was heard. What is
    // said after `wait` is said when that has been heard.
    window.converse = (address, said) => new Promise((resolve, reject) => {
      const socket = new WebSocket(address);
      const heard = { bytes: new Uint8Array(0), exit: null };
      const text = () => new TextDecoder().decode(heard.bytes);
      const rest = [...said];
      const speak = () => {
        while (rest.length && (!rest[0].wait || text().includes(rest[0].wait))) {
          const { json, typed } = rest.shift();
          if (json) socket.send(JSON.stringify(json));
          if (typed) socket.send(new TextEncoder().encode(typed));
        }
      };
      socket.binaryType = "arraybuffer";
      socket.onopen = speak;
      socket.onmessage = ({ data }) => {
        if (typeof data === "string") {
          heard.exit = JSON.parse(data).exit;
        } else {
          const all = new Uint8Array(heard.bytes.length + data.byteLength);
          all.set(heard.bytes);
          all.set(new Uint8Array(data), heard.bytes.length);
          heard.bytes = all;
          speak();
        }
      };
      socket.onerror = () => reject(new Error("refused"));
      socket.onclose = async () => {
        const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", heard.bytes));
        const hex = [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
        resolve({ length: heard.bytes.length, hex, text: text().slice(0, 10000), exit: heard.exit });
      };
    });
  });
  return page;
}

const page = await open();
const login = { username, password: readFileSync(passwordFile, "utf8").trim() };
await page.evaluate((login) => call("services.auth.AuthService/Login", login, { "x-session": "cookie" }), login);
const run = async (request) => {
  const whole = { appInstKey: JSON.parse(key), ...request };
  const reply = await page.evaluate((whole) => call("edgeproto.ExecApi/RunCommand", whole), whole);
  assert.ok(reply.answer?.startsWith("wss://"), JSON.stringify(reply));
  return reply.answer;
};
const converse = (page, address, said) =>
  page.evaluate(([address, said]) => converse(address, said), [address, said]);

// A shell on a terminal.
const shell = await converse(page, await run({ words: ["sh"], terminal: true }), [
  { json: { resize: [97, 41] } },
  { typed: "stty size; echo t'h'ere\n" },
  { wait: "there\r\n", json: { resize: [132, 50] }, typed: "while test \"$(stty size)\" != '50 132'; do :; done; echo b'i'g\n" },
  { wait: "big\r\n", typed: "exit 5\n" },
]);
assert.ok(shell.text.includes("41 97\r\n"), shell.text);
assert.equal(shell.exit, 5, shell.text);

// A file, byte for byte, through a command that reads to its end.
const much = await converse(page, await run({ words: ["sh", "-c", `cat; cat ${file}`] }), [
  { json: { resize: [0, 0] } },
  { json: { end: true } },
]);
const content = readFileSync(file);
assert.deepEqual(
  [much.length, much.hex, much.exit],
  [content.length, createHash("sha256").update(content).digest("hex"), 0],
);

// Whoever has the address and not the session gets nothing, and the address
// is still good for whom it is for.
const address = await run({ words: ["echo", "mine"] });
const stranger = await open();
await assert.rejects(converse(stranger, address, []), /refused/);
const mine = await converse(page, address, [{ json: { resize: [0, 0] } }]);
assert.deepEqual([mine.text, mine.exit], ["mine\n", 0]);

await browser.close();
console.log("ok");
