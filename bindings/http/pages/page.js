// The live page. All text from Things is hostile until shown otherwise, so it is only ever set as text.

const byId = (id) => document.getElementById(id);
const things = new Map(); // thing id → TD
const values = new Map(); // "thing id\nname" → {value, created}
const happened = []; // latest events, newest first
const outcomes = new Map(); // request id → function that shows a status
const statuses = new Map(); // request id → its latest status; it may come before the answer that names the request
const requested = new Map(); // "thing id\nname" → request id of the last one, for a view that is drawn again
const MAX_STATUSES = 100;
const series = new Map(); // "thing id\nname" → [[time, number]] of what is on screen
const cards = new Map(); // "thing id\nname" → function that shows a value
const MAX_POINTS = 240;
const MAX_EVENTS = 60;
const PRESENCE = new Set(["online", "lastSeen", "skep:online", "skep:lastSeen"]);

let profile = null;
let stream = null;
let inbox = null;
let lastEvent = "";
let lastStatus = "";
let refreshTimer = 0;
let retryTimer = 0;
let shown = null;

// ---------------------------------------------------------------- small things

function element(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") made.className = value;
    else if (name === "text") made.textContent = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function drawn(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  return made;
}

const key = (thing, name) => `${thing}\n${name}`;
const path = (text) => encodeURIComponent(text);
const titled = (definition, name) => (typeof definition?.title === "string" ? definition.title : name);

function spoken(value) {
  if (value === undefined) return "–";
  if (typeof value === "number") {
    if (Number.isInteger(value)) return value.toLocaleString();
    return value.toLocaleString(undefined, { maximumSignificantDigits: 6 });
  }
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "string") return value;
  if (value === null) return "none";
  return JSON.stringify(value);
}

const UNITS = { "om2:degree_Celsius": "°C", degree_celsius: "°C", celsius: "°C", percent: "%", "om2:percent": "%" };
function unitOf(definition) {
  const unit = definition?.unit;
  if (typeof unit !== "string") return "";
  return UNITS[unit] ?? UNITS[unit.toLowerCase()] ?? unit.replace(/^[a-z0-9]+:/i, "").replaceAll("_", " ");
}

function clock(time) {
  const at = new Date(time);
  const today = new Date().toDateString() === at.toDateString();
  return today ? at.toLocaleTimeString() : at.toLocaleString();
}

// ---------------------------------------------------------------- the API

class Refusal extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `HTTP ${status}`);
    this.status = status;
    this.problem = problem;
  }
}

const CONFIRMATION = "x-confirmation";

async function api(method, target, body, headers = {}) {
  const options = { method, headers: { accept: "application/json", ...headers }, credentials: "same-origin" };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["content-type"] = "application/json";
  }
  const reply = await fetch(target, options);
  const text = await reply.text();
  let content = null;
  try {
    content = text ? JSON.parse(text) : null;
  } catch {
    content = null;
  }
  if (reply.ok) return content;
  const token = content?.confirmation;
  if (reply.status === 428 && token && !headers[CONFIRMATION] && confirm("This has to be confirmed. Do it?")) {
    return api(method, target, body, { ...headers, [CONFIRMATION]: token });
  }
  throw new Refusal(reply.status, content ?? {});
}

async function refresh() {
  const login = await api("POST", "/authn/refresh", {});
  keepAlive(login.expiresIn);
}

function keepAlive(seconds) {
  clearTimeout(refreshTimer);
  refreshTimer = setTimeout(() => refresh().catch(leave), Math.max(20, seconds - 60) * 1000);
}

// ---------------------------------------------------------------- coming and going

const MARK = "skep-was-here"; // Whether a login by cookie may stand; the cookies themselves are out of reach.

async function begin() {
  if (localStorage.getItem(MARK)) await enter();
  else leave();
}

