// A small chart of the latest values: lines for measurements, steps for what holds until it is set anew.

import { drawn, element } from "./dom.js";
import { clock, span, spoken } from "./text.js";

const WIDTH = 240;
const HEIGHT = 46;

// Whether the value holds until the next: switches and set points do, measurements do not.
export function isStepped(definition) {
  return definition.type === "boolean" || Array.isArray(definition.enum) || definition.readOnly !== true;
}

export const isDrawable = (definition) => ["number", "integer", "boolean"].includes(definition.type);

export const plotted = (value) =>
  typeof value === "boolean" ? Number(value) : typeof value === "number" && Number.isFinite(value) ? value : null;

export class Chart {
  constructor(definition, unit) {
    this.isStepped = isStepped(definition);
    this.isBoolean = definition.type === "boolean";
    this.unit = unit;
    this.svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    this.area = drawn("path", { class: "area" });
    this.line = drawn("path", { class: "line" });
    this.svg.append(this.area, this.line);
    this.low = element("span");
    this.high = element("span");
    this.from = element("time");
    this.to = element("span");
    this.node = element(
      "figure",
      { class: "chart", hidden: true },
      element("div", { class: "scale" }, this.high, this.low),
      this.svg,
      element("figcaption", {}, this.from, this.to),
    );
  }

  // Points are [time in ms, number], oldest first.
  draw(points) {
    this.node.hidden = points.length < 2;
    if (points.length < 2) return;
    const from = points[0][0];
    const last = points[points.length - 1][0];
    const to = this.isStepped ? Math.max(last, Date.now()) : last;
    let low = Infinity;
    let high = -Infinity;
    for (const [, number] of points) {
      low = Math.min(low, number);
      high = Math.max(high, number);
    }
    if (this.isBoolean) [low, high] = [0, 1];
    const x = (time) => (to > from ? ((time - from) / (to - from)) * WIDTH : 0).toFixed(1);
    const y = (number) => (high > low ? HEIGHT - 4 - ((number - low) / (high - low)) * (HEIGHT - 8) : HEIGHT / 2).toFixed(1);
    let line = "";
    points.forEach(([time, number], at) => {
      if (!at) line = `M${x(time)} ${y(number)}`;
      else line += this.isStepped ? `H${x(time)}V${y(number)}` : `L${x(time)} ${y(number)}`;
    });
    if (this.isStepped) line += `H${WIDTH}`;
    this.line.setAttribute("d", line);
    this.area.setAttribute("d", `${line}V${HEIGHT}H0Z`);
    const named = (number) => (this.isBoolean ? spoken(number === 1) : spoken(number));
    this.high.textContent = named(high);
    this.low.textContent = high > low ? named(low) : "";
    this.from.textContent = clock(from);
    this.to.textContent = span(from, to);
    this.node.setAttribute("role", "img");
    this.node.setAttribute("aria-label", `${points.length} values in ${span(from, to)}, from ${named(low)} to ${named(high)} ${this.unit}`);
  }
}
