// Requests as they come, newest first.
//
// Invariant: at most KEPT rows are remembered and SHOWN are drawn, however long the page stays open.

import { at, h, put } from "./dom.js";
import { amount, clock, count, time } from "./format.js";

export const KEPT = 500, SHOWN = 100;

const KINDS = [["all", "All"], ["served", "Saved"], ["miss", "Misses"], ["other", "Other"], ["failed", "Failed"]];
const SERVED = ["hit", "coalesced", "stale"];
const KIND = { hit: "served", coalesced: "served", stale: "served", miss: "miss", failed: "failed", rejected: "failed" };
const HEADINGS = [["time", "Time"], ["outcome", "How"], ["model", "Model"], ["tenant", "Tenant"], ["endpoint", "Endpoint"], ["status", "Status"], ["ttfb", "First byte"], ["seconds", "Total"], ["worth", "Saved or paid"]];
const SPARE = new Set(["tenant", "endpoint", "ttfb", "status"]);

export class Live {
  #rows = []; #serial = 0; #paused = false; #missed = 0; #kind = "all"; #unit = "usd"; #open; #body;

  /** open(key): show the answer that was given. */
  constructor(open) {
    this.#open = open;
    const table = at("live");
    table.tHead.append(h("tr", {}, HEADINGS.map(([name, title]) => h("th", { scope: "col", class: `${name} ${SPARE.has(name) ? "spare" : ""}` }, title))));
    this.#body = table.tBodies[0];
    at("chips").append(...KINDS.map(([kind, title]) =>
      h("button", { type: "button", class: "chip", data: { kind }, "aria-pressed": String(kind === "all"), on: { click: () => this.#only(kind) } }, title)));
    at("live-search").addEventListener("input", () => this.#draw());
    at("pause").addEventListener("click", () => this.pause());
    this.#draw();
  }

  get serial() {
    return this.#serial;
  }

  get size() {
    return this.#rows.length;
  }

  /** What came since; `serial` lower than ours: the server started anew. */
  update({ serial, rows }, unit) {
    if (serial < this.#serial) this.#rows = [];
    const redraw = unit !== this.#unit || serial < this.#serial;
    this.#unit = unit;
    this.#serial = serial;
    const seen = this.#rows[0]?.serial ?? 0;
    // Whichever way the server orders them, the newest is first here.
    const fresh = rows.filter((row) => row.serial > seen).sort((a, b) => b.serial - a.serial);
    this.#rows = [...fresh, ...this.#rows].slice(0, KEPT);
    if (this.#paused) this.#missed += fresh.length;
    else if (redraw || fresh.length > SHOWN) this.#draw();
    else if (fresh.length) this.#add(fresh);
    this.#note();
  }

  pause() {
    this.#paused = !this.#paused;
    this.#missed = 0;
    at("pause").setAttribute("aria-pressed", String(this.#paused));
    put("pause", this.#paused ? "Go on" : "Pause");
    if (!this.#paused) this.#draw();
    this.#note();
  }

  #note() {
    put("live-note", this.#paused ? `Paused${this.#missed ? `, ${count(this.#missed)} came since` : ""}` : "");
  }

  #only(kind) {
    this.#kind = kind;
    for (const chip of at("chips").children) chip.setAttribute("aria-pressed", String(chip.dataset.kind === kind));
    this.#draw();
  }

  #fits(row) {
    const words = at("live-search").value.trim().toLowerCase();
    const kind = KIND[row.outcome] ?? "other";
    return (this.#kind === "all" || this.#kind === kind) &&
      (!words || [row.model, row.tenant, row.endpoint, row.outcome, String(row.status), row.key].some((text) => text?.toLowerCase().includes(words)));
  }

  #draw() {
    const fitting = this.#rows.filter((row) => this.#fits(row)).slice(0, SHOWN);
    this.#body.replaceChildren(...fitting.map((row) => this.#line(row)));
    this.#none();
  }

  #add(fresh) {
    const fitting = fresh.filter((row) => this.#fits(row));
    if (fitting.length) this.#body.querySelector(".none")?.remove();
    this.#body.prepend(...fitting.map((row) => this.#line(row, true)));
    while (this.#body.children.length > SHOWN) this.#body.lastElementChild.remove();
  }

  #none() {
    if (this.#body.children.length) return;
    this.#body.append(h("tr", { class: "none" }, h("td", { colspan: HEADINGS.length }, this.#rows.length ? "None of the last requests matches." : "No requests yet.")));
  }

  #line(row, fresh = false) {
    const saved = SERVED.includes(row.outcome);
    const value = KIND[row.outcome] === "failed" ? null : this.#unit === "usd" ? row.usd : row.cost;
    const text = value == null ? "–" : `${saved ? "+" : ""}${amount(value, this.#unit)}`;
    const cells = {
      time: clock(row.time), model: row.model || "–", tenant: row.tenant || "–", endpoint: row.endpoint || "–", status: String(row.status),
      ttfb: row.ttfb == null ? "–" : time(row.ttfb), seconds: time(row.seconds), worth: text,
      outcome: h("span", { class: `how ${row.outcome}` }, row.outcome),
    };
    if (row.key && (saved || row.outcome === "miss")) {
      cells.model = h("button", { type: "button", class: "link", "aria-haspopup": "dialog", on: { click: () => this.#open(row.key) } }, cells.model);
    }
    return h("tr", { data: { serial: row.serial }, class: `${fresh ? "fresh " : ""}${saved ? "saved" : ""}` }, HEADINGS.map(([name]) =>
      h("td", { class: `${name} ${SPARE.has(name) ? "spare" : ""} ${name === "status" && row.status >= 400 ? "wrong" : ""}` }, cells[name])));
  }
}
