// The page's frame: views with their own addresses, and the numbers that every part of the page shares. It knows no feature.
//
//     /dashboard                   the overview
//     /dashboard/NAME              another view
//     /dashboard/features/NAME/…   the module of a feature, panel.js
//
// A module of a view has the function view(root), which draws into the section `root` and returns update(summary, slow). The
// frame calls view() when the view is opened for the first time, and update() at once and after each poll while the view is
// shown. slow: time to read what changes slowly or costs the server more. The server lists the features that are on and their
// modules. Such a module may also have card(root), the same for the feature's part of the overview.

import { Shown } from "./amounts.js";
import * as api from "./api.js";
import { toast } from "./dialogs.js";
import { byId, h } from "./dom.js";

const ROOT = "/dashboard";
const SLOW_EVERY = 5; // polls
const FIRST_REQUESTS = 100; // below this many, every change counts as slow
const SECTIONS = { // of the page before it had views: links to them still work
  usage: "savings", policies: "savings", planning: "savings", routes: "requests", "content-log": "content_log",
  health: "settings", proxies: "settings", audit: "settings",
};

/** The newest summary of the admin API, and how its amounts are shown. */
export let summary = null, shown = null;
/** All features, as GET /panels lists them. Those that are on also have their module. */
export let panels = [];

const views = [];
let current = null, polls = 0, lastTotal = -1;

const address = (name) => (name === "overview" ? ROOT : `${ROOT}/${name}`);

/** Add a view, and a link to it. key: its letter after g. */
export function addView(name, title, view, key = "") {
  const link = h("a", { href: address(name) }, title);
  const root = byId(name) ?? byId("main").appendChild(h("section", { id: name, tabindex: -1, "aria-label": title }));
  root.hidden = true;
  byId("views").append(link);
  views.push({ name, title, key, link, root, view, update: null });
}

/** The views in the order of their links: [{name, title, key, link}]. */
export const allViews = () => views;

/** Add the views of the features that are on. */
export async function addFeatures() {
  ({ rows: panels } = await api.get("/panels"));
  await Promise.all(panels.filter((panel) => panel.on).map(async (panel) => {
    try {
      panel.code = await import(panel.module);
    } catch (error) {
      toast(`${panel.title}: its page could not be loaded`, "bad");
      console.error(error);
    }
  }));
  for (const { name, title, code } of panels) if (code?.view) addView(name, title, code.view);
}

/** Open a view: "entries", or "entries?model=gpt-4o". */
export function goTo(path) {
  history.pushState(null, "", address(path));
  openView().catch((error) => toast(error.message, "bad"));
  current.root.focus({ preventScroll: true });
  scrollTo(0, 0);
}

/** Show the view of the address. A feature that is off is on the settings view. */
function openView() {
  const section = location.hash.slice(1), path = location.pathname.slice(ROOT.length + 1) || SECTIONS[section] || section || "overview";
  const found = views.find((view) => view.name === path) ?? views.at(panels.some((panel) => panel.name === path) ? -1 : 0);
  if (section || found.name !== (location.pathname.slice(ROOT.length + 1) || "overview")) history.replaceState(null, "", address(found.name));
  if (found !== current) {
    if (current) current.root.hidden = true;
    current?.link.removeAttribute("aria-current");
    current = found;
    current.root.hidden = false;
    current.link.setAttribute("aria-current", "page");
    current.link.scrollIntoView({ block: "nearest", inline: "nearest" });
    document.title = current.name === "overview" ? "knapcache" : `${current.title} · knapcache`;
    document.body.dataset.view = current.name;
    current.update ??= current.view(current.root);
  }
  return refreshView();
}

/** Update the view that is shown, also what changes slowly. */
export async function refreshView(slow = true) {
  await current.update(summary, slow);
}

/** Show a new summary. */
export async function setSummary(found) {
  const first = summary === null, total = found.all.requests;
  const slow = polls++ % SLOW_EVERY === 0 || (total !== lastTotal && total < FIRST_REQUESTS);
  [summary, shown, lastTotal] = [found, new Shown(found), total];
  document.body.dataset.prices = found.prices;
  document.body.toggleAttribute("data-shared", found.health.engine != null);
  const updated = first ? openView() : refreshView(slow);
  document.body.dataset.state = total === 0 && found.storage.entries === 0 ? "empty" : "live";
  await updated;
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='/dashboard']");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  goTo(link.getAttribute("href").slice(ROOT.length + 1) || "overview");
});
addEventListener("popstate", () => {
  if (summary && !location.hash.startsWith("#token=")) openView().catch((error) => toast(error.message, "bad"));
});
