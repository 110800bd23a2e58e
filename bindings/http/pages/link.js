// A tab's connection to the hub: in a shared worker, or, where a browser has none, in one tab that leads.
//
// Only a tab that is seen leads: browsers put hidden ones to sleep. Who leads is a lock, so that exactly one does and
// the next takes over by itself.

import { Hub } from "./hub.js";

const VERSION = "skep-1"; // Tabs of another version have a hub of their own.
const MARK = "skep-was-here"; // Whether a login by cookie may stand; the cookies themselves are out of reach.

const own = crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;
const asked = new Map(); // number → function that takes the answer
let take = () => {};
let send = () => {};
let wants = [];
let count = 0;

export const was = () => localStorage.getItem(MARK) !== null;

export function remember(isIn) {
  if (isIn) localStorage.setItem(MARK, "1");
  else localStorage.removeItem(MARK);
}

export async function join(handler) {
  take = (message) => {
    if (message.type !== "refreshed") return handler(message);
    asked.get(message.ask)?.(message.ok);
    asked.delete(message.ask);
  };
  // Held for as long as this tab lives: the hub waits for it to learn that the tab is gone.
  await new Promise((held) => {
    if (!navigator.locks) return held();
    navigator.locks.request(`skep-tab-${own}`, () => new Promise(() => held())).catch(held);
  });
  if (!byWorker()) byLeader();
  window.addEventListener("pagehide", () => send({ type: "bye" }));
  window.addEventListener("pageshow", (event) => event.persisted && hello());
}

export function want(things) {
  wants = things;
  send({ type: "want", things });
}

export const loggedIn = (expiresIn) => send({ type: "login", expiresIn });
export const loggedOut = () => send({ type: "logout" });

// Continue the login; the hub does so once for all tabs. False if it has ended.
export function refresh() {
  return new Promise((done) => {
    const ask = (count += 1);
    asked.set(ask, done);
    send({ type: "refresh", ask });
    setTimeout(() => asked.delete(ask) && done(false), 10_000);
  });
}

function hello() {
  send({ type: "hello", was: was() });
  if (wants.length) send({ type: "want", things: wants });
}

function byWorker() {
  if (typeof SharedWorker === "undefined") return false;
  try {
    const worker = new SharedWorker(new URL("./worker.js", import.meta.url), { type: "module", name: VERSION });
    let isThere = false;
    worker.port.addEventListener("message", ({ data }) => {
      isThere = true;
      take(data);
    });
    // A browser that has shared workers, but none that import.
    worker.addEventListener("error", () => isThere || byLeader());
    worker.port.start();
    send = (body) => worker.port.postMessage({ from: own, body });
    hello();
    return true;
  } catch {
    return false;
  }
}

function byLeader() {
  const channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel(VERSION);
  let hub = null;
  let resign = () => {};
  const away = (body) => channel?.postMessage({ from: own, body });
  const here = (body) => hub.take(own, (message) => queueMicrotask(() => take(message)), body);
  send = away;

  channel?.addEventListener("message", ({ data }) => {
    if (data.to === own) take(data.body);
    else if (data.leads && !hub) hello();
    else if (data.from && hub) hub.take(data.from, (body) => channel.postMessage({ to: data.from, body }), data.body);
  });

  const lead = () => {
    hub = new Hub();
    send = here;
    hello();
    channel?.postMessage({ leads: true });
  };
  if (!navigator.locks || !channel) return lead(); // each tab for itself

  let isAsking = false;
  const stand = () => {
    if (isAsking || document.hidden) return;
    isAsking = true;
    const control = new AbortController();
    resign = () => control.abort();
    navigator.locks
      .request(`${VERSION}-leads`, { signal: control.signal }, () => {
        lead();
        return new Promise((done) => (resign = done));
      })
      .catch(() => {})
      .finally(() => {
        isAsking = false;
        hub?.rest();
        hub = null;
        send = away;
        if (!document.hidden) stand();
      });
  };
  let hidden = 0;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hidden);
    if (document.hidden) hidden = setTimeout(() => resign(), 1_000);
    else {
      stand();
      if (!hub) hello();
    }
  });
  // A page that is kept for going back must not lead.
  window.addEventListener("pagehide", () => resign());
  window.addEventListener("pageshow", (event) => event.persisted && stand());
  hello();
  stand();
}
