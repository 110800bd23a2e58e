// The shared worker: one hub for all tabs of this browser.

import { Hub } from "./hub.js";

const hub = new Hub();

self.addEventListener("connect", ({ ports: [port] }) => {
  const post = (message) => port.postMessage(message);
  port.addEventListener("message", ({ data }) => hub.take(data.from, post, data.body));
  port.start();
});
