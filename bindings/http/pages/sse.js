// One event stream, read by fetch: unlike EventSource it tells the status of a refusal and takes headers.

import { refusalOf } from "./base.js";

const SILENCE_MS = 45_000; // The runtime pings every 15 s; a connection that says nothing for so long is dead.
const MAX_EVENT_CHARS = 8_000_000;

// Reads until the stream ends (returns), is refused (throws Refusal), breaks or is aborted (throws).
export async function follow(target, { headers = {}, control, opened, came }) {
  let watch = 0;
  const alive = () => {
    clearTimeout(watch);
    watch = setTimeout(() => control.abort(new Error("silent")), SILENCE_MS);
  };
  alive();
  try {
    const reply = await fetch(target, {
      headers: { accept: "text/event-stream", ...headers },
      cache: "no-store",
      credentials: "same-origin",
      signal: control.signal,
    });
    if (!reply.ok) throw await refusalOf(reply);
    opened();
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      alive();
      rest = split(rest + value, came);
      if (rest.length > MAX_EVENT_CHARS) throw new Error("an event without an end");
    }
  } finally {
    clearTimeout(watch);
  }
}

// Hands on every whole event of the text; what is left begins the next one.
export function split(text, came) {
  let from = 0;
  for (;;) {
    const end = text.indexOf("\n\n", from);
    if (end < 0) return text.slice(from);
    const event = parsed(text.slice(from, end));
    if (event) came(event);
    from = end + 2;
  }
}

function parsed(block) {
  const event = { type: "message", id: "", data: "" };
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue;
    const value = line.charCodeAt(colon + 1) === 32 ? line.slice(colon + 2) : line.slice(colon + 1);
    const name = line.slice(0, colon);
    if (name === "data") event.data = event.data ? `${event.data}\n${value}` : value;
    else if (name === "event") event.type = value;
    else if (name === "id") event.id = value;
  }
  return event.data ? event : null;
}