async function enter() {
  try {
    profile = await api("GET", "/authn/profile");
  } catch (error) {
    if (!(error instanceof Refusal) || error.status !== 401) throw error;
    try {
      await refresh();
      profile = await api("GET", "/authn/profile");
    } catch {
      leave();
      return;
    }
  }
  byId("door").hidden = true;
  byId("house").hidden = false;
  byId("who").textContent = `${profile.clientID} · ${profile.role}`;
  listen();
  await load();
  choose();
}

function leave() {
  clearTimeout(refreshTimer);
  clearTimeout(retryTimer);
  stream?.close();
  inbox?.close();
  stream = inbox = profile = null;
  localStorage.removeItem(MARK);
  for (const kept of [things, values, outcomes, statuses, requested]) kept.clear();
  byId("house").hidden = true;
  byId("door").hidden = false;
  byId("login").elements.login.focus();
}

byId("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const refusal = byId("login-refusal");
  refusal.textContent = "";
  const claims = !byId("code-field").hidden;
  const body = { login: form.elements.login.value.trim(), password: form.elements.password.value, cookie: true };
  if (claims) body.code = form.elements.code.value.trim();
  try {
    const login = await api("POST", claims ? "/authn/claim" : "/authn/login", body);
    form.reset();
    keepAlive(login.expiresIn);
    localStorage.setItem(MARK, "1");
    await enter();
  } catch (error) {
    refusal.textContent = error.message;
  }
});

byId("claim-switch").addEventListener("click", () => {
  const field = byId("code-field");
  field.hidden = !field.hidden;
  byId("claim-switch").textContent = field.hidden ? "First start? Claim this runtime" : "I have an account";
  byId("door-text").textContent = field.hidden
    ? "Your Things, live."
    : "The code was printed when skep started; it makes you the first admin.";
});

byId("logout").addEventListener("click", async () => {
  try {
    await api("POST", "/authn/logout", {});
  } finally {
    leave();
  }
});

// ---------------------------------------------------------------- what comes in

function listen() {
  stream?.close();
  const resume = lastEvent ? `?lastEventID=${path(lastEvent)}` : "";
  stream = new EventSource(`/stream${resume}`);
  stream.onopen = () => live(true);
  stream.onerror = () => {
    live(false);
    if (stream?.readyState === EventSource.CLOSED) retry();
  };
  stream.addEventListener("property", (event) => take(event, valueCame));
  stream.addEventListener("event", (event) => take(event, eventCame));
  stream.addEventListener("td", (event) => take(event, tdCame));

  inbox?.close();
  const after = lastStatus ? `?lastEventID=${path(lastStatus)}` : "";
  inbox = new EventSource(`/inbox${after}`);
  inbox.addEventListener("status", (event) => {
    if (event.lastEventId) lastStatus = event.lastEventId;
    heard(JSON.parse(event.data));
  });
}

function retry() {
  clearTimeout(retryTimer);
  retryTimer = setTimeout(async () => {
    if (!profile) return;
    try {
      await refresh();
    } catch (error) {
      if (error instanceof Refusal && error.status < 500) return leave();
      return retry();
    }
    listen();
  }, 1500 + Math.random() * 1500);
}

function take(event, handle) {
  if (event.lastEventId) lastEvent = event.lastEventId;
  handle(JSON.parse(event.data));
}

function live(isOn) {
  const sign = byId("live");
  sign.classList.toggle("on", isOn);
  sign.lastElementChild.textContent = isOn ? "live" : "reconnecting";
}

function valueCame({ thingID, name, value, created }) {
  const id = key(thingID, name);
  const known = values.get(id);
  if (known && known.created > created) return;
  values.set(id, { value, created });
  if (name === "online" || name === "skep:online") {
    const td = things.get(thingID);
    if (td) td["skep:online"] = value === true;
  }
  const points = series.get(id);
  if (points && typeof value === "number") {
    points.push([Date.parse(created), value]);
    if (points.length > MAX_POINTS) points.shift();
  }
  cards.get(id)?.(true);
  glanceSoon();
}

function eventCame(event) {
  happened.unshift(event);
  happened.length = Math.min(happened.length, MAX_EVENTS);
  if (shown === event.thingID) showEvents();
}

