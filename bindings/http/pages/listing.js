// What is known of all Things: a short summary each, so that tabs neither hold nor parse thousands of descriptions.

import { at, path, refusalOf } from "./base.js";
import { PRESENCE, bounded } from "./text.js";

const PAGE = 200;
const ONE_BY_ONE = 40; // More changed ones than this cost less as one listing.
const MAX_GLANCES = 6;

const RESERVED = new Set(["authn", "authz", "directory", "values", "history", "skep"]);
const PLAIN = new Set(["number", "integer", "boolean", "string"]);

export function summary(td) {
  const glance = [];
  for (const [name, definition] of Object.entries(td.properties ?? {})) {
    if (PRESENCE.has(name) || (definition.type && !PLAIN.has(definition.type))) continue;
    glance.push([name, typeof definition.unit === "string" ? definition.unit : ""]);
    if (glance.length === MAX_GLANCES) break;
  }
  return {
    title: bounded(typeof td.title === "string" ? td.title : td.id, 200),
    online: td["skep:online"] === true,
    service: td.id.startsWith("dtw:") && RESERVED.has(td.id.split(":")[1]),
    glance,
  };
}

export class Listing {
  // `tell` is given [[id, summary or null], …] of what differs from before.
  constructor(tell) {
    this.tell = tell;
    this.known = new Map();
    this.marks = new Map(); // id → its summary as text, to see what differs
  }

  clear() {
    this.known.clear();
    this.marks.clear();
  }

  // One pass over the directory, page by page.
  async readAll(signal) {
    const seen = new Set();
    let target = `things?limit=${PAGE}&forms=http`;
    while (target) {
      const reply = await fetch(at(target), { headers: { accept: "application/ld+json" }, signal });
      if (!reply.ok) throw await refusalOf(reply);
      const tds = (await reply.json()).filter((td) => typeof td.id === "string");
      for (const td of tds) seen.add(td.id);
      this.took(tds.map((td) => [td.id, summary(td)]));
      // The link is written from the root of the runtime.
      target = /<\/?([^>]+)>; rel="next"/.exec(reply.headers.get("link") ?? "")?.[1];
    }
    this.took([...this.known.keys()].filter((id) => !seen.has(id)).map((id) => [id, null]));
  }

  // What these Things are now; a few are read one by one.
  async readSome(ids, signal) {
    if (ids.length > ONE_BY_ONE) return this.readAll(signal);
    for (const id of ids) {
      const reply = await fetch(at(`things/${path(id)}?forms=http`), { signal });
      if (reply.ok) this.took([[id, summary({ ...(await reply.json()), id })]]);
      else if (reply.status === 404) this.took([[id, null]]);
      else throw await refusalOf(reply);
    }
  }

  // Presence comes as a property; an agent's Things come and go together.
  present(id, online) {
    const agent = id.slice(0, id.indexOf(":", 4) + 1);
    const changed = [];
    for (const [one, row] of this.known) {
      if (row.online !== online && one.startsWith(agent)) changed.push([one, { ...row, online }]);
    }
    if (changed.length) this.took(changed);
  }

  took(rows) {
    const changed = rows.filter(([id, row]) => {
      const mark = row && JSON.stringify(row);
      if ((this.marks.get(id) ?? null) === mark) return false;
      if (row) {
        this.known.set(id, row);
        this.marks.set(id, mark);
      } else {
        this.known.delete(id);
        this.marks.delete(id);
      }
      return true;
    });
    if (changed.length) this.tell(changed);
  }
}
