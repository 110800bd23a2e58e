// Making elements. All text from Things is hostile until shown otherwise, so it is only ever set as text.

export const byId = (id) => document.getElementById(id);

export function element(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") made.className = value;
    else if (name === "text") made.textContent = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Text of others stands alone: its marks of direction do not reach what stands around it.
export const foreign = (text, options = {}) => element("bdi", { ...options, text });

export function drawn(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  return made;
}

export const section = (title, kind, children) =>
  element("section", {}, element("h2", { text: title }), element("div", { class: kind }, ...children));

// Columns are [title, row → text or element].
export function table(columns, rows, empty = "None.") {
  if (!rows.length) return element("p", { class: "quiet", text: empty });
  return element(
    "div",
    { class: "sheet card", tabindex: "0", role: "region", "aria-label": "Table" },
    element(
      "table",
      {},
      element("thead", {}, element("tr", {}, ...columns.map(([title]) => element("th", { scope: "col", text: title })))),
      element(
        "tbody",
        {},
        ...rows.map((row) =>
          element(
            "tr",
            {},
            ...columns.map(([, shown]) => {
              const content = shown(row);
              return element("td", {}, content instanceof Node ? content : foreign(content ?? ""));
            }),
          ),
        ),
      ),
    ),
  );
}
