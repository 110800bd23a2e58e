// What all tabs of one browser share: the login, the list of Things, and the one stream that carries what is on screen.
//
// A browser opens six connections to a host. A stream in every tab would take them all, and an action could not leave.
// The hub runs in a shared worker, or in the tab that leads where there is none (`link.js`).

import { Refusal, at, refusalOf } from "./base.js";
import { Listing } from "./listing.js";
import { follow } from "./sse.js";

const FLUSH_MS = 100; // Nobody reads numbers that change faster.
const WANT_MS = 80;
const SHRINK_MS = 15_000;
const CHANGES_QUIET_MS = 300;
const CHANGES_AT_MOST_MS = 4_000;
const RESUME_WITHIN_MS = 60_000; // After a longer absence the latest values are worth more than all that was missed.
const MAX_RETRY_MS = 20_000;
const MAX_THINGS = 300; // Things in one stream; two kinds each, and the runtime allows 1,000 subscriptions.
const MAX_EVENTS_A_FLUSH = 200;
const MAX_SEEN = 1_000;
const NOTHING = "dtw:skep:requests"; // A Thing without events: a stream that names nothing would carry everything.

export class Hub {
  constructor() {
    this.clients = new Map(); // id → {post, wants}
    this.state = "new"; // → "in" or "out"
    this.listing = new Listing((rows) => this.tellAll({ type: "things", rows }));
    this.forget();
  }

  forget() {
    clearTimeout(this.refreshTimer);
    clearTimeout(this.retryTimer);
    clearTimeout(this.wantTimer);
    clearTimeout(this.shrinkTimer);
    clearTimeout(this.changeTimer);
    this.current?.abort();
    this.pending?.abort();
    this.reading?.abort();
    this.current = this.pending = this.reading = null;
    this.entering = null;
    this.epoch = (this.epoch ?? 0) + 1; // what was under way for a former login must not come into the next
    this.profile = null;
    this.isLive = false;
    this.streamed = new Set();
    this.values = new Map(); // "id\nname" → [id, name, value, created]
    this.fresh = new Map();
    this.events = [];
    this.statuses = [];
    this.seen = new Set();
    this.changed = new Set();
    this.lastRow = "";
    this.lastSeq = null;
    this.lastChange = null;
    this.failures = 0;
    this.lostAt = 0;
    this.listing.clear();
  }

  // ---------------------------------------------------------------- tabs

  take(id, post, message) {
    switch (message.type) {
      case "hello":
        this.clients.set(id, { post, wants: new Set() });
        this.watch(id);
        return this.greet(id, message.was);
      case "bye":
        return this.drop(id);
      case "want":
        return this.want(id, message.things);
      case "login":
        return this.enter(message.expiresIn);
      case "logout":
        return this.leave("");
      case "refresh":
        return void this.refresh().then((ok) => post({ type: "refreshed", ask: message.ask, ok }));
    }
  }

  // A tab that crashed says no good-bye, but lets go of its lock.
  watch(id) {
    navigator.locks?.request(`skep-tab-${id}`, () => this.drop(id)).catch(() => {});
  }

  drop(id) {
    if (!this.clients.delete(id)) return;
    if (this.clients.size) this.shrinkSoon();
    else this.rest();
  }

  // Nobody is looking.
  rest() {
    const { state, profile } = this;
    this.forget();
    this.profile = profile;
    this.state = state === "in" ? "new" : state;
  }

  greet(id, was) {
    if (this.state === "in") return this.welcome(this.clients.get(id));
    if (was) return this.enter();
    if (this.state === "new") this.state = "out";
    this.clients.get(id).post({ type: "out", why: "" });
  }

  welcome(client) {
    if (!client || !this.profile) return;
    client.post({ type: "in", profile: this.profile });
    client.post({ type: "things", rows: [...this.listing.known] });
    client.post({ type: "live", on: this.isLive });
  }

  tellAll(message) {
    for (const client of this.clients.values()) client.post(message);
  }

  // ---------------------------------------------------------------- the login

  enter(expiresIn) {
    if (expiresIn !== undefined) {
      this.forget(); // it may be another account
      this.state = "new";
      this.keepAlive(expiresIn);
    }
    const attempt = (this.entering ??= this.entered().finally(() => {
      if (this.entering === attempt) this.entering = null;
    }));
  }

