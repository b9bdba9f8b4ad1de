// The page. It asks the admin API every two seconds and shows what it says; it keeps nothing that grows.
//
//     api.js      the way to the server      poll.js     when to ask           rows.js     what numbers mean
//     overview.js, entries.js, drawer.js, live.js, people.js, health.js, plan.js: a part of the page each
//
// Parts share nothing but the summary they are told of.

import * as api from "./api.js";
import { at, h, put } from "./dom.js";
import { Drawer } from "./drawer.js";
import { Entries } from "./entries.js";
import { age } from "./format.js";
import { Health } from "./health.js";
import { go, help, listen } from "./keys.js";
import { Live } from "./live.js";
import { closesOutside, panel, toast } from "./notes.js";
import { Overview } from "./overview.js";
import { People } from "./people.js";
import { Plan } from "./plan.js";
import { Poll } from "./poll.js";
import { connecting, welcome } from "./welcome.js";

const SLOW = 5; // history and kept answers are asked for every fifth time: they change slowly, and cost the server more

const entries = new Entries((key) => drawer.open(key));
const drawer = new Drawer(entries);
const live = new Live((key) => drawer.open(key));
const people = new People((which, name) => {
  entries.only(which, name);
  go("entries");
});
const health = new Health();
const plan = new Plan();
const overview = new Overview(() => past().catch((error) => toast(error.message, "bad")));
const poll = new Poll(ask, heard);

let turn = 0, requests = -1, asked = 0, heardAt = null, counting = 0;

async function past() {
  const mine = ++asked;
  const found = await api.get("/history", { span: overview.span });
  if (mine === asked) overview.chart(found);
}

async function ask() {
  const [summary, fresh] = await Promise.all([
    api.get("/summary"), api.get("/requests", { after: live.serial, limit: 200 })]);
  // A server that began anew counts from the start: ask for what it has from there.
  const lines = fresh.serial < live.serial ? await api.get("/requests", { after: 0, limit: 200 }) : fresh;
  for (const part of [overview, entries, drawer, people, health, plan]) part.update(summary);
  live.update(lines, summary.unit);
  const empty = summary.all.requests === 0 && summary.storage.entries === 0;
  if (empty && at("welcome").hidden) welcome(at("welcome"));
  at("welcome").hidden = !empty;
  document.body.dataset.state = empty ? "empty" : "live";
  // The first requests are shown at once, later ones in their turn.
  const first = summary.all.requests !== requests && summary.all.requests < 100;
  if (turn++ % SLOW === 0 || first) {
    await past();
    if (!document.querySelector("dialog[open]")) await entries.refresh();
  }
  if (turn === 1) plan.resume().catch(() => {}); // an old plan is no more than a comfort
  requests = summary.all.requests;
}

function heard(wrong, wait) {
  clearInterval(counting);
  if (wrong instanceof api.Unknown) {
    poll.stop();
    askForToken("");
    return;
  }
  at("away").hidden = !wrong;
  document.body.classList.toggle("is-away", Boolean(wrong));
  at("pulse").dataset.state = wrong ? "away" : "live";
  put("pulse-text", wrong ? "Disconnected" : "Live");
  if (!wrong) {
    heardAt = Date.now();
    return;
  }
  if (!(wrong instanceof api.NotInMemory || wrong instanceof api.Refused)) console.error(wrong); // a mistake of ours
  const next = Date.now() + wait;
  const say = () => {
    const old = heardAt ? ` The numbers are ${age((Date.now() - heardAt) / 1000)} old.` : "";
    put("away-text", `Disconnected: ${wrong.message}. Trying again in ${Math.max(0, Math.ceil((next - Date.now()) / 1000))} s.${old}`);
  };
  say();
  counting = setInterval(say, 1000);
}

// Who may look.

function askForToken(message) {
  document.body.dataset.state = "login";
  put("login-wrong", message);
  at("pulse").dataset.state = "away";
  put("pulse-text", "Logged out");
  if (!at("login").open) at("login").showModal();
  at("token").focus();
}

async function enter(token) {
  try {
    await api.login(token);
  } catch (error) {
    askForToken(error instanceof api.Unknown ? "That is not the admin token." : `Not now: ${error.message}.`);
    return;
  }
  at("token").value = "";
  at("login").close();
  turn = 0;
  poll.start();
}

async function start() {
  const token = api.tokenFromAddress();
  if (token) return enter(token);
  let known = false;
  try {
    known = await api.resume();
  } catch {
    known = true; // away: asking goes on, and says so
  }
  return known ? poll.start() : askForToken("");
}

async function logout() {
  poll.stop();
  at("panel").close();
  await api.logout().catch(() => {});
  askForToken("");
}

// Buttons and keys.

const actions = {
  help: () => help(logout),
  pause: () => live.pause(),
  theme: () => document.documentElement.dispatchEvent(new Event("theme")),
  connect: () => panel("Connect an app", h("p", { class: "sub" }, "Point any OpenAI or Anthropic client here. Your own key goes through to the provider."), connecting()),
};
at("help").addEventListener("click", actions.help);
at("theme").addEventListener("click", actions.theme);
at("connect").addEventListener("click", actions.connect);
at("away-now").addEventListener("click", () => poll.now());
at("login-form").addEventListener("submit", (event) => {
  event.preventDefault();
  enter(at("token").value.trim());
});
at("login").addEventListener("cancel", (event) => event.preventDefault()); // there is nothing behind it to see
closesOutside(at("panel"));
closesOutside(at("confirm"));
for (const link of document.querySelectorAll('a[href^="#"]')) {
  link.addEventListener("click", (event) => {
    event.preventDefault(); // the address stays clean
    go(link.hash.slice(1));
  });
}
window.addEventListener("hashchange", () => {
  const token = api.tokenFromAddress();
  if (token) enter(token);
});
listen(actions);

// Which section is looked at: the one that was jumped to while it is on the screen; else the last that has come up to the
// upper half, and at the end of the page the last of all.
const links = [...document.querySelectorAll(".sections a")];
function mark() {
  const end = innerHeight + scrollY >= document.documentElement.scrollHeight - 2;
  const passed = links.filter((link) => at(link.hash.slice(1)).getBoundingClientRect().top < innerHeight * 0.4);
  const jumped = links.find((link) => at(link.hash.slice(1)) === document.activeElement);
  const top = jumped && document.activeElement.getBoundingClientRect().top;
  const here = jumped && top >= 0 && top < innerHeight * 0.9 ? jumped : end && scrollY > 0 ? links.at(-1) : (scrollY > 8 && passed.at(-1)) || links[0];
  for (const link of links) {
    if (link === here) link.setAttribute("aria-current", "location");
    else link.removeAttribute("aria-current");
  }
}
document.addEventListener("scroll", mark, { passive: true });
document.addEventListener("focusin", mark);
mark();

start();
