// Usage by model and by tenant.

import { byId, h, replaceRows } from "./dom.js";
import { amount, bytes, count, percent } from "./format.js";
import { costWithoutCache, hitRate, hitRateByCost } from "./usage.js";

const MAX_ROWS = 50; // per table; the server sums up the others in one row

/** Highest cost without a cache first. */
const sorted = (list) => [...list].sort((a, b) => costWithoutCache(b) - costWithoutCache(a) || b.requests - a.requests || (a.name < b.name ? -1 : 1)).slice(0, MAX_ROWS);

function headings(table, names) {
  table.tHead.replaceChildren(h("tr", {}, names.map(([title, kind]) => h("th", { scope: "col", class: kind ?? "" }, title))));
}

export class UsageTables {
  #select; #drawn = {};

  /** select(field, name): shows the entries of a model or tenant. */
  constructor(select) {
    this.#select = select;
    headings(byId("models"), [["Model", "model"], ["Requests"], ["Hit rate"], ["By cost", "hide-small"], ["Spent", "hide-tiny"], ["Saved"]]);
    headings(byId("tenants"), [["Tenant", "model"], ["Requests"], ["Hit rate"], ["Size", "hide-small"], ["Spent", "hide-tiny"], ["Saved"]]);
  }

  update({ models, tenants, unit, storage }) {
    this.#table("models", "model", models, unit, (row) => percent(hitRateByCost(row)));
    this.#table("tenants", "tenant", tenants, unit, (row) => this.#size(row, storage));
  }

  #size(row, storage) {
    const limit = row.quota || storage.capacity;
    const bar = h("b", {});
    bar.style.width = `${limit ? Math.min(100, (100 * (row.bytes ?? 0)) / limit) : 0}%`;
    return [row.quota ? `${bytes(row.bytes)} of ${bytes(row.quota)}` : bytes(row.bytes), h("i", { class: "mini", "aria-hidden": "true" }, bar)];
  }

  #table(id, field, list, unit, fourth) {
    const text = JSON.stringify([list, unit]);
    if (this.#drawn[id] === text) return;
    this.#drawn[id] = text;
    replaceRows(byId(id).tBodies[0], list.length ? sorted(list).map((row) => h("tr", { data: { key: row.name } },
      h("td", { class: "model" }, h("button", { type: "button", class: "link", title: `Show the entries of ${row.name}`, on: { click: () => this.#select(field, row.name) } }, row.name || "–")),
      h("td", {}, count(row.requests)), h("td", {}, percent(hitRate(row))), h("td", { class: "hide-small" }, fourth(row)),
      h("td", { class: "hide-tiny" }, amount(row.cost_spent, unit)), h("td", { class: "saved" }, amount(row.cost_saved, unit))))
      : [h("tr", { class: "empty" }, h("td", { colspan: 6 }, "No requests yet."))]);
  }
}
