// The runtime's own services, in a place of their own.

import { element, foreign, section } from "./dom.js";
import { store } from "./store.js";

export function show(target) {
  const found = [...store.things].filter(([, row]) => row.service);
  const cards = found.map(([id, row]) =>
    element(
      "a",
      { class: "card place", href: `#${encodeURIComponent(id)}` },
      element("h3", {}, foreign(row.title)),
      element("code", { class: "quiet", text: id }),
    ),
  );
  target.replaceChildren(
    element(
      "header",
      {},
      element("button", { class: "link back", type: "button", text: "← All Things", onclick: () => (location.hash = "") }),
      element("h1", { text: "Built-in services" }),
      element("p", { class: "quiet", text: "What the runtime itself offers, as Things: for programs, and for what has no page yet." }),
    ),
    section("Services", "grid", cards),
  );
}
