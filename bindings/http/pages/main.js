// The live page: what comes from the hub goes to the parts of the page, and the address says which of them is shown.

import * as accounts from "./accounts.js";
import * as actions from "./actions.js";
import * as audit from "./audit.js";
import { byId, element } from "./dom.js";
import { join } from "./link.js";
import * as list from "./list.js";
import * as services from "./services.js";
import * as session from "./session.js";
import { forget, store, tell, tookEvents, tookThings, tookValues } from "./store.js";
import * as thing from "./thing.js";

const VIEWS = { "/services": services.show, "/accounts": accounts.show, "/audit": audit.show };
let opened = null; // the address that is shown
let shown = 0; // counts what was shown: an answer that comes late draws nothing over what came after it
let lastAccount = null;

function came(message) {
  switch (message.type) {
    case "in":
      // The same person again goes on where the login ended, also within a form.
      if (lastAccount !== message.profile.clientID) empty();
      lastAccount = message.profile.clientID;
      store.profile = message.profile;
      session.welcome(message.profile);
      places();
      return choose();
    case "out":
      if (!message.why) {
        empty();
        lastAccount = null;
      }
      store.profile = null;
      return session.farewell(message.why);
    case "live":
      return session.showLive(message.on);
    case "things":
      tookThings(message.rows);
      return choose();
    case "listed":
      store.isListed = true;
      tell("listed");
      tell("changed", [...store.things.keys()]);
      return choose();
    case "changed":
      return tell("changed", message.ids);
    case "values":
      return tookValues(message.values);
    case "events":
      return tookEvents(message.events);
    case "statuses":
      return tell("statuses", message.statuses);
    case "gap":
    case "again":
      return tell("gap");
  }
}

function empty() {
  forget();
  actions.forgetRequests();
  thing.close();
  list.mark(null);
  opened = null;
  shown += 1;
  byId("thing").replaceChildren();
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
  tell("things", []);
}

// ---------------------------------------------------------------- what is shown

function choose() {
  if (!store.profile) return;
  let id = "";
  try {
    id = decodeURIComponent(location.hash.slice(1));
  } catch {
    // Not an address of ours.
  }
  const view = VIEWS[id.split("/").slice(0, 2).join("/")];
  const target = view || store.things.has(id) ? id : "";
  if (target === opened && (target || byId("thing").firstChild)) return target || welcome();
  opened = target;
  shown += 1;
  byId("rooms").classList.toggle("open", target !== "");
  for (const link of byId("places").querySelectorAll("a")) {
    link.toggleAttribute("aria-current", link.getAttribute("href") === `#${target}`);
  }
  list.mark(view ? null : target || null);
  if (target && !view) return thing.show(target);
  thing.close();
  if (view) return view(drawing(shown), id.split("/").slice(2).join("/"));
  welcome();
}

function drawing(mine) {
  return (...nodes) => {
    if (mine === shown) byId("thing").replaceChildren(...nodes);
  };
}

function welcome() {
  const count = [...store.things.values()].filter((row) => !row.service).length;
  const title = count ? "Choose a Thing" : store.isListed ? "It is quiet here" : "Looking around …";
  if (byId("thing").querySelector(".welcome h1")?.textContent === title) return;
  const text = count
    ? "Its values arrive as they are published."
    : "Things appear as soon as an agent publishes their description.";
  byId("thing").replaceChildren(
    element("div", { class: "welcome card" }, element("h1", { text: title }), element("p", { class: "quiet", text })),
  );
}

// What is not a Thing of somebody's has a place of its own.
function places() {
  const found = [["#/services", "Built-in services"]];
  if (store.profile.role === "admin") found.unshift(["#/accounts", "Accounts"], ["#/audit", "Audit log"]);
  byId("places").replaceChildren(...found.map(([href, text]) => element("a", { href, text })));
}

window.addEventListener("hashchange", choose);
window.addEventListener("reshow", () => {
  opened = null;
  choose();
});
list.begin();
services.begin();
thing.begin();
actions.begin();
session.begin();
join(came);
