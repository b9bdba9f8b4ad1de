// The view of recent requests by the time of their arrival, newest first, of the routes of the settings, and of one request:
// why it was a hit or a miss. Serials are in the order in which requests finished.
//
// Invariant: at most MAX_ROWS rows are in memory and MAX_SHOWN are drawn, however long the page stays open.

import * as api from "./api.js";
import { openDrawer, toast } from "./dialogs.js";
import { byId, fact, h, setText } from "./dom.js";
import { openEntry } from "./entries.js";
import { bytes, clock, count, day, digits, fractionalCount, moment, time } from "./format.js";
import { panels, shown } from "./frame.js";
import { TableCard } from "./table.js";
import { noRequests } from "./welcome.js";

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

/** What each outcome means, in a sentence. */
export const OUTCOMES = {
  hit: "The answer came from the cache.",
  similar: "The answer to a similar question came from the cache.",
  miss: "The answer was fetched from the upstream and paid for.",
  coalesced: "An identical request was under way. This one waited for its answer and cost nothing.",
  stale: "The stored answer was past its time to live, and was served nevertheless.",
  bypass: "The request was sent without the cache.",
  passthrough: "Not a cached endpoint: the request was passed on to the upstream.",
  failed: "The upstream failed, or the client disconnected.",
  rejected: "The proxy refused the request.",
};

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

// Details of one request.

/** A table of differences: field, this request, the stored one; or how they differ, if the values are not shown. */
function differences(rows) {
  return h("table", { class: "plain" },
    h("thead", {}, h("tr", {}, ["Field", "This request", "Stored request"].map((title) => h("th", { scope: "col" }, title)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, h("th", { scope: "row" }, row.field),
      row.here == null && row.there == null
        ? h("td", { colspan: 2 }, row.text)
        : [h("td", {}, row.here ?? "not set"), h("td", {}, row.there ?? "not set")]))));
}

/** What an answer was worth to the policy, beside the one that took its place. Costs are multiples: the policy compares them. */
function worth(own, rival) {
  const times = (value, base) => (base > 0 ? `${digits(Number((value / base).toPrecision(2)))} times as much` : "–");
  const rows = [["Requests", (one) => fractionalCount(one.requests)], ["Size", (one) => bytes(one.size)],
    rival && ["Cost of a miss", (one) => (one === own ? "1" : times(rival.cost, own.cost))],
    rival && ["Value per MB", (one) => (one === own ? "1" : times(rival.density, own.density))]].filter(Boolean);
  return h("table", { class: "plain" },
    h("thead", {}, h("tr", {}, h("th", {}), h("th", { scope: "col" }, "This answer"), rival && h("th", { scope: "col" }, "Stored in its place"))),
    h("tbody", {}, rows.map(([name, text]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, text(own)), rival && h("td", {}, text(rival))))));
}

let calls = 0;

/** Show a request. */
async function openRequest(serial) {
  const call = ++calls;
  let row;
  try {
    row = await api.get(`/requests/${serial}`);
  } catch (error) {
    toast(error.status === 404 ? "Only recent requests have details: the last 1,000 of a proxy, and the last 100 of each other one" : error.message, "bad");
    return;
  }
  if (call !== calls) return;
  openDrawer([h("span", { class: `outcome ${row.outcome}` }, row.outcome), row.words || row.model || row.endpoint || "Request"], [reason(row), facts(row)],
    row.stored && h("footer", { class: "foot" }, h("button", { type: "button", on: { click: () => openEntry(row.key) } }, "Show the entry")));
}

/** The reason, and the entry that is nearest. */
function reason({ outcome, why }) {
  const { nearest } = why;
  return [
    h("section", { class: "why", data: { kind: why.kind } },
      h("h3", {}, outcome === "miss" ? "Why was this a miss?" : "Why?"),
      h("p", { class: "title" }, why.title, why.at != null && h("span", {}, moment(why.at))),
      h("p", {}, why.text)),
    why.own && worth(why.own, why.rival),
    nearest && h("section", {},
      h("h3", {}, outcome === "similar" ? "The question that was answered" : "Nearest stored request"),
      h("p", { class: "sub" }, h(nearest.stored ? "button" : "b", { type: "button", class: "link", on: nearest.stored && { click: () => openEntry(nearest.key) } },
        nearest.words || `${nearest.model || nearest.endpoint} · ${nearest.key.slice(0, 8)}`), ` stored ${moment(nearest.created)}`, nearest.tenant && ` for ${nearest.tenant}`),
      differences(nearest.differences),
      why.compared < why.entries && h("p", { class: "sub" }, `Compared with ${count(why.compared)} of ${count(why.entries)} entries, the newest first.`))];
}

function facts(row) {
  const known = row.key && (row.usd != null || row.cost > 0), value = shown.answer({ ...row, seconds: row.upstream_seconds });
  const calls = row.attempts.length > 1 ? `, calls: ${row.attempts.map((status) => status || "no response").join(", ")}` : "";
  return h("section", {}, h("h3", {}, "Request"), h("dl", { class: "facts" },
    fact("Time", `${day(row.time)}, ${clock(row.time)}`),
    fact("Outcome", OUTCOMES[row.outcome] ?? row.outcome),
    row.answer && fact("Its answer", row.answer),
    panels.map(({ name, title }) => row[name] && fact(title, row[name])), // what features say about it
    fact("Endpoint", row.endpoint || "not a cached one", row.stream && ", streamed"),
    fact("Model", row.model || "–"), fact("Tenant", row.tenant || "–"), fact("Status", String(row.status)),
    row.proxy && fact("Proxy", row.proxy),
    row.route && fact("Route", row.route),
    row.tried.length > 0 && fact("Tried before", row.tried.join("; ")),
    row.reason && row.outcome !== "rejected" && row.outcome !== "bypass" && fact("Asked by the client", row.reason),
    fact("Upstream", row.upstream ? `${row.upstream}${calls}` : "not called"),
    fact("Time taken", `${time(row.seconds)}, first byte after ${time(row.ttfb)}`),
    row.upstream_seconds > 0 && fact("Time of the upstream", `${time(row.upstream_seconds)}${row.saved ? ", when the answer was fetched" : ""}`),
    row.tokens > 0 && fact("Tokens", count(row.tokens)),
    known && fact(row.saved ? "Saved" : "Cost", `${value}${shown.simulated ? " at simulated prices" : ""}`),
    row.error && fact("Failure of the upstream", row.error),
    row.size > 0 && fact("Size of the entry", bytes(row.size)),
    fact("Key", row.key ? h("code", { class: "key" }, row.key) : "none")));
}
