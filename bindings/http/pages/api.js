// Calls of the runtime by this tab. An ended access token is renewed by the hub, once for all tabs.

import { Refusal, at, path, refusalOf } from "./base.js";
import { confirmed } from "./dialogs.js";
import { refresh } from "./link.js";

const CONFIRMATION = "x-confirmation";
const WAIT_MS = 90_000;

export { Refusal, path };

export async function api(method, target, body, headers = {}) {
  const options = { method, headers: { accept: "application/json", ...headers }, credentials: "same-origin" };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["content-type"] = "application/json";
  }
  let reply = await sent(target, options);
  if (reply.status === 401 && !target.startsWith("authn/") && (await refresh())) reply = await sent(target, options);
  if (reply.ok) {
    const text = await reply.text();
    return text ? JSON.parse(text) : null;
  }
  const refusal = await refusalOf(reply);
  const token = refusal.problem.confirmation;
  if (reply.status === 428 && token && !headers[CONFIRMATION]) {
    const agreed = await confirmed({ title: "This has to be confirmed", text: "Do it?", isDangerous: false });
    if (agreed) return api(method, target, body, { ...headers, [CONFIRMATION]: token });
  }
  throw refusal;
}

export const call = (service, method, input) => api("POST", `rpc/${path(service)}/${path(method)}`, input);

async function sent(target, options) {
  try {
    return await fetch(at(target), { ...options, signal: AbortSignal.timeout(WAIT_MS) });
  } catch {
    throw new Refusal(0, { detail: "The runtime does not answer." });
  }
}
