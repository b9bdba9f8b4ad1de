// Entry point. The page polls the admin API every two seconds and redraws; its memory is bounded.
//
//     api.js      requests to the server      poll.js     when to poll      usage.js     formulas on usage totals
//     amounts.js  dollars, seconds or shares  format.js   texts of numbers  dom.js       elements
//     overview.js, prefix.js, semantic.js, routes.js, entries.js, drawer.js, requests.js, why.js, usage_tables.js, limits.js, health.js, proxies.js,
//     plan.js, audit.js, content_log.js: one section each
//
// Sections share no state. Each gets the summary through update().

import { Shown } from "./amounts.js";
import * as api from "./api.js";
import { Audit } from "./audit.js";
import { ContentLog } from "./content_log.js";
import { closeOnOutsideClick, panel, toast } from "./dialogs.js";
import { byId, h, setText } from "./dom.js";
import { Drawer } from "./drawer.js";
import { Entries } from "./entries.js";
import { age } from "./format.js";
import { Health } from "./health.js";
import { Limits } from "./limits.js";
import { Overview } from "./overview.js";
import { Plan } from "./plan.js";
import { Poll } from "./poll.js";
import { Prefix } from "./prefix.js";
import { Proxies } from "./proxies.js";
import { Requests } from "./requests.js";
import { Routes } from "./routes.js";
import { Semantic } from "./semantic.js";
import { bindShortcuts, goTo, showShortcuts } from "./shortcuts.js";
import { UsageTables } from "./usage_tables.js";
import { Why } from "./why.js";
import { connectSnippets, drawWelcome, keyText } from "./welcome.js";

const SLOW_EVERY = 5; // polls: history and entries change slowly and cost the server more than the summary
const FIRST_REQUESTS = 100; // below this many, history and entries follow every change

const entries = new Entries((key) => drawer.open(key));
const drawer = new Drawer(entries);
const why = new Why((key) => drawer.open(key));
const requests = new Requests((serial) => why.open(serial));
const usageTables = new UsageTables((field, name) => {
  entries.filter(field, name);
  goTo("entries");
});
const health = new Health();
const proxies = new Proxies();
const limits = new Limits();
const plan = new Plan();
const prefix = new Prefix();
const semantic = new Semantic();
const routes = new Routes();
const audit = new Audit();
const contentLog = new ContentLog();
const overview = new Overview(() => loadHistory().catch((error) => toast(error.message, "bad")));
const poll = new Poll(refresh, showConnection);

let firstRequest = null, polls = 0, lastTotal = -1, historyCalls = 0, updatedAt = null, countdown = 0;

async function loadHistory() {
  const call = ++historyCalls;
  const history = await api.get("/history", { span: overview.span });
  if (call === historyCalls) overview.chart(history); // a later call has not overtaken this one
}

async function refresh() {
  const [summary, page] = await Promise.all([
    api.get("/summary"), api.get("/requests", { after: requests.serial, limit: 200 })]);
  // A lower serial number means that the server restarted and counts from 0.
  const recent = requests.restarted(page.serial) ? await api.get("/requests", { after: 0, limit: 200 }) : page;
  for (const section of [overview, prefix, semantic, routes, entries, drawer, why, usageTables, health, proxies, plan, contentLog]) section.update(summary);
  requests.update(recent, new Shown(summary));
  await Promise.all([proxies.refresh(summary.now), limits.refresh(summary.now), semantic.refresh()]);
  document.body.dataset.prices = summary.prices;
  firstRequest = summary.first_request;
  const empty = summary.all.requests === 0 && summary.storage.entries === 0;
  if (empty && byId("welcome").hidden) drawWelcome(byId("welcome"), firstRequest);
  byId("welcome").hidden = !empty;
  document.body.dataset.state = empty ? "empty" : "live";
  const total = summary.all.requests;
  if (polls++ % SLOW_EVERY === 0 || (total !== lastTotal && total < FIRST_REQUESTS)) {
    await loadHistory();
    if (!document.querySelector("dialog[open]")) await entries.refresh();
  }
  if (polls % SLOW_EVERY === 1) await audit.refresh();
  if (polls === 1) plan.resume().catch(() => {}); // an earlier plan is optional
  lastTotal = total;
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
  byId("token").value = "";
  byId("login").close();
  polls = 0;
  showRole();
  poll.start();
}

async function logout() {
  poll.stop();
  audit.clear();
  contentLog.clear();
  byId("panel").close();
  await api.logout().catch(() => {});
  showLogin("");
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

// Buttons and keyboard shortcuts.

const actions = {
  help: () => showShortcuts(api.session, logout),
  pause: () => requests.pause(),
  theme: () => document.documentElement.dispatchEvent(new Event("theme")),
  connect: () => firstRequest && panel("Connect an app",
    h("p", { class: "sub" }, `Set the base URL of any OpenAI or Anthropic client to this proxy. ${keyText(firstRequest)}`), connectSnippets(firstRequest)),
};
byId("help").addEventListener("click", actions.help);
byId("theme").addEventListener("click", actions.theme);
byId("connect").addEventListener("click", actions.connect);
byId("retry").addEventListener("click", () => poll.now());
byId("login-form").addEventListener("submit", (event) => {
  event.preventDefault();
  login(byId("token").value.trim());
});
byId("login").addEventListener("cancel", (event) => event.preventDefault()); // without a session the page is empty
closeOnOutsideClick(byId("panel"));
closeOnOutsideClick(byId("confirm"));
for (const link of document.querySelectorAll('a[href^="#"]')) {
  link.addEventListener("click", (event) => {
    event.preventDefault(); // keeps the address free of fragments
    goTo(link.hash.slice(1));
  });
}
window.addEventListener("hashchange", () => {
  const token = api.tokenFromAddress();
  if (token && document.body.dataset.state === "login") login(token);
});
bindShortcuts(actions);

// Mark the current section in the navigation: the section with the focus while it is on the screen. Otherwise the last one
// whose top has reached the upper 40 % of the window, and at the end of the page the last section.
const links = [...document.querySelectorAll(".sections a")];
function markSection() {
  const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 2;
  const reached = links.filter((link) => byId(link.hash.slice(1)).getBoundingClientRect().top < innerHeight * 0.4);
  const focused = links.find((link) => byId(link.hash.slice(1)) === document.activeElement);
  const top = focused && document.activeElement.getBoundingClientRect().top;
  const visible = focused && top >= 0 && top < innerHeight * 0.9;
  const current = visible ? focused : atEnd && scrollY > 0 ? links.at(-1) : (scrollY > 8 && reached.at(-1)) || links[0];
  for (const link of links) {
    if (link === current) link.setAttribute("aria-current", "location");
    else link.removeAttribute("aria-current");
  }
}
document.addEventListener("scroll", markSection, { passive: true });
document.addEventListener("focusin", markSection);
markSection();

start();
