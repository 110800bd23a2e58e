// Accounts, their tokens and sessions, for admins.

import { call } from "./api.js";
import { confirmed, open, secret } from "./dialogs.js";
import { element, foreign, section, table } from "./dom.js";
import { store } from "./store.js";
import { clock } from "./text.js";

const ADMIN = "dtw:authn:admin";
const ROLES = ["none", "viewer", "operator", "manager", "admin"];
const TYPES = { consumer: "consumer: a person or an application that watches and acts", agent: "agent: speaks for devices", service: "service: a program of this installation" };
const YEAR_S = 365 * 86_400;
const LISTED = ["token", "login", "session"]; // in tables of their own

export function show(draw, name) {
  const ask = name ? one(decodeURIComponent(name)) : all();
  return ask.then(
    (nodes) => draw(...nodes),
    (error) => draw(element("p", { class: "refusal", role: "alert" }, foreign(error.message))),
  );
}

const again = () => window.dispatchEvent(new Event("reshow"));

const button = (text, onclick, kind = "") => element("button", { type: "button", class: kind, text, onclick });

const chosen = (name, options, now) => {
  const control = element("select", { name }, ...options.map(([value, text]) => element("option", { value, text })));
  if (now !== undefined) control.value = now;
  return control;
};

const labelled = (text, control) => element("label", {}, element("span", { text }), control);

const hidden = (name, isRequired = true) =>
  element("input", { name, type: "password", autocomplete: "new-password", required: isRequired, minlength: 8 });

// ---------------------------------------------------------------- all

async function all() {
  const { items } = await call(ADMIN, "listClients", {});
  const columns = [
    ["Account", (row) => element("a", { href: `#/accounts/${encodeURIComponent(row.clientID)}` }, foreign(row.clientID))],
    ["Name", (row) => row.displayName],
    ["Type", (row) => row.type],
    ["Role", (row) => row.role],
    ["State", (row) => (row.disabled ? element("span", { class: "chip bad", text: "disabled" }) : element("span", { class: "chip good", text: "enabled" }))],
    ["Since", (row) => clock(row.created)],
  ];
  return [
    element(
      "header",
      { class: "titled" },
      element("button", { class: "link back", type: "button", text: "← All Things", onclick: () => (location.hash = "") }),
      element("h1", { text: "Accounts" }),
      button("Add an account", add, "primary"),
    ),
    table(columns, items),
  ];
}

async function roles() {
  try {
    const found = await call("dtw:authz:admin", "listRoles", {});
    const names = (found.items ?? []).map((role) => role.name ?? role.role ?? role).filter((one) => typeof one === "string");
    return [...new Set([...ROLES, ...names])].filter((one) => one !== "agent" && one !== "service");
  } catch {
    return ROLES;
  }
}

async function add() {
  const name = element("input", { name: "clientID", required: true, maxlength: 64, pattern: "[a-z0-9][a-z0-9._\\-]*", autocapitalize: "none", spellcheck: "false", autocomplete: "off", title: "small letters, digits, dot, dash and underscore" });
  const display = element("input", { name: "displayName", maxlength: 200, autocomplete: "off" });
  const type = chosen("type", Object.entries(TYPES));
  const role = chosen("role", (await roles()).map((one) => [one, one]), "viewer");
  const password = hidden("password", false);
  const forPeople = [labelled("Role", role), labelled("Password – empty for a token instead", password)];
  type.addEventListener("change", () => forPeople.forEach((label) => (label.hidden = type.value !== "consumer")));
  const made = await open({
    title: "Add an account",
    body: [labelled("What it is", type), labelled("Account", name), labelled("Name – optional", display), ...forPeople],
    action: "Add",
    done: () => {
      const input = { clientID: name.value.trim(), displayName: display.value.trim(), type: type.value };
      if (type.value !== "consumer") return call(ADMIN, "addClient", input);
      input.role = role.value;
      if (password.value) Object.assign(input, { password: password.value, token: false });
      return call(ADMIN, "addClient", input);
    },
  });
  if (!made) return;
  if (made.token) await shown(made.clientID, made.token);
  location.hash = `#/accounts/${encodeURIComponent(made.clientID)}`;
}

const shown = (account, token) =>
  secret({
    title: `Token of ${account}`,
    text: "It is shown this once. Who has it speaks as this account.",
    value: token,
    lines: [["To use it:", `curl -H "Authorization: Bearer …" ${new URL("authn/profile", document.baseURI).href}`]],
  });

