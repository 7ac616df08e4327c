// Shows /openapi.json and calls its methods over Connect.
"use strict";

const PARTS = {
  auth: "Who may talk to this server: login, users, sessions, join tokens.",
  controller: "The edge cloud: applications, flavours, cloudlets, clusters and what runs where.",
  dashboard: "Figures about clusters and nodes for the page that shows them.",
  dme: "Finds the nearest cloudlet for a client of an application.",
  kaas: "Kubernetes clusters: create, grow, upgrade, remove.",
  lvmd: "Volumes and volume groups of a node.",
  node: "One machine: its containers, processes, network, time and certificates.",
  system: "What this process is and what it serves.",
};
const LOGIN = "/services.auth.AuthService/Login";
const LOGOUT = "/services.auth.AuthService/Logout";
const WHOAMI = "/selvage.identity.IdentityService/WhoAmI";
const SKELETON_DEPTH = 4;
const MAX_SHOWN = 500;

const byId = (id) => document.getElementById(id);
const state = { document: null, methods: [], running: null, drafts: new Map(), open: new Set() };

/* ---------- building elements ---------- */

function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child != null));
  return element;
}

const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

/** JSON as text with its keys and strings marked. */
function jsonBlock(value, testId) {
  const text = JSON.stringify(value, null, 2);
  const block = h("pre", { "data-testid": testId, tabindex: "0" });
  const pattern = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
  let last = 0;
  for (const found of text.matchAll(pattern)) {
    block.append(text.slice(last, found.index));
    const kind = found[2] ? "key" : found[1] ? "text" : "other";
    block.append(h("span", { class: kind }, found[1] || found[0]));
    if (found[2]) block.append(found[2]);
    last = found.index + found[0].length;
  }
  block.append(text.slice(last));
  return block;
}

/* ---------- the document ---------- */

function readMethods(doc) {
  const methods = [];
  const routes = new Map();
  for (const [path, item] of Object.entries(doc.paths)) {
    for (const [verb, operation] of Object.entries(item)) {
      const about = operation["x-selvage"];
      if (about.protocol === "connect") {
        methods.push({ path, operation, about, service: operation.tags[0], name: operation.summary });
      } else {
        if (!routes.has(about.method)) routes.set(about.method, []);
        routes.get(about.method).push({ verb: verb.toUpperCase(), path });
      }
    }
  }
  for (const method of methods) method.routes = routes.get(method.path) || [];
  return methods;
}

function schemaOf(reference) {
  const name = reference && reference.split("/").pop();
  return name ? state.document.components.schemas[name] : undefined;
}

function resolve(schema) {
  return schema && schema.$ref ? { ...schemaOf(schema.$ref), ...schema, name: schema.$ref.split("/").pop() } : schema;
}

function kindOf(method) {
  if (method.about.clientStreaming) return "gRPC only";
  return method.about.serverStreaming ? "stream" : "";
}

function bodySchema(method, side) {
  const content = side === "input"
    ? method.operation.requestBody.content
    : method.operation.responses["200"].content;
  return (content["application/json"] || content["application/connect+json"]).schema;
}

/** A request with every field at its zero value; absent where zero would mean something. */
function skeleton(schema, seen = []) {
  const real = resolve(schema);
  if (!real) return {};
  if (real.name && (seen.includes(real.name) || seen.length >= SKELETON_DEPTH)) return null;
  const deeper = real.name ? [...seen, real.name] : seen;
  if (real.enum) return real.enum[0];
  if (real.type === "object") {
    if (!real.properties) return {};
    return Object.fromEntries(
      Object.entries(real.properties).map(([name, inner]) => [name, skeleton(inner, deeper)]));
  }
  if (real.type === "array") return [];
  if (real.type === "boolean") return false;
  if (real.type === "integer" || real.type === "number") return 0;
  if (real.type === "string") {
    if (real.format === "int64" || real.format === "uint64") return "0";
    return real.format === "date-time" || real.pattern ? null : "";
  }
  return null;
}

/* ---------- the list of methods ---------- */

