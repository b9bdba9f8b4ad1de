// The view of recent requests by the time of their arrival, newest first, and of the routes of the settings. Serials are in the order in which requests finished.
//
// Invariant: at most MAX_ROWS rows are in memory and MAX_SHOWN are drawn, however long the page stays open.

import * as api from "./api.js";
import { byId, h, setText } from "./dom.js";
import { clock, count, time } from "./format.js";
import { shown } from "./frame.js";
import { TableCard } from "./table.js";
import { noRequests } from "./welcome.js";
import { OUTCOMES, openRequest } from "./why.js";

const MAX_ROWS = 500, MAX_SHOWN = 100;

const KINDS = [["all", "All"], ["cached", "From cache"], ["miss", "Misses"], ["other", "Other"], ["failed", "Failed"]];
const KIND = { hit: "cached", similar: "cached", coalesced: "cached", stale: "cached", miss: "miss", failed: "failed", rejected: "failed" };
const HEADINGS = [["time", "Time"], ["outcome", "Outcome"], ["model", "Model"], ["tenant", "Tenant"], ["proxy", "Proxy"], ["endpoint", "Endpoint"], ["status", "Status"], ["ttfb", "First byte"], ["seconds", "Total"], ["cost", "Saved or spent"]];
const TITLES = {
  outcome: "Where the answer came from. Click a row to see why.", ttfb: "Time until the first byte of the answer was sent", seconds: "Time until the last byte of the answer was sent",
  cost: "What the answer cost. Green and with a plus: saved, because it came from the cache",
};
const HIDE_SMALL = new Set(["tenant", "proxy", "endpoint", "ttfb", "status"]);
const newestFirst = (a, b) => b.time - a.time || b.serial - a.serial;
const TIMES = 1e14; // serials of a shared store are times in microseconds, and may come late and twice

const routeValue = (value) => (Array.isArray(value) ? value.map((each) => each.name ?? each).join(", ") : String(value));

let requests = null;

export function view(root) {
  requests = new Requests();
  const routes = new TableCard("routes", "Routes", [["Route", "model"], ["Applies if", "model"], ["Rules", "model"], ["Last 1,000 requests"]]);
  setText(routes.note, "the first one whose conditions are all met applies");
  root.append(routes.root);
  return async (summary) => {
    routes.root.hidden = !summary.routes.length;
    routes.draw(summary.routes, ({ name, conditions, rules, recent }) => [
      h("td", { class: "model" }, name), h("td", { class: "model" }, conditions.join(" and ") || "always"),
      h("td", { class: "model" }, Object.entries(rules).map(([rule, value]) => `${rule} = ${routeValue(value)}`).join(", ") || "–"),
      h("td", {}, Object.entries(recent).map(([outcome, number]) => `${count(number)}\u00a0${outcome}`).join(", ") || "none")], { key: ({ name }) => name });
    await requests.refresh();
  };
}

/** Pause the list, or resume it. */
export const pause = () => requests?.pause();

class Requests {
  #rows = []; #serial = 0; #paused = false; #whilePaused = 0; #kind = "all"; #drawnFor = null; #body;

