// One Thing: its values with their course, its actions, its events.

import { Refusal, api, path } from "./api.js";
import { actionCard } from "./actions.js";
import { Chart, isDrawable, plotted } from "./chart.js";
import { byId, element, foreign, section } from "./dom.js";
import { field } from "./forms.js";
import { on, store } from "./store.js";
import { PRESENCE, bounded, clock, key, spoken, titled, unitOf } from "./text.js";

const MAX_POINTS = 240;
const MAX_EVENTS = 12;
const CHART_MS = 500; // A small chart is drawn again at most so often,
const QUIET_MS = 2_000; // and a value flashes that stood still for so long.
const FILLED_AT_ONCE = 100; // Affordances drawn in one step; more follow in steps of their own.

const cards = new Map(); // name → function that shows a value
const series = new Map(); // name → [[time, number]]
let shown = null;
let td = null;
let drawnAs = "";
let online = null;
let seer = null;

export function begin() {
  on("values", (fresh) => {
    for (const [id, name, value, created] of fresh) {
      if (id !== shown) continue;
      const points = series.get(name);
      const number = plotted(value);
      const time = Date.parse(created);
      if (points && number !== null && !(points.length && points[points.length - 1][0] >= time)) {
        points.push([time, number]);
        if (points.length > MAX_POINTS) points.shift();
      }
      cards.get(name)?.(true);
    }
  });
  on("events", (fresh) => fresh.some(({ thingID }) => thingID === shown) && showEvents());
  on("things", (rows) => rows.some(([id]) => id === shown) && store.things.has(shown) && showPresence());
  on("changed", (ids) => ids.includes(shown) && read(shown));
  on("gap", () => shown && td && (series.clear(), draw()));
}

export function close() {
  shown = td = null;
  drawnAs = "";
  cards.clear();
  series.clear();
  seer?.disconnect();
}

export async function show(id) {
  if (shown === id) return;
  close();
  shown = id;
  const summary = store.things.get(id);
  byId("thing").replaceChildren(heading(summary.title, "", id));
  showPresence();
  await read(id);
}

async function read(id) {
  try {
    const found = await api("GET", `things/${path(id)}?forms=http`);
    if (shown !== id) return;
    // Announced again as it was: what stands there, also half-filled forms, stays.
    const { registration, "skep:online": _online, "skep:lastSeen": _seen, ...rest } = found;
    const text = JSON.stringify(rest);
    td = found;
    if (text === drawnAs) return;
    drawnAs = text;
    draw();
  } catch (error) {
    if (!(error instanceof Refusal) || shown !== id) return;
    byId("thing").append(element("p", { class: "refusal", role: "alert" }, foreign(error.message)));
  }
}

function heading(title, description, id) {
  online = element("span", { class: "online" });
  return element(
    "header",
    {},
    element("button", { class: "link back", type: "button", text: "← All Things", onclick: () => (location.hash = "") }),
    element("h1", { dir: "auto" }, foreign(bounded(title, 200))),
    description ? element("p", { class: "quiet about", dir: "auto" }, foreign(bounded(description, 1_000))) : null,
    element("div", { class: "facts" }, online, element("code", { text: id })),
  );
}

function showPresence() {
  const summary = store.things.get(shown);
  if (!summary || !online) return;
  const seen = store.values.get(key(shown, "lastSeen"))?.value ?? td?.["skep:lastSeen"];
  const text = summary.online ? "online" : typeof seen === "string" ? `last seen ${clock(seen)}` : "offline";
  online.replaceChildren(element("i", { class: summary.online ? "dot on" : "dot" }), element("span", { text }));
}

function draw() {
  const id = shown;
  cards.clear();
  series.clear();
  seer?.disconnect();
  // The past of what is not looked at is not asked for.
  seer = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      seer.unobserve(target);
      past(id, target.dataset.name);
    }
  });
  const properties = Object.entries(td.properties ?? {}).filter(([name]) => !PRESENCE.has(name));
  const actions = Object.entries(td.actions ?? {});
  const hasEvents = Object.keys(td.events ?? {}).length > 0;
  const parts = [heading(td.title ?? id, td.description, id)];
  if (properties.length) parts.push(grid("Properties", properties, (name, one) => propertyCard(id, name, one)));
  if (actions.length) parts.push(grid("Actions", actions, (name, one) => actionCard(id, name, one)));
  if (hasEvents) parts.push(section("Events", "", [element("ul", { class: "events card", id: "events" })]));
  byId("thing").replaceChildren(...parts);
  showPresence();
  if (hasEvents) showEvents();
}

