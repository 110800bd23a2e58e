// Controls for data schemas, and reading them back.

import { element, foreign } from "./dom.js";
import { spoken, titled, unitOf } from "./text.js";

const SECRET = /passw|secret|credential|^pin$|private_?key|token$/i;
const MAX_DEPTH = 3;

export const isSecret = (name, schema) =>
  schema?.format === "password" || (schema?.type === "string" && SECRET.test(name) && !/id$/i.test(name));

// What may also be null is a control of its other type that may stay empty.
function plain(schema) {
  const others = (schema.anyOf ?? schema.oneOf)?.filter((one) => one?.type !== "null");
  if (others?.length !== 1 || schema.type) return schema;
  const { anyOf, oneOf, default: begin, ...rest } = schema;
  return { ...rest, ...others[0], ...(begin === null || begin === undefined ? {} : { default: begin }) };
}

// One control: {control, read, show}; `read` throws what is wrong with the text, `show` puts in a value.
export function field(schema, now, name = "") {
  const one = made(schema, now, name);
  return { ...one, show: (value) => (one.control.value = made(schema, value, name).control.value) };
}

function made(schema, now, name) {
  if (Array.isArray(schema.enum)) {
    const control = element("select", {}, ...schema.enum.map((one, at) => element("option", { value: at, text: spoken(one) })));
    const at = schema.enum.findIndex((one) => JSON.stringify(one) === JSON.stringify(now));
    if (at >= 0) control.value = String(at);
    return { control, read: () => schema.enum[Number(control.value)] };
  }
  if (schema.type === "boolean") {
    const control = element("input", { type: "checkbox" });
    control.checked = (now ?? schema.default) === true;
    return { control, read: () => control.checked };
  }
  if (schema.type === "integer" || schema.type === "number") {
    const step = schema.multipleOf ?? (schema.type === "integer" ? 1 : "any");
    const control = element("input", { type: "number", min: schema.minimum, max: schema.maximum, step, required: true });
    control.value = now ?? schema.default ?? "";
    return { control, read: () => Number(control.value) };
  }
  if (schema.type === "string") {
    const type = isSecret(name, schema) ? "password" : "text";
    const autocomplete = type === "password" ? "new-password" : "off";
    const control = element("input", { type, autocomplete, maxlength: schema.maxLength, minlength: schema.minLength });
    control.value = now ?? schema.default ?? "";
    return { control, read: () => control.value };
  }
  const control = element("textarea", { class: "mono", spellcheck: "false", placeholder: "JSON" });
  const begin = now ?? schema.default;
  control.value = begin === undefined ? "" : JSON.stringify(begin, null, 1);
  return {
    control,
    read: () => {
      if (!control.value.trim()) return undefined;
      try {
        return JSON.parse(control.value);
      } catch {
        throw new Error("This is not JSON: texts stand in quotes.");
      }
    },
  };
}

const labelOf = (name, schema, isRequired) => {
  const unit = unitOf(schema);
  const rest = `${unit ? ` (${unit})` : ""}${isRequired || schema.type === "boolean" ? "" : " – optional"}`;
  return element("span", {}, foreign(titled(schema, name)), rest);
};

function labelled(name, schema, input, isRequired) {
  const label = labelOf(name, schema, isRequired);
  if (schema.type === "boolean") return element("label", { class: "check" }, input.control, label);
  return element("label", {}, label, input.control);
}

const isFilled = (control) => control.type === "checkbox" || control.value !== "";

// Controls for a whole input; objects become a control a member.
export function inputs(schema, depth = 0) {
  if (!schema || typeof schema !== "object") return { controls: [], read: () => undefined };
  const members = Object.entries(schema.properties ?? {});
  if (schema.type !== "object" || !members.length || depth === MAX_DEPTH) {
    const input = field(schema, undefined, "");
    return { controls: [labelled("Input", schema, input, true)], read: input.read };
  }
  const required = new Set(schema.required ?? []);
  const made = members.map(([name, given]) => {
    const one = plain(given);
    const isRequired = required.has(name);
    if (one.type === "object" && Object.keys(one.properties ?? {}).length && isRequired) {
      const inner = inputs(one, depth + 1);
      return { name, node: element("fieldset", {}, element("legend", {}, foreign(titled(one, name))), ...inner.controls), read: inner.read };
    }
    const input = field(one, undefined, name);
    if (!isRequired) {
      input.control.removeAttribute("required");
      if (input.control.tagName === "SELECT" && one.default === undefined) {
        input.control.prepend(element("option", { value: "", text: "–" }));
        input.control.value = "";
      }
    }
    const isGiven = () => isRequired || isFilled(input.control);
    return { name, node: labelled(name, one, input, isRequired), read: () => (isGiven() ? input.read() : undefined) };
  });
  return {
    controls: made.map(({ node }) => node),
    read: () => Object.fromEntries(made.map(({ name, read }) => [name, read()]).filter(([, value]) => value !== undefined)),
  };
}