  constructor() {
    const table = byId("requests-table");
    table.tHead.append(h("tr", {}, HEADINGS.map(([name, title]) => h("th", { scope: "col", title: TITLES[name], class: `${name} ${HIDE_SMALL.has(name) ? "hide-small" : ""}` }, title))));
    this.#body = table.tBodies[0];
    byId("chips").append(...KINDS.map(([kind, title]) =>
      h("button", { type: "button", class: "chip", data: { kind }, "aria-pressed": String(kind === "all"), on: { click: () => this.#showKind(kind) } }, title)));
    byId("requests-search").addEventListener("input", () => this.#draw());
    byId("pause").addEventListener("click", () => this.pause());
    this.#draw();
  }

  /** Whether a `serial` says that the server restarted and counts from 0: it is lower than the last one. */
  #restarted(serial) {
    return serial < this.#serial && serial < TIMES;
  }

  /** Read the requests since the last call; after a longer time the newest MAX_ROWS, which replace all others. */
  async refresh() {
    const page = await api.get("/requests", { after: this.#serial, limit: MAX_ROWS });
    this.#add(this.#restarted(page.serial) ? await api.get("/requests", { after: 0, limit: MAX_ROWS }) : page);
  }

  /** Add new requests. */
  #add({ serial, rows }) {
    const restarted = this.#restarted(serial);
    if (restarted) this.#rows = [];
    this.#serial = serial;
    const known = new Set(this.#rows.map((row) => row.serial));
    const oldest = this.#rows.length < MAX_ROWS ? 0 : this.#rows.at(-1).time;
    const fresh = rows.filter((row) => row.time > oldest && !known.has(row.serial)).sort(newestFirst);
    const redraw = shown.id !== this.#drawnFor || restarted;
    this.#drawnFor = shown.id;
    this.#rows = [...fresh, ...this.#rows].sort(newestFirst).slice(0, MAX_ROWS);
    if (this.#paused) this.#whilePaused += fresh.length;
    else if (redraw || fresh.length > MAX_SHOWN) this.#draw();
    else if (fresh.length) this.#insert(fresh);
    this.#showNote();
  }

  pause() {
    this.#paused = !this.#paused;
    this.#whilePaused = 0;
    byId("pause").setAttribute("aria-pressed", String(this.#paused));
    setText("pause", this.#paused ? "Resume" : "Pause");
    if (!this.#paused) this.#draw();
    this.#showNote();
  }

  #showNote() {
    setText("requests-note", this.#paused ? `Paused${this.#whilePaused ? `, ${count(this.#whilePaused)} new` : ""}` : "");
  }

  #showKind(kind) {
    this.#kind = kind;
    for (const chip of byId("chips").children) chip.setAttribute("aria-pressed", String(chip.dataset.kind === kind));
    this.#draw();
  }

  #matches(row) {
    const filter = byId("requests-search").value.trim().toLowerCase();
    const kind = KIND[row.outcome] ?? "other";
    return (this.#kind === "all" || this.#kind === kind) &&
      (!filter || [row.model, row.tenant, row.endpoint, row.outcome, String(row.status), row.key, row.proxy].some((text) => text?.toLowerCase().includes(filter)));
  }

  #draw() {
    const matching = this.#rows.filter((row) => this.#matches(row)).slice(0, MAX_SHOWN);
    this.#body.replaceChildren(...matching.map((row) => this.#row(row)));
    this.#drawEmpty();
  }

  #insert(fresh) {
    const matching = fresh.filter((row) => this.#matches(row));
    if (matching.length) this.#body.querySelector(".empty")?.remove();
    let next = this.#body.firstElementChild;
    for (const row of matching) {
      while (next && Number(next.dataset.time) > row.time) next = next.nextElementSibling;
      this.#body.insertBefore(this.#row(row, true), next);
    }
    while (this.#body.children.length > MAX_SHOWN) this.#body.lastElementChild.remove();
  }

  #drawEmpty() {
    if (this.#body.children.length) return;
    this.#body.append(h("tr", { class: "empty" }, h("td", { colspan: HEADINGS.length }, this.#rows.length ? "No matching requests. Change or clear the filter." : noRequests(": each request appears here within two seconds."))));
  }

  #row(row, fresh = false) {
    const known = KIND[row.outcome] !== "failed" && (row.usd != null || row.cost > 0);
    const text = known ? `${row.saved ? "+" : ""}${shown.answer({ ...row, seconds: row.upstream_seconds })}` : "–";
    const cells = {
      time: clock(row.time), tenant: row.tenant || "–", proxy: row.proxy || "–", endpoint: row.endpoint || "not cached", status: String(row.status),
      ttfb: row.ttfb == null ? "–" : time(row.ttfb), seconds: time(row.seconds), cost: text,
      outcome: h("span", { class: `outcome ${row.outcome}`, title: OUTCOMES[row.outcome] }, row.outcome),
      model: h("button", { type: "button", class: "link", "aria-haspopup": "dialog" }, row.model || "no model"),
    };
    return h("tr", { data: { serial: row.serial, time: row.time }, on: { click: () => openRequest(row.serial) }, class: `${fresh ? "fresh " : ""}${row.saved ? "saved" : ""}` }, HEADINGS.map(([name]) =>
      h("td", { class: `${name} ${HIDE_SMALL.has(name) ? "hide-small" : ""} ${name === "status" && row.status >= 400 ? "error" : ""}` }, cells[name])));
  }
}