function tdCame({ thingID, value }) {
  if (value) things.set(thingID, value);
  else things.delete(thingID);
  list();
  if (shown === thingID) show(thingID);
}

async function load() {
  let target = "/things?limit=500";
  things.clear();
  while (target) {
    const reply = await fetch(target, { headers: { accept: "application/ld+json" } });
    if (!reply.ok) throw new Refusal(reply.status, await reply.json());
    for (const td of await reply.json()) {
      if (typeof td.id === "string") things.set(td.id, td);
    }
    target = /<([^>]+)>; rel="next"/.exec(reply.headers.get("link") ?? "")?.[1];
  }
  list();
  await Promise.all([...things.keys()].filter((id) => id.startsWith("dtw:")).slice(0, 60).map(readValues));
}

async function readValues(id) {
  try {
    const found = await api("GET", `/things/${path(id)}/properties`);
    for (const [name, value] of Object.entries(found)) {
      if (!values.has(key(id, name))) values.set(key(id, name), { value, created: "" });
    }
    glanceSoon();
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
  }
}

// ---------------------------------------------------------------- the list

const services = new Set(["authn", "authz", "directory", "values", "history", "skep"]);
const isService = (id) => id.startsWith("dtw:") && services.has(id.split(":")[1]);

function list() {
  const wanted = byId("search").value.trim().toLowerCase();
  const rows = [...things.entries()]
    .filter(([id, td]) => !wanted || `${td.title} ${id}`.toLowerCase().includes(wanted))
    .sort(([a, one], [b, two]) => isService(a) - isService(b) || String(one.title).localeCompare(String(two.title)));
  const nav = byId("things");
  nav.replaceChildren(
    ...rows.map(([id, td]) =>
      element(
        "button",
        { type: "button", "data-id": id, "aria-current": id === shown, onclick: () => (location.hash = path(id)) },
        element("i", { class: "dot" }),
        element("span", { class: "title", text: td.title }),
        element("span", { class: "glance" }),
      ),
    ),
  );
  if (!rows.length) nav.append(element("p", { class: "quiet empty", text: wanted ? "Nothing by that name." : "No Things yet." }));
  glance();
}

let glancing = 0;
function glanceSoon() {
  if (!glancing) glancing = setTimeout(() => { glancing = 0; glance(); }, 250);
}

function glance() {
  for (const row of byId("things").querySelectorAll("button")) {
    const id = row.dataset.id;
    const td = things.get(id);
    if (!td) continue;
    row.querySelector(".dot").classList.toggle("on", td["skep:online"] === true);
    const parts = [];
    for (const [name, definition] of Object.entries(td.properties ?? {})) {
      const known = values.get(key(id, name));
      if (!known || PRESENCE.has(name) || typeof known.value === "object") continue;
      parts.push(`${spoken(known.value)}${unitOf(definition) ? ` ${unitOf(definition)}` : ""}`);
      if (parts.length === 3) break;
    }
    row.querySelector(".glance").textContent = parts.join(" · ") || (isService(id) ? "built-in service" : id);
  }
}

byId("search").addEventListener("input", list);

// ---------------------------------------------------------------- one Thing

function choose() {
  const id = decodeURIComponent(location.hash.slice(1));
  document.querySelector(".rooms").classList.toggle("open", things.has(id));
  if (things.has(id)) show(id);
  else welcome();
}
window.addEventListener("hashchange", choose);

function welcome() {
  shown = null;
  mark();
  const count = [...things.keys()].filter((id) => !isService(id)).length;
  byId("thing").replaceChildren(
    element(
      "div",
      { class: "welcome card" },
      element("h1", { text: count ? "Choose a Thing" : "It is quiet here" }),
      element("p", {
        class: "quiet",
        text: count
          ? "Its values arrive as they are published."
          : "Things appear as soon as an agent publishes their description.",
      }),
    ),
  );
}

function mark() {
  for (const row of byId("things").querySelectorAll("button")) row.setAttribute("aria-current", row.dataset.id === shown);
}

