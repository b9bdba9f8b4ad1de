// Entry point: login, polling and the state of the connection. The page polls the admin API every two seconds; its memory is
// bounded.
//
//     frame.js    views and their addresses   api.js      requests to the server   poll.js    when to poll
//     amounts.js  formulas on usage totals; dollars, seconds, shares               format.js  texts of numbers
//     dom.js, table.js, dialogs.js, charts.js, scale.js: elements
//     overview.js, entries.js, requests.js, savings.js, settings.js: one view each. Views share no state
//     features: each has its own module, panel.js, in its folder

import * as api from "./api.js";
import { closeOnOutsideClick, panel } from "./dialogs.js";
import { byId, h, setText } from "./dom.js";
import { view as entries } from "./entries.js";
import { age } from "./format.js";
import { addFeatures, addView, allViews, goTo, setSummary } from "./frame.js";
import { showAlerts } from "./health.js";
import { view as overview } from "./overview.js";
import { Poll } from "./poll.js";
import { pause, view as requests } from "./requests.js";
import { view as savings } from "./savings.js";
import { view as settings } from "./settings.js";
import { connect } from "./welcome.js";

const SEQUENCE_TIME = 1200; // ms between g and the letter after it

const poll = new Poll(refresh, showConnection);
let started = false, updatedAt = null, countdown = 0;

async function refresh() {
  const summary = await api.get("/summary");
  if (!started) {
    await addFeatures();
    addView("settings", "Settings", settings, "t");
    started = true;
  }
  showAlerts(summary);
  await setSummary(summary);
}

/** Show the state of the connection. error: of the last poll, or null; wait: ms until the next one. */
function showConnection(error, wait) {
  clearInterval(countdown);
  if (error instanceof api.Unauthorized) {
    poll.stop();
    showLogin("");
    return;
  }
  byId("offline").hidden = !error;
  document.body.classList.toggle("is-offline", Boolean(error));
  byId("connection").dataset.state = error ? "offline" : "live";
  setText("connection-text", error ? "Disconnected" : "Live");
  if (!error) {
    updatedAt = Date.now();
    return;
  }
  if (!(error instanceof api.Unavailable || error instanceof api.Rejected)) console.error(error); // a bug of this page
  const next = Date.now() + wait;
  const update = () => {
    const seconds = Math.max(0, Math.ceil((next - Date.now()) / 1000));
    const old = updatedAt ? ` The numbers are ${age((Date.now() - updatedAt) / 1000)} old.` : "";
    setText("offline-text", `Disconnected: ${error.message}. Retrying in ${seconds} s.${old}`);
  };
  update();
  countdown = setInterval(update, 1000);
}

// Login.

function showLogin(message) {
  document.body.dataset.state = "login";
  setText("login-error", message);
  byId("connection").dataset.state = "offline";
  setText("connection-text", "Logged out");
  if (!byId("login").open) byId("login").showModal();
  byId("token").focus();
}

async function login(token) {
  try {
    await api.login(token);
  } catch (error) {
    showLogin(error instanceof api.Unauthorized ? "Wrong admin token." : `Login failed: ${error.message}.`);
    return;
  }
  if (started) return location.reload(); // this session may not read what is on the page, and features may have changed
  byId("token").value = "";
  byId("login").close();
  showRole();
  poll.start();
}

async function logout() {
  poll.stop();
  await api.logout().catch(() => {});
  location.reload();
}

/** Show what the role of the session allows. */
function showRole() {
  document.body.dataset.role = api.session.role;
  setText("role", api.session.role === "operator" ? "" : api.session.role);
}

async function start() {
  const token = api.tokenFromAddress();
  let session = false;
  try {
    session = await api.resume(); // first: a link with another token must not replace the session
  } catch {
    session = !token; // the server is unavailable: polling continues and reports it
  }
  showRole();
  if (session) poll.start();
  else if (token) await login(token);
  else showLogin("");
}

// Keyboard shortcuts. They are off in text fields and while a dialog is open. The browser itself closes dialogs on Esc.

/** Show the list of shortcuts, and who is logged in. */
function showShortcuts({ name, role }, logout) {
  const row = (keys, what) => h("div", {}, h("dt", {}, keys.map((key) => h("kbd", {}, key))), h("dd", {}, what));
  panel("Keyboard shortcuts",
    h("dl", { class: "keys" },
      row(["/"], "Search entries"),
      allViews().map(({ key, title }, k) => row([...(key ? ["g", key] : []), ...(k < 9 ? [String(k + 1)] : [])], title)),
      row(["p"], "Pause or resume requests"), row(["d"], "Light or dark theme"), row(["c"], "Connect an app"),
      row(["↑", "↓"], "In a table: previous or next row"), row(["←", "→"], "In a chart: previous or next step"),
      row(["?"], "This list"), row(["Esc"], "Close")),
    h("p", { class: "sub" }, "Press g and then the letter, or only the digit. This page loads nothing from other hosts and sends nothing to them."),
    h("div", { class: "buttons" }, name && h("span", { class: "note" }, `Logged in with the token ${name}, role ${role}`), h("button", { type: "button", id: "logout", on: { click: logout } }, "Log out")));
}

/** actions: {help, pause, theme, connect}. */
function bindShortcuts(actions) {
  let prefixTime = -Infinity; // when g was pressed
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (event.key === "Escape" && typing && !document.querySelector("dialog[open]")) {
      typing.blur();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || typing || document.querySelector("dialog[open]")) return;
    const prefixed = performance.now() - prefixTime < SEQUENCE_TIME;
    prefixTime = -Infinity;
    const view = prefixed ? allViews().find(({ key }) => key && key === event.key) : allViews()[Number(event.key) - 1];
    if (view) goTo(view.name);
    else if (prefixed) return;
    else if (event.key === "g") prefixTime = performance.now();
    else if (event.key === "/") {
      if (byId("entries").hidden) goTo("entries");
      byId("search").focus();
      byId("search").select();
    } else if (event.key === "?") actions.help();
    else if (event.key === "p") actions.pause();
    else if (event.key === "d") actions.theme();
    else if (event.key === "c") actions.connect();
    else return;
    event.preventDefault();
  });
}

// Views and buttons.

addView("overview", "Overview", overview, "o");
addView("entries", "Entries", entries, "e");
addView("requests", "Requests", requests, "r");
addView("savings", "Savings", savings, "s");

const actions = { help: () => showShortcuts(api.session, logout), pause, connect, theme: () => document.documentElement.dispatchEvent(new Event("theme")) };
for (const name of ["help", "theme", "connect"]) byId(name).addEventListener("click", actions[name]);
byId("retry").addEventListener("click", () => poll.now());
byId("login-form").addEventListener("submit", (event) => {
  event.preventDefault();
  login(byId("token").value.trim());
});
byId("login").addEventListener("cancel", (event) => event.preventDefault()); // without a session the page is empty
for (const name of ["panel", "confirm", "drawer"]) closeOnOutsideClick(byId(name));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // keeps the address free of fragments
  document.querySelector("main > section:not([hidden])")?.focus();
});
addEventListener("hashchange", () => {
  const token = api.tokenFromAddress();
  if (token && document.body.dataset.state === "login") login(token);
});
bindShortcuts(actions);

start();
