// Asking for actions, and how each request goes on.

import { Refusal, api, call, path } from "./api.js";
import { confirmed } from "./dialogs.js";
import { element, foreign, table } from "./dom.js";
import { inputs } from "./forms.js";
import { isService } from "./list.js";
import { on, store } from "./store.js";
import { bounded, spoken, titled } from "./text.js";

const MAX_STATUSES = 100;
const FINAL = new Set(["completed", "failed", "cancelled"]);
const ORDER = ["pending", "delivered", "waiting", "running", "applied", "completed", "failed", "cancelled"];
// Verbs after which something is gone. A Thing Description has no word for that, so that names have to tell.
const DESTRUCTIVE =
  /^(remove|delete|erase|purge|wipe|clear|drop|format|reset|factory|revoke|disable|end|reject|forget|retire|rotate|restore|destroy|uninstall|discard)(?![a-z])/;

const outcomes = new Map(); // request id → function that shows a status
const statuses = new Map(); // request id → its latest status; it may come before the answer that names the request
const requested = new Map(); // "thing id\nname" → request id of the last one, for a view that is drawn again

export const isDestructive = (name, definition) => definition?.safe !== true && DESTRUCTIVE.test(name);

export function forgetRequests() {
  for (const kept of [outcomes, statuses, requested]) kept.clear();
}

export function begin() {
  on("statuses", (found) => found.forEach(heard));
  // While nobody was told, statuses may have come.
  on("gap", async () => {
    for (const id of [...outcomes.keys()].slice(0, MAX_STATUSES)) {
      try {
        const request = await api("GET", `requests/${path(id)}`);
        heard({ ...request, requestID: id });
      } catch (error) {
        if (!(error instanceof Refusal)) throw error;
      }
    }
  });
}

export function actionCard(id, name, definition) {
  const asked = inputs(definition.input);
  const outcome = element("div", { class: "outcome", role: "status" });
  const mayHurt = isDestructive(name, definition);
  const button = element("button", { class: mayHurt ? "danger" : "primary", type: "submit" }, foreign(titled(definition, name)));
  const form = element("form", {}, ...asked.controls, button);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      const input = asked.read();
      if (mayHurt && !(await agreed(id, name, definition, input))) return;
      outcome.replaceChildren(element("span", { class: "chip busy", text: "sending …" }));
      if (isService(id)) {
        const output = await call(id, name, input);
        for (const control of form.querySelectorAll("input[type=password]")) control.value = "";
        report(outcome, { state: "completed", output });
      } else {
        const status = await api("POST", `things/${path(id)}/actions/${path(name)}`, input);
        requested.set(`${id}\n${name}`, status.requestID);
        outcome.dataset.request = "";
        outcomes.set(status.requestID, (one) => report(outcome, one));
        heard(status);
      }
    } catch (error) {
      outcome.replaceChildren(element("span", { class: "chip bad", text: "refused" }), foreign(error.message));
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
    definition.description ? element("p", { class: "quiet small" }, foreign(bounded(definition.description, 600))) : null,
    form,
    outcome,
  );
}

function agreed(id, name, definition, input) {
  const target = store.things.get(id)?.title ?? id;
  const given = Object.entries(input && typeof input === "object" ? input : input === undefined ? {} : { input });
  return confirmed({
    title: `${titled(definition, name)}?`,
    text: `On “${target}” (${id}).`,
    losses: given.map(([member, value]) => `${member}: ${/passw|secret|token$/i.test(member) ? "•••" : spoken(value)}`),
    action: titled(definition, name),
  });
}

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
  const text = problem && status.state === "completed" ? "refused by the device" : status.state;
  const parts = [element("span", { class: `chip ${kind}`, text })];
  if (typeof status.progress === "number" && !FINAL.has(status.state)) {
    parts.push(element("progress", { max: 100, value: status.progress }));
  }
  if (problem) parts.push(foreign(problem));
  else if (status.reason) parts.push(foreign(status.reason, { class: "quiet" }));
  if (status.output !== undefined && status.output !== null) parts.push(output(status.output));
  outcome.replaceChildren(...parts);
  if (FINAL.has(status.state)) outcomes.delete(status.requestID);
}

// What came back: rows as a table, one object as its members, all else as text.
function output(value) {
  const rows = Array.isArray(value) ? value : Array.isArray(value?.items) ? value.items : null;
  const isRecord = (one) => one !== null && typeof one === "object" && !Array.isArray(one);
  if (rows?.length && rows.every(isRecord)) {
    const names = [...new Set(rows.flatMap((row) => Object.keys(row)))].slice(0, 12);
    return table(names.map((name) => [name, (row) => (row[name] === undefined || row[name] === null ? "" : spoken(row[name]))]), rows.slice(0, 500));
  }
  if (isRecord(value) && Object.keys(value).length <= 20) {
    const members = Object.entries(value).flatMap(([name, one]) => [element("dt", {}, foreign(name)), element("dd", {}, foreign(spoken(one), { class: "mono" }))]);
    return element("dl", { class: "members" }, ...members);
  }
  return element("code", { dir: "auto", text: typeof value === "string" ? value : JSON.stringify(value) });
}