// ---------------------------------------------------------------- one

async function one(account) {
  const [profile, tokens, sessions, credentials] = await Promise.all([
    call(ADMIN, "getClient", { clientID: account }),
    call(ADMIN, "listTokens", { clientID: account }),
    call(ADMIN, "listSessions", { clientID: account }),
    call(ADMIN, "listCredentials", { clientID: account }),
  ]);
  const others = credentials.items.filter((one) => !LISTED.includes(one.kind));
  const isOwn = account === store.profile?.clientID;
  const facts = [
    ["Type", profile.type],
    ["Role", profile.role],
    ["Password", profile.hasPassword ? "set" : "none"],
    ["Public key", profile.publicKey ? "known" : "none"],
    ["State", profile.disabled ? "disabled" : "enabled"],
    ["Since", clock(profile.created)],
  ];
  const acts = [
    profile.type === "consumer" ? button("Change the role", () => changeRole(profile)) : null,
    button(profile.hasPassword ? "Change the password" : "Set a password", () => setPassword(account)),
    profile.disabled
      ? button("Enable", () => done(call(ADMIN, "enableClient", { clientID: account })))
      : button("Disable", () => disable(profile, tokens.items, sessions), "danger"),
    credentials.items.length ? button("Revoke everything", () => revokeAll(profile, credentials.items), "danger") : null,
    button("Remove", () => remove(profile, tokens.items, sessions), "danger"),
  ];
  return [
    element(
      "header",
      {},
      element("button", { class: "link", type: "button", text: "← Accounts", onclick: () => (location.hash = "#/accounts") }),
      element("h1", { dir: "auto" }, foreign(profile.displayName || account)),
      element("div", { class: "facts" }, element("code", { text: account }), isOwn ? element("span", { text: "this is you" }) : null),
    ),
    section("Account", "card padded", [
      element("dl", { class: "members" }, ...facts.flatMap(([name, value]) => [element("dt", { text: name }), element("dd", {}, foreign(value))])),
      element("div", { class: "buttons" }, ...acts.filter(Boolean)),
    ]),
    section("Tokens", "stack", [
      table(
        [
          ["Label", (row) => row.label || "–"],
          ["Token", (row) => element("code", { text: row.tokenID })],
          ["Made", (row) => clock(row.created)],
          ["Ends", (row) => (row.expires ? clock(row.expires) : "never")],
          ["", (row) => button("Revoke", () => revoke(account, row), "danger small")],
        ],
        tokens.items,
      ),
      element("div", { class: "buttons" }, button("Make a token", () => issue(account))),
    ]),
    section("Logins and connections", "", [
      table(
        [
          ["What", (row) => (row.refreshed ? "login" : (row.binding ?? "connection"))],
          ["From", (row) => row.source ?? ""],
          ["Since", (row) => (row.created ? clock(row.created) : "")],
          ["", (row) => button("End", () => end(account, row), "danger small")],
        ],
        [...sessions.logins, ...sessions.connections],
      ),
    ]),
    section("Other credentials, and what lives by them", "", [
      table(
        [
          ["What", (row) => row.kind],
          ["Label", (row) => foreign(row.label || row.credentialID)],
          ["Made", (row) => (row.created ? clock(row.created) : "")],
          ["Last used", (row) => (row.lastUsed ? clock(row.lastUsed) : "–")],
          ["Ends", (row) => (row.expires ? clock(row.expires) : "never")],
          ["", (row) => button("Revoke", () => revokeOne(account, row), "danger small")],
        ],
        others,
      ),
    ]),
  ];
}

const done = (asked) => asked.then(again, (error) => confirmed({ title: "Refused", text: error.message, action: "Well", isDangerous: false }).then(again));

async function changeRole(profile) {
  const role = chosen("role", (await roles()).map((one) => [one, one]), profile.role);
  const asked = { clientID: profile.clientID };
  const title = `Role of ${profile.clientID}`;
  if (await open({ title, body: [labelled("Role", role)], action: "Change", done: () => call(ADMIN, "setClientRole", { ...asked, role: role.value }).then(() => true) })) again();
}

