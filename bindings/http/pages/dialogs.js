// Questions before something is done, and forms that stand over the page.

import { element, foreign } from "./dom.js";

// True if the person agrees. `losses` says what goes; `name` has to be typed where nothing brings it back.
export function confirmed({ title, text = "", losses = [], action = "Do it", name = null, isDangerous = true }) {
  const typed = element("input", { type: "text", autocomplete: "off", spellcheck: "false", autocapitalize: "none" });
  const body = [
    text ? element("p", {}, foreign(text)) : null,
    losses.length ? element("ul", { class: "losses" }, ...losses.map((one) => element("li", {}, foreign(one)))) : null,
    name === null ? null : element("label", {}, element("span", {}, "Type ", foreign(name), " to go on"), typed),
  ];
  return open({
    title,
    body,
    action,
    isDangerous,
    check: () => (name === null || typed.value.trim() === name ? "" : "This is not the name."),
    done: () => true,
  }).then((answer) => answer === true);
}

// `done` is called with the form when it is sent; what it throws is shown, what it gives is the answer. null: left.
export function open({ title, body, action, isDangerous = false, check = () => "", done }) {
  return new Promise((answered) => {
    const refusal = element("p", { class: "refusal", role: "alert" });
    const send = element("button", { type: "submit", class: isDangerous ? "danger" : "primary", text: action });
    const cancel = element("button", { type: "button", text: "Cancel", onclick: () => dialog.close() });
    const form = element(
      "form",
      {},
      element("h2", {}, foreign(title)),
      ...body,
      refusal,
      element("div", { class: "buttons" }, cancel, send),
    );
    const dialog = element("dialog", { class: "card" }, form);
    let answer = null;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      refusal.textContent = check(form);
      if (refusal.textContent) return;
      send.disabled = true;
      try {
        answer = await done(form);
        dialog.close();
      } catch (error) {
        refusal.textContent = error.message;
      } finally {
        send.disabled = false;
      }
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      answered(answer);
    });
    document.body.append(dialog);
    dialog.showModal();
    if (isDangerous) (form.querySelector("input") ?? cancel).focus();
  });
}

// Something that is shown once and never again.
export function secret({ title, text, value, lines = [] }) {
  const shown = element("textarea", { class: "mono", readonly: true, rows: "4", "aria-label": title });
  shown.value = value;
  const copy = element("button", {
    type: "button",
    text: "Copy",
    onclick: async () => {
      shown.select();
      await navigator.clipboard?.writeText(value).catch(() => {});
      copy.textContent = "Copied";
    },
  });
  return open({
    title,
    body: [
      element("p", { class: "quiet", text }),
      shown,
      copy,
      ...lines.map(([what, line]) => element("div", {}, element("p", { class: "small quiet", text: what }), element("pre", { class: "mono", text: line }))),
    ],
    action: "I have kept it",
    done: () => true,
  });
}