function show(id) {
  const td = things.get(id);
  shown = id;
  cards.clear();
  series.clear();
  mark();
  const properties = Object.entries(td.properties ?? {}).filter(([name]) => !PRESENCE.has(name));
  const actions = Object.entries(td.actions ?? {});
  const events = Object.entries(td.events ?? {});
  byId("thing").replaceChildren(
    element(
      "header",
      {},
      element("button", { class: "link back", type: "button", text: "← All Things", onclick: () => (location.hash = "") }),
      element("h1", { text: td.title }),
      td.description ? element("p", { class: "quiet", text: td.description }) : null,
      element(
        "div",
        { class: "facts" },
        element(
          "span",
          {},
          element("i", { class: td["skep:online"] ? "dot on" : "dot" }),
          element("span", { text: presence(td) }),
        ),
        element("code", { text: id }),
      ),
    ),
    ...(properties.length ? [section("Properties", "grid", properties.map(([name, one]) => propertyCard(id, name, one)))] : []),
    ...(actions.length ? [section("Actions", "grid", actions.map(([name, one]) => actionCard(id, name, one)))] : []),
    ...(events.length ? [section("Events", "", [element("ul", { class: "events card", id: "events" })])] : []),
  );
  if (events.length) showEvents();
}

function presence(td) {
  if (td["skep:online"] === true) return "online";
  const seen = td["skep:lastSeen"];
  return typeof seen === "string" ? `last seen ${clock(seen)}` : "offline";
}

const section = (title, kind, children) =>
  element("section", {}, element("h2", { text: title }), element("div", { class: kind }, ...children));

function propertyCard(id, name, definition) {
  const value = element("div", { class: "value" });
  const when = element("span", { class: "quiet small" });
  const card = element(
    "article",
    { class: "property card" },
    element("h3", { class: "quiet small", text: titled(definition, name), title: name }),
    value,
    when,
  );
  const chart = drawn("svg", { viewBox: "0 0 240 46", preserveAspectRatio: "none", "aria-hidden": "true" });
  cards.set(key(id, name), (isFresh) => {
    const known = values.get(key(id, name));
    value.textContent = spoken(known?.value);
    value.classList.toggle("text", typeof known?.value !== "number" && typeof known?.value !== "boolean");
    const unit = unitOf(definition);
    if (unit && known) value.append(element("span", { class: "unit", text: unit }));
    when.textContent = known?.created ? clock(known.created) : "";
    if (isFresh) {
      value.classList.add("fresh");
      requestAnimationFrame(() => requestAnimationFrame(() => value.classList.remove("fresh")));
    }
    sketch(chart, series.get(key(id, name)) ?? []);
  });
  if (id.startsWith("dtw:") && ["number", "integer"].includes(definition.type)) {
    card.append(chart);
    past(id, name);
  }
  if (definition.readOnly !== true) card.append(writer(id, name, definition));
  cards.get(key(id, name))(false);
  return card;
}

async function past(id, name) {
  try {
    const query = new URLSearchParams({ kind: "property", name, order: "desc", limit: String(MAX_POINTS) });
    const found = await api("GET", `/things/${path(id)}/history?${query}`);
    const newest = found.items[0];
    const known = values.get(key(id, name));
    if (newest && (!known || known.created <= newest.created)) {
      values.set(key(id, name), { value: newest.value, created: newest.created });
    }
    const points = found.items.filter((item) => typeof item.value === "number");
    series.set(key(id, name), points.map((item) => [Date.parse(item.created), item.value]).reverse());
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    series.set(key(id, name), []);
  }
  if (shown === id) cards.get(key(id, name))?.(false);
}

