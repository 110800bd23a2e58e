// What this tab knows, and who is told when it changes.

import { key } from "./text.js";

export const store = {
  profile: null,
  things: new Map(), // id → summary
  values: new Map(), // "id\nname" → {value, created}
  events: [], // newest first
  isListed: false,
};

const MAX_EVENTS = 60;
const MAX_VALUES = 20_000;
const listeners = new Map();

export function on(topic, listener) {
  listeners.set(topic, [...(listeners.get(topic) ?? []), listener]);
}

export function tell(topic, content) {
  for (const listener of listeners.get(topic) ?? []) listener(content);
}

export function forget() {
  store.things.clear();
  store.values.clear();
  store.events.length = 0;
  store.isListed = false;
}

export function tookThings(rows) {
  for (const [id, row] of rows) {
    if (row) store.things.set(id, row);
    else store.things.delete(id);
  }
  tell("things", rows);
}

// Values wait for the next frame: what came twice in between is drawn once.
const waiting = new Map();

export function tookValues(values) {
  if (!waiting.size) requestAnimationFrame(drawWaiting);
  for (const one of values) waiting.set(key(one[0], one[1]), one);
}

function drawWaiting() {
  const fresh = [...waiting.values()];
  waiting.clear();
  for (const [thing, name, value, created] of fresh) store.values.set(key(thing, name), { value, created });
  for (const oldest of store.values.keys()) {
    if (store.values.size <= MAX_VALUES) break;
    store.values.delete(oldest);
  }
  tell("values", fresh);
}

export function tookEvents(events) {
  for (const one of events) store.events.unshift(one);
  store.events.length = Math.min(store.events.length, MAX_EVENTS);
  tell("events", events);
}
