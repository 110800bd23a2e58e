// Coming and going: the door with its form, and who is in.

import { api } from "./api.js";
import { byId } from "./dom.js";
import { loggedIn, loggedOut, remember } from "./link.js";

export function begin() {
  byId("login").addEventListener("submit", async (event) => {
    event.preventDefault();
    const form = event.target;
    const refusal = byId("login-refusal");
    refusal.textContent = "";
    const claims = !byId("code-field").hidden;
    const body = { login: form.elements.login.value.trim(), password: form.elements.password.value, cookie: true };
    if (claims) body.code = form.elements.code.value.trim();
    try {
      const login = await api("POST", claims ? "authn/claim" : "authn/login", body);
      form.reset();
      remember(true);
      loggedIn(login.expiresIn);
    } catch (error) {
      refusal.textContent = error.message;
    }
  });

  const claim = () => {
    const field = byId("code-field");
    field.hidden = !field.hidden;
    byId("claim-switch").textContent = field.hidden ? "First start? Claim this runtime" : "I have an account";
    byId("door-text").textContent = field.hidden
      ? "Your Things, live."
      : "The code was printed when skep started; it makes you the first admin.";
  };
  byId("claim-switch").addEventListener("click", claim);
  // The link that was printed brings its code along; it is not kept in the history.
  const code = /^#claim=([0-9a-f]+)$/.exec(location.hash)?.[1];
  if (code) {
    history.replaceState(null, "", location.pathname);
    byId("login").elements.code.value = code;
    claim();
  }

  byId("logout").addEventListener("click", async () => {
    try {
      await api("POST", "authn/logout", {});
    } catch {
      // The login may have ended already; what counts is that this browser forgets it.
    }
    loggedOut();
  });
}

export function welcome(profile) {
  byId("door").hidden = true;
  byId("house").hidden = false;
  byId("who").textContent = `${profile.clientID} · ${profile.role}`;
}

export function farewell(why) {
  remember(false);
  byId("house").hidden = true;
  byId("door").hidden = false;
  if (why === "expired") byId("login-refusal").textContent = "Your login has ended. Log in to go on where you were.";
  byId("login").elements.login.focus();
}

export function showLive(isOn) {
  const sign = byId("live");
  sign.classList.toggle("on", isOn);
  sign.lastElementChild.textContent = isOn ? "live" : "reconnecting";
}