async function setPassword(account) {
  const [first, second] = [hidden("password"), hidden("repeated")];
  const answer = await open({
    title: `Password of ${account}`,
    body: [element("p", { class: "quiet", text: "Logins made with the former one end." }), labelled("New password", first), labelled("Once more", second)],
    action: "Set",
    check: () => (first.value === second.value ? "" : "The two differ."),
    done: () => call(ADMIN, "setClientPassword", { clientID: account, password: first.value }).then(() => true),
  });
  if (answer) again();
}

async function issue(account) {
  const label = element("input", { name: "label", maxlength: 200, autocomplete: "off", placeholder: "what it is for" });
  const lasts = chosen("lasts", [[String(YEAR_S), "a year"], [String(30 * 86_400), "30 days"], [String(86_400), "a day"], ["", "as the configuration says"]]);
  const made = await open({
    title: `A token for ${account}`,
    body: [labelled("Label", label), labelled("Good for", lasts)],
    action: "Make",
    done: () => call(ADMIN, "issueToken", { clientID: account, label: label.value.trim(), ...(lasts.value ? { expiresIn: Number(lasts.value) } : {}) }),
  });
  if (!made) return;
  await shown(account, made.token);
  again();
}

// ---------------------------------------------------------------- what cannot be undone

const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

function losses(profile, tokens, sessions) {
  const account = profile.clientID;
  const own = [...store.things.keys()].filter((id) => id.startsWith(`dtw:${account}:`)).length;
  const found = [];
  if (tokens.length) found.push(`${counted(tokens.length, "token")}: ${tokens.map((one) => one.label || one.tokenID).slice(0, 5).join(", ")}${tokens.length > 5 ? " …" : ""}`);
  if (sessions.logins.length) found.push(counted(sessions.logins.length, "login"));
  if (sessions.connections.length) found.push(`${counted(sessions.connections.length, "open connection")}`);
  if (own) found.push(`its ${counted(own, "Thing")} no longer answer${own === 1 ? "s" : ""}; description and history stay`);
  return found;
}

async function disable(profile, tokens, sessions) {
  const ok = await confirmed({
    title: `Disable ${profile.clientID}?`,
    text: "It can neither log in nor connect until it is enabled again. What ends now:",
    losses: losses(profile, [], sessions),
    action: "Disable",
  });
  if (ok) done(call(ADMIN, "disableClient", { clientID: profile.clientID }));
}

async function remove(profile, tokens, sessions) {
  const ok = await confirmed({
    title: `Remove ${profile.clientID}?`,
    text: `The ${profile.type} account and all its credentials go, and nothing brings them back. What goes:`,
    losses: [profile.hasPassword ? "its password" : "", profile.publicKey ? "its public key" : "", ...losses(profile, tokens, sessions)].filter(Boolean),
    name: profile.clientID,
    action: "Remove for good",
  });
  if (!ok) return;
  await done(call(ADMIN, "removeClient", { clientID: profile.clientID }).then(() => (location.hash = "#/accounts")));
}

async function revoke(account, token) {
  const ok = await confirmed({
    title: "Revoke this token?",
    text: `“${token.label || token.tokenID}” of ${account}: what uses it is cut off at once, and the token cannot be had back.`,
    action: "Revoke",
  });
  if (ok) done(call(ADMIN, "revokeToken", { tokenID: token.tokenID }));
}

async function revokeOne(account, credential) {
  const ok = await confirmed({
    title: `Revoke this ${credential.kind}?`,
    text: `${credential.label || credential.credentialID} of ${account}: it ends at once, with all that came of it.`,
    action: "Revoke",
  });
  if (ok) done(call(ADMIN, "revokeCredential", { credentialID: credential.credentialID }));
}

const kinds = (credentials) =>
  [...new Set(credentials.map((one) => one.kind))].map((kind) => counted(credentials.filter((one) => one.kind === kind).length, kind));

async function revokeAll(profile, credentials) {
  const ok = await confirmed({
    title: `Revoke everything of ${profile.clientID}?`,
    text: "The account stays, but nobody gets in as it until it is given a password or a token. What ends:",
    losses: kinds(credentials),
    name: profile.clientID,
    action: "Revoke everything",
  });
  if (ok) done(call(ADMIN, "revokeCredentials", { clientID: profile.clientID }));
}

async function end(account, session) {
  const ok = await confirmed({
    title: "End this session?",
    text: `${session.refreshed ? "A login" : "A connection"} of ${account}${session.source ? ` from ${session.source}` : ""}.`,
    action: "End",
  });
  if (ok) done(call(ADMIN, "endSession", { sessionID: session.sessionID }));
}
