// The runtime's own services, in a place of their own.

import { element, foreign, section } from "./dom.js";
import { on, store } from "./store.js";

let again = () => {}; // draws what is listed now, as long as this place is the one shown

// What is listed may come after the address was opened.
export function begin() {
  on("things", (rows) => {
    if (rows.some(([, row]) => row?.service)) again();
  });
}

export function show(draw) {
  again = () => show(draw);
  const found = [...store.things].filter(([, row]) => row.service);
  const cards = found.map(([id, row]) =>
    element(
      "a",
      { class: "card place", href: `#${encodeURIComponent(id)}` },
      element("h3", {}, foreign(row.title)),
      element("code", { class: "quiet", text: id }),
    ),
  );
  draw(
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