function matches(method, words) {
  const text = `${method.path} ${method.about.part} ${method.operation.description || ""} ${method.routes.map((r) => r.path).join(" ")}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

function renderList() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = state.methods.filter((method) => matches(method, words));
  const list = byId("methods");
  list.replaceChildren();
  for (const group of state.document["x-tagGroups"]) {
    const inPart = found.filter((method) => method.about.part === group.name);
    if (inPart.length === 0) continue;
    const part = h("section", { class: "part", "data-testid": `part-${group.name}` }, h("h2", {}, group.name));
    for (const service of group.tags) {
      const own = inPart.filter((method) => method.service === service);
      if (own.length > 0) part.append(renderService(service, own, words.length > 0));
    }
    list.append(part);
  }
  byId("filter-count").textContent = words.length
    ? `${found.length} of ${state.methods.length} methods`
    : plural(state.methods.length, "method");
}

function renderService(service, methods, filtered) {
  const current = currentMethod();
  if (current && current.service === service) state.open.add(service);
  const remember = (event) => {
    if (filtered) return;
    if (event.target.open) state.open.add(service);
    else state.open.delete(service);
  };
  return h("details", { class: "service", open: filtered || state.open.has(service), ontoggle: remember, "data-testid": `service-${service}` },
    h("summary", {}, service.split(".").pop(), " ", h("span", { class: "number" }, `${methods.length}`)),
    h("ul", {}, methods.map((method) => h("li", {},
      h("a", {
        href: `#${method.path}`,
        "data-testid": `method-${method.service}/${method.name}`,
        "aria-current": method === current ? "page" : null,
      }, h("span", {}, method.name), h("span", { class: "kind" }, kindOf(method)))))));
}

/* ---------- pages ---------- */

function currentMethod() {
  const path = decodeURIComponent(location.hash.slice(1));
  return state.methods.find((method) => method.path === path);
}

function show() {
  if (!state.document) return;
  stop();
  const method = currentMethod();
  renderList();
  const main = byId("main");
  main.replaceChildren(...(method ? methodPage(method) : startPage()));
  const current = byId("methods").querySelector("[aria-current]");
  if (current) current.scrollIntoView({ block: "nearest" });
  document.title = method ? `${method.name} · Selvage API` : "Selvage API";
}

function startPage() {
  const cards = state.document["x-tagGroups"].map((group) => {
    const own = state.methods.filter((method) => method.about.part === group.name);
    return h("a", { class: "card", href: `#${own[0].path}`, "data-testid": `card-${group.name}` },
      h("h2", {}, group.name),
      h("p", {}, PARTS[group.name] || ""),
      h("p", { class: "sum" }, `${plural(group.tags.length, "service")}, ${plural(own.length, "method")}`));
  });
  return [
    h("div", { class: "hero" },
      h("h1", {}, "Everything this server can do"),
      h("p", {}, "Pick a method on the left, or press ", h("kbd", {}, "/"),
        " and type part of its name. Each can be called from here, with the rights you are logged in with."),
      h("p", {}, "The same methods answer gRPC, gRPC-Web and Connect at the paths shown, and REST where a route is named. The document behind this page is ",
        h("a", { href: "/openapi.json" }, "/openapi.json"), ".")),
    h("div", { class: "cards", "data-testid": "cards" }, cards),
  ];
}

function methodPage(method) {
  const comment = method.operation.description;
  const badges = [
    h("span", { class: "badge" }, method.about.part),
    h("span", { class: "badge" }, method.about.clientStreaming ? "stream both ways, gRPC only"
      : method.about.serverStreaming ? "stream of replies" : "one reply"),
  ];
  return [
    h("p", { class: "crumb", "data-testid": "method-path" }, method.path),
    h("div", { class: "title" },
      h("h1", { id: "method-title", "data-testid": "method-title" }, method.name), badges),
    h("p", { class: comment ? "comment" : "comment none", "data-testid": "method-comment" },
      comment || `Takes ${method.about.input}, answers ${method.about.output}.`),
    h("div", { class: "columns" },
      h("div", {}, routesBlock(method), fieldsBlock(method), replyBlock(method)),
      h("section", { class: "try", "aria-label": "Call this method" }, tryBox(method))),
  ];
}

function routesBlock(method) {
  const rows = [{ verb: "POST", path: method.path, kind: "Connect, gRPC, gRPC-Web" },
    ...method.routes.map((route) => ({ ...route, kind: "REST" }))];
  return h("section", { class: "block", "data-testid": "routes" },
    h("h2", {}, "Where it answers"),
    h("ul", { class: "routes" }, rows.map((row) => h("li", {},
      h("span", { class: "verb" }, row.verb), h("span", {}, h("code", {}, row.path), " ",
        h("span", { class: "crumb" }, row.kind))))));
}

function fieldsBlock(method) {
  return h("section", { class: "block" },
    h("h2", {}, "Request fields"), fieldsTable(bodySchema(method, "input"), "request-fields", "Request fields"));
}

function replyBlock(method) {
  return h("details", { class: "more block" },
    h("summary", {}, method.about.serverStreaming ? "Fields of each reply" : "Reply fields"),
    fieldsTable(bodySchema(method, "output"), "reply-fields", "Reply fields"));
}

