// How values, units and times are written for people.

export const PRESENCE = new Set(["online", "lastSeen", "skep:online", "skep:lastSeen"]);

const MAX_SHOWN = 2_000;

export const key = (thing, name) => `${thing}\n${name}`;

// Marks that embed and override direction could make a text read as another one; scripts do without them.
const TURNING = /[\u202a-\u202e\u2066-\u2069]/g;

export function bounded(text, most) {
  const whole = String(text ?? "").slice(0, most * 2).replace(TURNING, "");
  return whole.length > most ? `${whole.slice(0, most - 1)}…` : whole;
}

export const titled = (definition, name) =>
  bounded(typeof definition?.title === "string" && definition.title ? definition.title : name, 200);

export function spoken(value) {
  if (value === undefined) return "–";
  if (typeof value === "number") {
    if (Number.isInteger(value)) return value.toLocaleString();
    return value.toLocaleString(undefined, { maximumSignificantDigits: 6 });
  }
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "string") return bounded(value, MAX_SHOWN);
  if (value === null) return "none";
  return bounded(JSON.stringify(value), MAX_SHOWN);
}

// By the names of OM 2, UCUM and what people write; all lower case, without spaces and underscores.
const UNITS = {
  degc: "°C", cel: "°C", celsius: "°C", degreecelsius: "°C", degf: "°F", fahrenheit: "°F", degreefahrenheit: "°F",
  kelvin: "K", percent: "%", fraction: "", one: "", deg: "°", degree: "°", radian: "rad",
  metre: "m", meter: "m", millimetre: "mm", millimeter: "mm", centimetre: "cm", kilometre: "km", squaremetre: "m²",
  cubicmetre: "m³", litre: "l", liter: "l", gram: "g", kilogram: "kg", tonne: "t",
  second: "s", "second-time": "s", minute: "min", "minute-time": "min", hour: "h", day: "d", millisecond: "ms",
  hertz: "Hz", "reciprocalsecond-time": "Hz", rpm: "rpm", revolutionperminute: "rpm",
  volt: "V", ampere: "A", milliampere: "mA", watt: "W", kilowatt: "kW", watthour: "Wh", kilowatthour: "kWh", joule: "J",
  ohm: "Ω", farad: "F", var: "var", voltampere: "VA", pascal: "Pa", hectopascal: "hPa", kilopascal: "kPa", bar: "bar",
  lux: "lx", lumen: "lm", candela: "cd", decibel: "dB", newton: "N", newtonmetre: "N·m",
  metrepersecond: "m/s", "metrepersecond-time": "m/s", kilometreperhour: "km/h", cubicmetreperhour: "m³/h", "m3/h": "m³/h",
  litreperminute: "l/min", partspermillion: "ppm", microgrampercubicmetre: "µg/m³", "ug/m3": "µg/m³", m3: "m³", m2: "m²",
};

export function unitText(unit) {
  if (typeof unit !== "string") return "";
  const bare = unit.replace(/^(?:https?:\/\/.*[/#]|[a-z0-9]+:)/i, "");
  return UNITS[bare.toLowerCase().replace(/[\s_]/g, "")] ?? bounded(bare.replaceAll("_", " "), 24);
}

export const unitOf = (definition) => unitText(definition?.unit);

export function clock(time) {
  const at = new Date(time);
  if (Number.isNaN(at.getTime())) return bounded(time, 40);
  const today = new Date().toDateString() === at.toDateString();
  return today ? at.toLocaleTimeString() : at.toLocaleString();
}

export function span(from, to) {
  const seconds = Math.max(0, Math.round((to - from) / 1_000));
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7_200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.round(seconds / 3_600)} h`;
  return `${Math.round(seconds / 86_400)} days`;
}