function sketch(chart, points) {
  chart.replaceChildren();
  chart.toggleAttribute("hidden", points.length < 2);
  if (points.length < 2) return;
  const times = points.map(([time]) => time);
  const numbers = points.map(([, number]) => number);
  const [from, to] = [Math.min(...times), Math.max(...times)];
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  const x = (time) => (to > from ? ((time - from) / (to - from)) * 240 : 0);
  const y = (number) => (high > low ? 42 - ((number - low) / (high - low)) * 38 : 23);
  const line = points.map(([time, number], at) => `${at ? "L" : "M"}${x(time).toFixed(1)} ${y(number).toFixed(1)}`).join("");
  chart.append(drawn("path", { class: "area", d: `${line}L240 46L${x(points[0][0]).toFixed(1)} 46Z` }));
  chart.append(drawn("path", { class: "line", d: line }));
}

function writer(id, name, definition) {
  const input = field(definition, values.get(key(id, name))?.value);
  input.control.setAttribute("aria-label", `New value of ${titled(definition, name)}`);
  const note = element("p", { class: "small quiet", role: "status" });
  const form = element("form", {}, input.control, element("button", { type: "submit", text: "Set" }));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    note.textContent = "sending …";
    try {
      const left = await api("PUT", `/things/${path(id)}/properties/${path(name)}`, input.read());
      note.textContent = left ? "waiting for the device" : "set";
    } catch (error) {
      note.textContent = error.message;
    }
  });
  return element("div", {}, form, note);
}

// ---------------------------------------------------------------- actions

function field(schema, now) {
  if (Array.isArray(schema.enum)) {
    const control = element("select", {}, ...schema.enum.map((one, at) => element("option", { value: at, text: spoken(one) })));
    const at = schema.enum.findIndex((one) => JSON.stringify(one) === JSON.stringify(now));
    if (at >= 0) control.value = String(at);
    return { control, read: () => schema.enum[Number(control.value)] };
  }
  if (schema.type === "boolean") {
    const control = element("input", { type: "checkbox" });
    control.checked = (now ?? schema.default) === true;
    return { control, read: () => control.checked };
  }
  if (schema.type === "integer" || schema.type === "number") {
    const step = schema.multipleOf ?? (schema.type === "integer" ? 1 : "any");
    const control = element("input", { type: "number", min: schema.minimum, max: schema.maximum, step, required: true });
    control.value = now ?? schema.default ?? "";
    return { control, read: () => Number(control.value) };
  }
  if (schema.type === "string") {
    const control = element("input", { type: "text", maxlength: schema.maxLength, minlength: schema.minLength });
    control.value = now ?? schema.default ?? "";
    return { control, read: () => control.value };
  }
  const control = element("textarea", { class: "mono", spellcheck: "false", placeholder: "JSON" });
  const begin = now ?? schema.default;
  control.value = begin === undefined ? "" : JSON.stringify(begin, null, 1);
  return { control, read: () => (control.value.trim() ? JSON.parse(control.value) : undefined) };
}

const isPlain = (schema) => Array.isArray(schema.enum) || ["boolean", "integer", "number", "string"].includes(schema.type);

function labelled(text, schema, input, isRequired) {
  const unit = unitOf(schema);
  const label = `${titled(schema, text)}${unit ? ` (${unit})` : ""}${isRequired || schema.type === "boolean" ? "" : " – optional"}`;
  if (schema.type === "boolean") return element("label", { class: "check" }, input.control, element("span", { text: label }));
  return element("label", {}, label, input.control);
}

function inputs(schema) {
  if (!schema || typeof schema !== "object") return { controls: [], read: () => undefined };
  const members = Object.entries(schema.properties ?? {});
  if (schema.type === "object" && members.length && members.every(([, one]) => isPlain(one))) {
    const required = new Set(schema.required ?? []);
    const made = members.map(([name, one]) => [name, one, field(one)]);
    for (const [name, , input] of made) if (!required.has(name)) input.control.removeAttribute("required");
    return {
      controls: made.map(([name, one, input]) => labelled(name, one, input, required.has(name))),
      read: () =>
        Object.fromEntries(
          made
            .filter(([name, , input]) => required.has(name) || input.control.type === "checkbox" || input.control.value !== "")
            .map(([name, , input]) => [name, input.read()]),
        ),
    };
  }
  const input = field(schema);
  return { controls: [labelled("Input", schema, input, true)], read: input.read };
}

