// The audit log as a table, newest first.

import { call } from "./api.js";
import { element, foreign, table } from "./dom.js";
import { bounded, clock } from "./text.js";

const ADMIN = "dtw:authn:admin";
const PAGE = 100;

export function show(draw) {
  return page(draw, null).catch((error) =>
    draw(element("p", { class: "refusal", role: "alert" }, foreign(error.message))),
  );
}

async function page(draw, before) {
  const after = before === null ? {} : { after: Math.max(0, before - PAGE - 1) };
  const { items } = await call(ADMIN, "readAudit", { ...after, limit: PAGE });
  const rows = (before === null ? items : items.filter((act) => act.seq < before)).reverse();
  const oldest = rows.length ? rows[rows.length - 1].seq : 0;
  const verdict = element("p", { class: "quiet", role: "status" });
  draw(
    element(
      "header",
      { class: "titled" },
      element("button", { class: "link back", type: "button", text: "← All Things", onclick: () => (location.hash = "") }),
      element("h1", { text: "Audit log" }),
      element("button", { type: "button", text: "Check that it is whole", onclick: () => verify(verdict) }),
    ),
    verdict,
    table(
      [
        ["When", (act) => clock(act.at)],
        ["Act", (act) => act.act],
        ["By", (act) => act.by],
        ["On", (act) => act.target],
        ["Outcome", (act) => (act.outcome && act.outcome !== "ok" ? element("span", { class: "chip bad", text: act.outcome }) : (act.outcome ?? ""))],
        ["From", (act) => act.source],
        ["Details", (act) => details(act.details)],
      ],
      rows,
    ),
    element(
      "div",
      { class: "buttons" },
      before === null ? null : element("button", { type: "button", text: "Newest", onclick: () => page(draw, null) }),
      oldest > 1 ? element("button", { type: "button", text: "Older", onclick: () => page(draw, oldest) }) : null,
    ),
  );
}

function details(found) {
  const text = Object.entries(found ?? {}).map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");
  return foreign(bounded(text, 300), { class: "small" });
}

async function verify(verdict) {
  verdict.textContent = "Looking …";
  try {
    const found = await call(ADMIN, "verifyAudit", {});
    verdict.textContent = found.intact
      ? `Whole: ${found.acts.toLocaleString()} acts, each chained to the one before.`
      : `Damaged in ${found.file}, line ${found.line}: ${found.reason}`;
  } catch (error) {
    verdict.textContent = error.message;
  }
}