function fieldsTable(schema, testId, caption) {
  const rows = fieldRows(schema, 0, []);
  if (rows.length === 0) return h("p", { class: "comment none", "data-testid": testId }, "None: the message is empty.");
  return h("div", { class: "fields", tabindex: "0", role: "region", "aria-label": caption },
    h("table", { "data-testid": testId },
      h("thead", {}, h("tr", {},
        h("th", { scope: "col" }, "Field"), h("th", { scope: "col" }, "Type"), h("th", { scope: "col" }, "Meaning"))),
      h("tbody", {}, rows)));
}

function fieldRows(schema, depth, seen) {
  const real = resolve(schema);
  const rows = [];
  for (const [name, field] of Object.entries((real && real.properties) || {})) {
    const target = resolve(field.type === "array" ? field.items : field);
    const values = target.enum ? h("span", { class: "values" }, target.enum.join(" · ")) : null;
    rows.push(h("tr", {},
      h("th", { scope: "row", class: depth ? `deep-${depth}` : null }, h("code", {}, name)),
      h("td", { class: "type" }, typeName(field)),
      h("td", {}, field.description || "", values)));
    if (target.properties && depth < 3 && !seen.includes(target.name)) {
      rows.push(...fieldRows(target, depth + 1, [...seen, target.name]));
    }
  }
  return rows;
}

function typeName(schema) {
  if (schema.type === "array") return `list of ${typeName(schema.items)}`;
  if (schema.additionalProperties) return `map to ${typeName(schema.additionalProperties)}`;
  if (schema.$ref) return schema.$ref.split("/").pop().split(".").pop();
  if (schema.format === "date-time") return "time";
  if (schema.contentEncoding) return "bytes";
  return schema.format || schema.type || "any";
}

/* ---------- calling ---------- */

function tryBox(method) {
  if (method.about.clientStreaming) {
    return h("div", { class: "try-box" }, h("p", {},
      "This method takes a stream from its caller, which a browser cannot send. Use a gRPC client."));
  }
  const draft = state.drafts.get(method.path) ?? JSON.stringify(skeleton(bodySchema(method, "input")), null, 2);
  const editor = h("textarea", {
    id: "request-editor", "data-testid": "request-editor", spellcheck: "false", autocapitalize: "none",
    autocomplete: "off", "aria-describedby": "request-error",
    oninput: () => { state.drafts.set(method.path, editor.value); editor.removeAttribute("aria-invalid"); byId("request-error").hidden = true; updateCommand(method); },
    onkeydown: (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); send(method); } },
  });
  editor.value = draft;
  return h("div", { class: "try-box" },
    h("label", { for: "request-editor" }, "Request", h("span", { class: "hint" }, `${method.about.input}, JSON`)),
    editor,
    h("p", { class: "trouble", id: "request-error", "data-testid": "request-error", role: "alert", hidden: true }),
    h("div", { class: "actions" },
      h("button", { type: "button", id: "send-button", "data-testid": "send-button", onclick: () => send(method) }, "Send"),
      h("button", { type: "button", class: "quiet", id: "stop-button", "data-testid": "stop-button", hidden: true, onclick: stop }, "Stop"),
      h("button", { type: "button", class: "quiet", id: "reset-button", "data-testid": "reset-button", onclick: () => { state.drafts.delete(method.path); show(); byId("request-editor").focus(); } }, "Reset"),
      h("span", { class: "hint" }, h("kbd", {}, "Ctrl"), " ", h("kbd", {}, "Enter"))),
    h("div", { class: "answer" },
      h("div", { class: "status", id: "response-status", "data-testid": "response-status", role: "status" }),
      h("div", { id: "response-body", "data-testid": "response-body" })),
    h("details", { class: "more block", ontoggle: () => updateCommand(method) },
      h("summary", {}, "As a command"),
      h("pre", { id: "command", "data-testid": "command", tabindex: "0" })));
}

function updateCommand(method) {
  const block = byId("command");
  if (!block) return;
  let body = byId("request-editor").value;
  try { body = JSON.stringify(JSON.parse(body)); } catch { /* shown as typed */ }
  const quoted = `'${body.replaceAll("'", "'\\''")}'`;
  block.textContent = `selvage call ${method.path.slice(1)} ${quoted}`;
}

function setStatus(kind, headline, fine) {
  const box = byId("response-status");
  if (!box) return;
  box.className = `status ${kind}`;
  const sign = { good: "✓", bad: "✕" }[kind] || "…";
  box.replaceChildren(h("span", { class: "sign", "aria-hidden": "true" }, sign), h("span", {}, headline),
    h("span", { class: "fine" }, fine || ""));
}

