// Who asks, and for what: models and tenants, by what was saved on each.

import { at, h, rows } from "./dom.js";
import { amount, bytes, count, percent } from "./format.js";
import { rateByCost, rateByRequests, without } from "./rows.js";

const MOST = 50; // of each; the rest shares a row

/** Those that cost most first. */
const ordered = (list) => [...list].sort((a, b) => without(b) - without(a) || b.requests - a.requests || (a.name < b.name ? -1 : 1)).slice(0, MOST);

function headings(table, names) {
  table.tHead.replaceChildren(h("tr", {}, names.map(([title, kind]) => h("th", { scope: "col", class: kind ?? "" }, title))));
}

export class People {
  #pick; #text = {};

  /** pick(which, name): show what is kept of it. */
  constructor(pick) {
    this.#pick = pick;
    headings(at("models"), [["Model", "model"], ["Requests"], ["Hit rate"], ["By money", "spare"], ["Spent", "least"], ["Saved"]]);
    headings(at("tenants"), [["Tenant", "model"], ["Requests"], ["Hit rate"], ["Room", "spare"], ["Spent", "least"], ["Saved"]]);
  }

  update({ models, tenants, unit, storage }) {
    this.#table("models", "model", models, unit, (row) => percent(rateByCost(row)));
    this.#table("tenants", "tenant", tenants, unit, (row) => this.#room(row, storage));
  }

  #room(row, storage) {
    const most = row.quota || storage.capacity;
    const bar = h("b", {});
    bar.style.width = `${most ? Math.min(100, (100 * (row.bytes ?? 0)) / most) : 0}%`;
    return [row.quota ? `${bytes(row.bytes)} of ${bytes(row.quota)}` : bytes(row.bytes), h("i", { class: "mini", "aria-hidden": "true" }, bar)];
  }

  #table(id, which, list, unit, fourth) {
    const text = JSON.stringify([list, unit]);
    if (this.#text[id] === text) return;
    this.#text[id] = text;
    rows(at(id).tBodies[0], list.length ? ordered(list).map((row) => h("tr", { data: { key: row.name } },
      h("td", { class: "model" }, h("button", { type: "button", class: "link", title: `What is kept of ${row.name}`, on: { click: () => this.#pick(which, row.name) } }, row.name || "–")),
      h("td", {}, count(row.requests)), h("td", {}, percent(rateByRequests(row))), h("td", { class: "spare" }, fourth(row)),
      h("td", { class: "least" }, amount(row.cost_spent, unit)), h("td", { class: "gain" }, amount(row.cost_saved, unit))))
      : [h("tr", { class: "none" }, h("td", { colspan: 6 }, "None yet."))]);
  }
}
