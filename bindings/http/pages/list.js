// The list of Things. Only rows on screen exist, and only those are subscribed to; rows are changed in place.

import { byId, element } from "./dom.js";
import { want } from "./link.js";
import { on, store } from "./store.js";
import { PRESENCE, key, spoken, unitText } from "./text.js";

const ROW = 60; // As in page.css.
const BEYOND = 4; // Rows kept ready above and below.
const HIDDEN_MS = 5_000;
const MAX_GLANCES = 3;

const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });
const rows = new Map(); // id → element of a row on screen
let order = []; // ids as they are listed
let shown = null;
let wanted = "";
let isAway = false;
let isDue = false;

const scroller = () => byId("things");

export function isService(id) {
  return store.things.get(id)?.service === true;
}

// Which Thing is open beside the list; it stays subscribed to.
export function mark(id) {
  shown = id;
  drawSoon();
}

function sort() {
  const words = byId("search").value.trim().toLowerCase();
  order = [];
  for (const [id, row] of store.things) {
    if (words ? `${row.title} ${id}`.toLowerCase().includes(words) : !row.service) order.push(id);
  }
  order.sort((a, b) => collator.compare(store.things.get(a).title, store.things.get(b).title) || (a < b ? -1 : 1));
  const empty = byId("nothing");
  empty.hidden = order.length > 0;
  empty.textContent = words ? "Nothing by that name." : store.isListed ? "No Things yet." : "Looking …";
  drawSoon();
}

function drawSoon() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    draw();
  });
}

function draw() {
  const box = scroller();
  const list = byId("rows");
  list.style.height = `${order.length * ROW}px`;
  const first = Math.max(0, Math.floor(box.scrollTop / ROW) - BEYOND);
  const last = Math.min(order.length, Math.ceil((box.scrollTop + box.clientHeight) / ROW) + BEYOND);
  const ids = box.clientHeight ? order.slice(first, last) : [];
  const kept = new Set(ids);
  for (const [id, row] of rows) {
    if (kept.has(id)) continue;
    row.remove();
    rows.delete(id);
  }
  ids.forEach((id, at) => {
    let row = rows.get(id);
    if (!row) {
      row = made(id);
      rows.set(id, row);
    }
    // In the order of the list, for the keyboard and readers.
    if (list.children[at] !== row) list.insertBefore(row, list.children[at] ?? null);
    place(row, id, first + at);
  });
  const seen = shown && store.things.has(shown) ? [shown, ...ids.filter((id) => id !== shown)] : ids;
  const now = isAway ? [] : seen.filter((id) => id.startsWith("dtw:"));
  const wish = now.join("\n");
  if (wish !== wanted) {
    wanted = wish;
    want(now);
  }
}

function made(id) {
  return element(
    "div",
    { role: "listitem", class: "row" },
    element(
      "button",
      { type: "button", "data-id": id, onclick: () => (location.hash = encodeURIComponent(id)) },
      element("i", { class: "dot" }),
      element("bdi", { class: "title", dir: "auto" }),
      element("bdi", { class: "glance" }),
    ),
  );
}

function place(row, id, at) {
  const summary = store.things.get(id);
  if (!summary) return;
  const [button] = row.children;
  const [dot, title, glance] = button.children;
  row.style.transform = `translateY(${at * ROW}px)`;
  put(row, "aria-setsize", order.length);
  put(row, "aria-posinset", at + 1);
  put(button, "aria-current", id === shown);
  dot.classList.toggle("on", summary.online);
  put(dot, "title", summary.online ? "online" : "offline");
  if (title.textContent !== summary.title) title.textContent = summary.title;
  const text = glanced(id, summary);
  if (glance.textContent !== text) glance.textContent = text;
}

function put(target, name, value) {
  if (target.getAttribute(name) !== String(value)) target.setAttribute(name, String(value));
}

function glanced(id, summary) {
  const parts = [];
  for (const [name, unit] of summary.glance) {
    const known = store.values.get(key(id, name));
    if (!known || PRESENCE.has(name) || (typeof known.value === "object" && known.value !== null)) continue;
    const text = unitText(unit);
    parts.push(`${spoken(known.value).slice(0, 60)}${text ? ` ${text}` : ""}`);
    if (parts.length === MAX_GLANCES) break;
  }
  return parts.join(" · ") || (summary.service ? "built-in service" : id);
}

export function begin() {
  byId("search").addEventListener("input", () => {
    scroller().scrollTop = 0;
    sort();
  });
  scroller().addEventListener("scroll", drawSoon, { passive: true });
  scroller().addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const id = document.activeElement?.dataset?.id;
    if (!step || !id) return;
    event.preventDefault();
    rows.get(order[order.indexOf(id) + step])?.firstChild.focus();
  });
  new ResizeObserver(drawSoon).observe(scroller());
  let away = 0;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(away);
    if (document.hidden) away = setTimeout(() => leave(true), HIDDEN_MS);
    else leave(false);
  });
  on("things", sort);
  on("listed", sort);
  on("values", (fresh) => fresh.some(([id]) => rows.has(id)) && drawSoon());
}

// A tab that is not seen is owed nothing.
function leave(isGone) {
  if (isAway === isGone) return;
  isAway = isGone;
  draw();
}