function stop() {
  if (state.running) state.running.abort();
  state.running = null;
}

async function send(method) {
  const editor = byId("request-editor");
  let message;
  try {
    message = JSON.stringify(JSON.parse(editor.value.trim() || "{}"));
  } catch (error) {
    const trouble = byId("request-error");
    editor.setAttribute("aria-invalid", "true");
    trouble.textContent = `The request is not JSON: ${error.message}`;
    trouble.hidden = false;
    editor.focus();
    return;
  }
  stop();
  const control = new AbortController();
  state.running = control;
  byId("response-body").replaceChildren();
  byId("send-button").disabled = true;
  byId("stop-button").hidden = false;
  setStatus("", "Sending …");
  const started = performance.now();
  const elapsed = () => `${Math.round(performance.now() - started)} ms`;
  try {
    await (method.about.serverStreaming ? sendStream : sendUnary)(method, message, control.signal, elapsed);
  } catch (error) {
    if (control.signal.aborted) setStatus("", "Stopped", elapsed());
    else setStatus("bad", `Failed: ${error.message}`, elapsed());
  } finally {
    if (state.running === control) state.running = null;
    if (byId("send-button")) {
      byId("send-button").disabled = false;
      byId("stop-button").hidden = true;
    }
  }
}

function post(path, contentType, body, signal, more) {
  return fetch(path, {
    method: "POST", body, signal, credentials: "same-origin", cache: "no-store",
    headers: { "Content-Type": contentType, "Connect-Protocol-Version": "1", ...more },
  });
}

async function sendUnary(method, message, signal, elapsed) {
  const response = await post(method.path, "application/json", message, signal);
  const text = await response.text();
  let value;
  try { value = JSON.parse(text); } catch { value = text; }
  if (response.ok) setStatus("good", "Succeeded", `${response.status}, ${elapsed()}`);
  else setStatus("bad", `Failed: ${value.code || response.statusText}: ${value.message || ""}`, `${response.status}, ${elapsed()}`);
  byId("response-body").replaceChildren(jsonBlock(value, "response-json"));
  if (method.path === LOGIN || method.path === LOGOUT) whoAmI();
}

async function sendStream(method, message, signal, elapsed) {
  const response = await post(method.path, "application/connect+json", envelope(message), signal);
  if (!(response.headers.get("content-type") || "").startsWith("application/connect+json")) {
    const text = await response.text();
    let problem = {};
    try { problem = JSON.parse(text); } catch { problem = { message: text }; }
    setStatus("bad", `Failed: ${problem.code || response.statusText}: ${problem.message || ""}`, `${response.status}, ${elapsed()}`);
    return;
  }
  const list = h("ol", { class: "stream", "data-testid": "response-stream", tabindex: "0", "aria-label": "Messages received" });
  byId("response-body").replaceChildren(list);
  let count = 0;
  let end = null;
  for await (const [flags, value] of envelopes(response.body)) {
    if (flags & 2) { end = value; break; }
    count += 1;
    list.append(h("li", {}, h("span", { class: "order" }, `Message ${count}`), jsonBlock(value, "response-json")));
    while (list.childElementCount > MAX_SHOWN) list.firstElementChild.remove();
    setStatus("", `Receiving, ${count} so far`, elapsed());
  }
  const received = plural(count, "message");
  if (!end) setStatus("bad", `Failed: the stream broke off after ${received}`, elapsed());
  else if (end.error) setStatus("bad", `Failed: ${end.error.code}: ${end.error.message || ""}`, `${received}, ${elapsed()}`);
  else setStatus("good", "Succeeded", `${received}, ${elapsed()}`);
}

function envelope(message) {
  const payload = new TextEncoder().encode(message);
  const framed = new Uint8Array(5 + payload.length);
  new DataView(framed.buffer).setUint32(1, payload.length);
  framed.set(payload, 5);
  return framed;
}