  async entered() {
    const { epoch } = this;
    let profile = null;
    try {
      let reply = await fetch(at("authn/profile"));
      if (reply.status === 401 && (await this.refresh())) reply = await fetch(at("authn/profile"));
      if (epoch !== this.epoch) return;
      if (reply.status === 401) return this.leave("");
      if (!reply.ok) throw await refusalOf(reply);
      profile = await reply.json();
    } catch {
      if (epoch !== this.epoch) return;
      this.retryTimer = setTimeout(() => this.clients.size && this.enter(), this.pause());
      return;
    }
    if (epoch !== this.epoch) return;
    this.profile = profile;
    this.state = "in";
    this.failures = 0;
    for (const client of this.clients.values()) this.welcome(client);
    this.connect(false);
  }

  leave(why) {
    this.forget();
    this.state = "out";
    this.tellAll({ type: "out", why });
  }

  // One at a time: a refresh token that is used twice ends the login.
  refresh() {
    this.refreshing ??= this.refreshed().finally(() => (this.refreshing = null));
    return this.refreshing;
  }

  async refreshed() {
    for (let tries = 0; ; tries += 1) {
      try {
        const reply = await fetch(at("authn/refresh"), {
          method: "POST",
          headers: { "content-type": "application/json" },
          body: "{}",
        });
        if (reply.ok) {
          this.keepAlive((await reply.json()).expiresIn);
          return true;
        }
        if (reply.status < 500 && reply.status !== 429) {
          if (this.state === "in") this.leave("expired");
          return false;
        }
      } catch {
        // No answer: the runtime may be restarting.
      }
      if (tries === 2) return false;
      await new Promise((done) => setTimeout(done, 1_000));
    }
  }

  keepAlive(seconds) {
    clearTimeout(this.refreshTimer);
    this.refreshTimer = setTimeout(() => this.refresh(), Math.max(20, seconds - 60) * 1_000);
  }

  // ---------------------------------------------------------------- what is on screen

  want(id, things) {
    const client = this.clients.get(id);
    if (!client) return;
    const before = client.wants;
    client.wants = new Set(things);
    const known = [...this.values.values()].filter(([thing]) => client.wants.has(thing) && !before.has(thing));
    if (known.length) client.post({ type: "values", values: known });
    if (this.state !== "in") return;
    if ([...this.union()].some((thing) => !this.streamed.has(thing))) this.wantSoon(WANT_MS);
    else this.shrinkSoon();
  }

  wantSoon(afterMs) {
    clearTimeout(this.wantTimer);
    this.wantTimer = setTimeout(() => this.state === "in" && this.isLive && this.connect(false), afterMs);
  }

  shrinkSoon() {
    clearTimeout(this.shrinkTimer);
    this.shrinkTimer = setTimeout(() => {
      if (this.state === "in" && this.isLive && this.union().size < this.streamed.size) this.connect(false);
    }, SHRINK_MS);
  }

  union() {
    const all = new Set();
    for (const client of this.clients.values()) {
      for (const thing of client.wants) if (all.size < MAX_THINGS) all.add(thing);
    }
    return all;
  }

  // ---------------------------------------------------------------- the stream

  // A stream with another choice is opened before the former is let go, so that no event falls in between.
  connect(isResumed) {
    clearTimeout(this.retryTimer);
    this.pending?.abort();
    const control = (this.pending = new AbortController());
    const wanted = this.union();
    const query = new URLSearchParams();
    for (const thing of wanted.size ? wanted : [NOTHING]) query.append("thing", thing);
    if (wanted.size) query.append("kind", "property");
    query.append("kind", "event");
    query.append("latest", "true");
    query.append("inbox", this.lastSeq ?? "true");
    query.append("changes", this.lastChange ?? "true");
    const opened = () => {
      this.current?.abort();
      this.current = control;
      this.pending = null;
      this.streamed = wanted;
      for (const [key, [thing]] of this.values) if (!wanted.has(thing)) this.values.delete(key);
      if (!this.isLive) this.live(isResumed);
      // Somebody scrolled on meanwhile.
      if ([...this.union()].some((thing) => !wanted.has(thing))) this.wantSoon(WANT_MS);
    };
    const headers = isResumed && this.lastRow ? { "last-event-id": this.lastRow } : {};
    const came = (event) => control === this.current && this.came(event);
    follow(at(`stream?${query}`), { headers, control, opened, came }).then(
      () => this.lost(control, null),
      (error) => this.lost(control, error),
    );
  }

  live(isResumed) {
    const isAgain = this.lostAt > 0;
    this.isLive = true;
    this.failures = 0;
    this.tellAll({ type: "live", on: true });
    if (isAgain && !isResumed) this.tellAll({ type: "gap" });
    else if (isAgain) this.tellAll({ type: "again" });
    // The stream tells of changes from here on; of those in between only if it knew where it stood.
    if (!isAgain || this.lastChange === null) this.relist();
  }