function actionCard(id, name, definition) {
  const asked = inputs(definition.input);
  const outcome = element("div", { class: "outcome", role: "status" });
  const button = element("button", { class: "primary", type: "submit", text: titled(definition, name) });
  const form = element("form", {}, ...asked.controls, button);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      if (isService(id)) {
        const output = await api("POST", `/rpc/${path(id)}/${path(name)}`, asked.read());
        report(outcome, { state: "completed", output });
      } else {
        const status = await api("POST", `/things/${path(id)}/actions/${path(name)}`, asked.read());
        requested.set(`${id}\n${name}`, status.requestID);
        outcomes.set(status.requestID, (one) => report(outcome, one));
        heard(status);
      }
    } catch (error) {
      outcome.replaceChildren(element("span", { class: "chip bad", text: "refused" }), element("span", { text: error.message }));
    } finally {
      button.disabled = false;
    }
  });
  const last = requested.get(`${id}\n${name}`);
  if (last !== undefined) {
    outcomes.set(last, (one) => report(outcome, one));
    if (statuses.has(last)) report(outcome, statuses.get(last));
  }
  return element(
    "article",
    { class: "action card" },
    definition.description ? element("p", { class: "quiet small", text: definition.description }) : null,
    form,
    outcome,
  );
}

const FINAL = new Set(["completed", "failed", "cancelled"]);
const ORDER = ["pending", "delivered", "waiting", "running", "applied", "completed", "failed", "cancelled"];

function heard(status) {
  const known = statuses.get(status.requestID);
  if (!known || ORDER.indexOf(known.state) <= ORDER.indexOf(status.state)) statuses.set(status.requestID, status);
  if (statuses.size > MAX_STATUSES) statuses.delete(statuses.keys().next().value);
  outcomes.get(status.requestID)?.(statuses.get(status.requestID) ?? status);
}

function report(outcome, status) {
  const earlier = outcome.dataset.request === status.requestID ? ORDER.indexOf(outcome.dataset.state) : -1;
  if (FINAL.has(ORDER[earlier]) || ORDER.indexOf(status.state) < earlier) return;
  outcome.dataset.request = status.requestID ?? "";
  outcome.dataset.state = status.state;
  const problem = typeof status.error === "object" ? status.error?.detail : status.error;
  const isBad = problem || status.state === "failed" || status.state === "cancelled";
  const kind = isBad ? "bad" : FINAL.has(status.state) ? "good" : "busy";
  const parts = [element("span", { class: `chip ${kind}`, text: problem && status.state === "completed" ? "refused by the device" : status.state })];
  if (typeof status.progress === "number" && !FINAL.has(status.state)) {
    parts.push(element("progress", { max: 100, value: status.progress }));
  }
  if (problem) parts.push(element("span", { text: problem }));
  else if (status.reason) parts.push(element("span", { class: "quiet", text: status.reason }));
  if (status.output !== undefined && status.output !== null) {
    parts.push(element("code", { text: typeof status.output === "string" ? status.output : JSON.stringify(status.output) }));
  }
  outcome.replaceChildren(...parts);
  if (FINAL.has(status.state)) outcomes.delete(status.requestID);
}

// ---------------------------------------------------------------- events

function showEvents() {
  const target = byId("events");
  if (!target) return;
  const td = things.get(shown);
  const mine = happened.filter((event) => event.thingID === shown).slice(0, 12);
  if (!mine.length) {
    target.replaceChildren(element("li", {}, element("span", { class: "quiet", text: "None since you opened this page." })));
    return;
  }
  target.replaceChildren(
    ...mine.map((event) =>
      element(
        "li",
        {},
        element("strong", { text: titled(td?.events?.[event.name], event.name) }),
        element("span", { class: "mono", text: event.value === null ? "" : spoken(event.value) }),
        element("time", { class: "quiet small", datetime: event.created, text: clock(event.created) }),
      ),
    ),
  );
}

begin().catch((error) => {
  byId("login-refusal").textContent = error.message;
  leave();
});