async function* envelopes(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let buffer = new Uint8Array(0);
  try {
    for (;;) {
      while (buffer.length >= 5) {
        const length = new DataView(buffer.buffer, buffer.byteOffset).getUint32(1);
        if (buffer.length < 5 + length) break;
        yield [buffer[0], JSON.parse(decoder.decode(buffer.subarray(5, 5 + length)))];
        buffer = buffer.subarray(5 + length);
      }
      const { done, value } = await reader.read();
      if (done) return;
      const joined = new Uint8Array(buffer.length + value.length);
      joined.set(buffer);
      joined.set(value, buffer.length);
      buffer = joined;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/* ---------- who is logged in ---------- */

async function whoAmI() {
  const shown = byId("whoami");
  let who = null;
  try {
    const response = await post(WHOAMI, "application/json", "{}");
    const value = await response.json();
    if (response.ok) who = value;
    else if (response.status !== 401) throw new Error(value.message || response.statusText);
  } catch (error) {
    shown.replaceChildren(`Cannot tell who you are: ${error.message}`);
    byId("login-toggle").hidden = false;
    return;
  }
  const session = who && who.kind === "user";
  byId("logout-button").hidden = !session;
  byId("login-toggle").hidden = Boolean(who);
  if (who) toggleLogin(false);
  if (!who) shown.replaceChildren("Not logged in");
  else if (who.kind === "insecure") shown.replaceChildren("Insecure mode: everybody is admin");
  else shown.replaceChildren("Logged in as ", h("strong", {}, who.name || "?"), roles(who));
}

function roles(who) {
  const list = (who.grants || []).map((grant) => grant.organisation ? `${grant.role} of ${grant.organisation}` : grant.role);
  return list.length ? ` (${list.join(", ")})` : "";
}

function toggleLogin(open) {
  const wanted = open ?? byId("login-form").hidden;
  byId("login-form").hidden = !wanted;
  byId("login-toggle").setAttribute("aria-expanded", String(wanted));
  byId("login-error").hidden = true;
  if (wanted) byId("login-username").focus();
}

async function logIn(event) {
  event.preventDefault();
  const button = byId("login-button");
  const trouble = byId("login-error");
  const password = byId("login-password");
  const body = JSON.stringify({ username: byId("login-username").value, password: password.value });
  button.disabled = true;
  trouble.hidden = true;
  try {
    const response = await post(LOGIN, "application/json", body, undefined, { "X-Session": "cookie" });
    if (!response.ok) {
      const value = await response.json().catch(() => ({}));
      throw new Error(value.message || response.statusText || "the login was refused");
    }
    await whoAmI();
    byId("logout-button").focus();
  } catch (error) {
    trouble.textContent = `Could not log in: ${error.message}`;
    trouble.hidden = false;
    password.focus();
  } finally {
    password.value = "";
    button.disabled = false;
  }
}

async function logOut() {
  try {
    await post(LOGOUT, "application/json", "{}");
  } finally {
    await whoAmI();
    byId("login-toggle").focus();
  }
}

/* ---------- keys and start ---------- */

function typing(target) {
  return target.closest && target.closest("input, textarea, [contenteditable]");
}

function onKey(event) {
  if (event.key === "/" && !event.ctrlKey && !event.metaKey && !event.altKey && !typing(event.target)) {
    event.preventDefault();
    byId("filter").focus();
    byId("filter").select();
  } else if (event.key === "Escape" && !byId("login-form").hidden) {
    toggleLogin(false);
    byId("login-toggle").focus();
  }
}

function onFilterKey(event) {
  const links = [...byId("methods").querySelectorAll("details[open] a")];
  if (event.key === "Escape") { event.target.value = ""; renderList(); }
  else if (event.key === "ArrowDown" && links.length) { event.preventDefault(); links[0].focus(); }
  else if (event.key === "Enter" && links.length) { event.preventDefault(); location.hash = links[0].getAttribute("href"); }
}

function onListKey(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step || event.target.tagName !== "A") return;
  event.preventDefault();
  const links = [...byId("methods").querySelectorAll("details[open] a")];
  const next = links.indexOf(event.target) + step;
  if (next < 0) byId("filter").focus();
  else if (links[next]) links[next].focus();
}

async function start() {
  byId("filter").addEventListener("input", () => state.document && renderList());
  byId("filter").addEventListener("keydown", onFilterKey);
  byId("methods").addEventListener("keydown", onListKey);
  byId("login-toggle").addEventListener("click", () => toggleLogin());
  byId("login-form").addEventListener("submit", logIn);
  byId("logout-button").addEventListener("click", logOut);
  document.addEventListener("keydown", onKey);
  document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); byId("main").focus(); });
  window.addEventListener("hashchange", () => { show(); byId("main").focus({ preventScroll: true }); window.scrollTo(0, 0); });
  whoAmI();
  try {
    const response = await fetch("/openapi.json", { credentials: "same-origin" });
    if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
    state.document = await response.json();
  } catch (error) {
    byId("main").replaceChildren(h("p", { class: "trouble", role: "alert" }, `Could not read /openapi.json: ${error.message}`));
    return;
  }
  state.methods = readMethods(state.document);
  byId("version").textContent = state.document.info.version;
  show();
}

start();