function grid(title, entries, card) {
  const made = section(title, "grid", entries.slice(0, FILLED_AT_ONCE).map(([name, one]) => card(name, one)));
  const more = (from) => {
    if (from >= entries.length || !made.isConnected) return;
    made.lastChild.append(...entries.slice(from, from + FILLED_AT_ONCE).map(([name, one]) => card(name, one)));
    setTimeout(() => more(from + FILLED_AT_ONCE));
  };
  setTimeout(() => more(FILLED_AT_ONCE));
  return made;
}

function propertyCard(id, name, definition) {
  const number = foreign("");
  const unit = unitOf(definition);
  const unitNode = element("span", { class: "unit", text: unit });
  const value = element("div", { class: "value", dir: "auto" }, number, unitNode);
  const when = element("span", { class: "quiet small" });
  const heading = element("h3", { class: "quiet small", title: bounded(name, 200) }, foreign(titled(definition, name)));
  const card = element("article", { class: "property card", "data-name": name }, heading, value, when);
  const chart = new Chart(definition, unit);
  const set = definition.readOnly === true ? null : writer(id, name, definition);
  let drawnAt = 0;
  let freshAt = 0;
  let later = 0;
  const sketch = () => {
    clearTimeout(later);
    const now = performance.now();
    if (now - drawnAt < CHART_MS) return void (later = setTimeout(sketch, CHART_MS));
    drawnAt = now;
    const points = series.get(name);
    if (points && card.isConnected) chart.draw(points);
  };
  cards.set(name, (isFresh) => {
    const known = store.values.get(key(id, name));
    set?.show(known);
    number.textContent = spoken(known?.value);
    unitNode.hidden = !unit || !known;
    value.classList.toggle("text", typeof known?.value !== "number" && typeof known?.value !== "boolean");
    when.textContent = known?.created ? clock(known.created) : "";
    const wasFreshAt = freshAt;
    if (isFresh) freshAt = performance.now();
    if (isFresh && freshAt - wasFreshAt > QUIET_MS) {
      value.classList.add("fresh");
      requestAnimationFrame(() => requestAnimationFrame(() => value.classList.remove("fresh")));
    }
    if (isFresh) sketch();
    else if (series.has(name)) chart.draw(series.get(name));
  });
  if (id.startsWith("dtw:") && isDrawable(definition)) {
    card.append(chart.node);
    seer.observe(card);
  }
  if (set) card.append(set.node);
  cards.get(name)(false);
  return card;
}

async function past(id, name) {
  let points = [];
  try {
    const query = new URLSearchParams({ kind: "property", name, order: "desc", limit: String(MAX_POINTS) });
    const found = await api("GET", `things/${path(id)}/history?${query}`);
    points = found.items
      .map((item) => [Date.parse(item.created), plotted(item.value)])
      .filter(([, number]) => number !== null)
      .reverse();
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
  }
  if (shown !== id) return;
  series.set(name, points);
  cards.get(name)?.(false);
}

function writer(id, name, definition) {
  const input = field(definition, store.values.get(key(id, name))?.value, name);
  input.control.setAttribute("aria-label", `New value of ${titled(definition, name)}`);
  const note = element("p", { class: "small quiet", role: "status", dir: "auto" });
  const form = element("form", {}, input.control, element("button", { type: "submit", text: "Set" }));
  let isTouched = false;
  let last;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    note.textContent = "sending …";
    try {
      const left = await api("PUT", `things/${path(id)}/properties/${path(name)}`, input.read());
      note.textContent = left ? "waiting for the device" : "set";
      isTouched = false;
    } catch (error) {
      note.textContent = error.message;
    }
  });
  form.addEventListener("input", () => (isTouched = true));
  const show = (known) => {
    if (!known || known.value === last || isTouched || form.contains(document.activeElement)) return;
    last = known.value;
    if (input.control.type === "checkbox") input.control.checked = known.value === true;
    else input.show(known.value);
  };
  return { node: element("div", { class: "writer" }, form, note), show };
}

function showEvents() {
  const target = byId("events");
  if (!target) return;
  const mine = store.events.filter((event) => event.thingID === shown).slice(0, MAX_EVENTS);
  if (!mine.length) {
    target.replaceChildren(element("li", {}, element("span", { class: "quiet", text: "None since you opened this page." })));
    return;
  }
  target.replaceChildren(
    ...mine.map((event) =>
      element(
        "li",
        {},
        element("strong", {}, foreign(titled(td?.events?.[event.name], event.name))),
        foreign(event.value === null ? "" : spoken(event.value), { class: "mono" }),
        element("time", { class: "quiet small", datetime: event.created, text: clock(event.created) }),
      ),
    ),
  );
}