  async lost(control, error) {
    if (control !== this.current && control !== this.pending) return;
    if (control === this.pending) this.pending = null;
    else this.current = null;
    if (this.state !== "in") return;
    if (error instanceof Refusal && error.status === 401) {
      if (!(await this.refresh()) && this.state !== "in") return;
    }
    if (this.current) return this.wantSoon(1_000 + this.pause()); // the former stream still runs
    if (this.isLive || !this.lostAt) this.lostAt = Date.now();
    if (this.isLive) {
      this.isLive = false;
      this.tellAll({ type: "live", on: false });
    }
    clearTimeout(this.retryTimer);
    const resumes = () => Date.now() - this.lostAt < RESUME_WITHIN_MS && this.lastRow !== "";
    this.retryTimer = setTimeout(() => this.state === "in" && this.connect(resumes()), this.pause());
  }

  pause() {
    const most = Math.min(MAX_RETRY_MS, 400 * 2 ** this.failures++);
    return most * (0.5 + Math.random() / 2);
  }

  came({ type, id, data }) {
    const content = JSON.parse(data);
    if (id) this.lastRow = id;
    if (type === "property") this.valueCame(content);
    else if (type === "event") this.eventCame(content, id);
    else if (type === "status") this.statusCame(content);
    else if (type.startsWith("thing_")) this.changeCame(content);
    if (!this.flushing) this.flushing = setTimeout(() => this.flush(), FLUSH_MS);
  }

  valueCame({ thingID, name, value, created }) {
    const key = `${thingID}\n${name}`;
    const known = this.values.get(key);
    if (known && (known[3] > created || (known[3] === created && known[2] === value))) return;
    const one = [thingID, name, value, created];
    this.values.set(key, one);
    this.fresh.set(key, one);
    if (name === "skep:online" || (name === "online" && !this.values.has(`${thingID}\nskep:online`))) {
      this.listing.present(thingID, value === true);
    }
  }

  eventCame(content, row) {
    if (row && this.seen.has(row)) return;
    this.seen.add(row);
    if (this.seen.size > MAX_SEEN) this.seen.delete(this.seen.values().next().value);
    this.events.push(content);
    if (this.events.length > MAX_EVENTS_A_FLUSH) this.events.shift();
  }

  statusCame(status) {
    if (this.lastSeq !== null && status.seq <= this.lastSeq) return;
    this.lastSeq = status.seq;
    this.statuses.push(status);
  }

  flush() {
    this.flushing = 0;
    const { events, statuses } = this;
    const values = [...this.fresh.values()];
    this.fresh.clear();
    this.events = [];
    this.statuses = [];
    for (const client of this.clients.values()) {
      const mine = values.filter(([thing]) => client.wants.has(thing));
      if (mine.length) client.post({ type: "values", values: mine });
      const happened = events.filter(({ thingID }) => client.wants.has(thingID));
      if (happened.length) client.post({ type: "events", events: happened });
      if (statuses.length) client.post({ type: "statuses", statuses });
    }
  }

  // ---------------------------------------------------------------- the directory

  changeCame({ id, change }) {
    this.lastChange = change;
    this.changed.add(id);
    this.firstChange ||= Date.now();
    if (this.reading) return; // looked at again when that is done
    const isLate = Date.now() - this.firstChange > CHANGES_AT_MOST_MS;
    if (this.changeTimer && isLate) return;
    clearTimeout(this.changeTimer);
    this.changeTimer = setTimeout(() => this.relist([...this.changed]), CHANGES_QUIET_MS);
  }

  // Many changes in a row are one listing: an agent that announces a thousand Things costs what looking at them costs.
  async relist(ids = null) {
    if (this.reading) return;
    clearTimeout(this.changeTimer);
    this.changeTimer = 0;
    this.firstChange = 0;
    this.changed.clear();
    const control = (this.reading = new AbortController());
    let ok = false;
    try {
      if (ids) await this.listing.readSome(ids, control.signal);
      else await this.listing.readAll(control.signal);
      ok = true;
    } catch (error) {
      if (error instanceof Refusal && error.status === 401) await this.refresh();
    }
    if (this.reading !== control) return;
    this.reading = null;
    this.tellAll(ids ? { type: "changed", ids } : { type: "listed", ok });
    if (!ok) this.changeTimer = setTimeout(() => this.relist(), this.pause() + 1_000);
    else if (this.changed.size) this.changeTimer = setTimeout(() => this.relist([...this.changed]), CHANGES_QUIET_MS);
  }
}
