// Usage by model and by tenant.

import { byId, h, replaceRows } from "./dom.js";
import { Shown } from "./amounts.js";
import { bytes, count, noun, percent, usd } from "./format.js";
import { hitRate } from "./usage.js";

const MAX_ROWS = 50; // per table; the server sums up the others in one row

const NAMELESS = { model: "no model named", tenant: "not identified" }; // of requests that were rejected
const PRICE = {
  free: ["free", "It runs on this machine: savings are in seconds and tokens"],
  unknown: ["no price known", "Savings are in seconds and tokens. The setting prices can set a price"],
  mixed: ["price of some answers not known", "Dollars are of the answers whose price is known"],
  simulated: ["simulated price", "It runs on this machine. Its price is made up, in the setting prices"],
};

/** Highest cost without a cache first. */
const cost = (row) => row.cost_spent + row.cost_saved;
const sorted = (list) => [...list].sort((a, b) => cost(b) - cost(a) || b.requests - a.requests || (a.name < b.name ? -1 : 1)).slice(0, MAX_ROWS);

/** Dollars that limits count in addition, because the cost of some calls is not known. */
const estimated = (row) => row.usd_estimated > 0
  ? h("small", { class: "price", title: "Calls without a usage that can be billed. Limits count this estimate for them" }, `and ${usd(row.usd_estimated)} estimated`) : null;

function headings(table, names) {
  table.tHead.replaceChildren(h("tr", {}, names.map(([title, kind]) => h("th", { scope: "col", class: kind ?? "" }, title))));
}

export class UsageTables {
  #select; #drawn = {};

  /** select(field, name): shows the entries of a model or tenant. */
  constructor(select) {
    this.#select = select;
    headings(byId("models"), [["Model", "model"], ["Requests"], ["Hit rate"], ["By cost", "hide-small by-cost"], ["Spent", "hide-tiny"], ["Saved"]]);
    headings(byId("tenants"), [["Tenant", "model"], ["Requests"], ["Hit rate"], ["Size", "hide-small"], ["Spent", "hide-tiny"], ["Saved"]]);
  }

  update(summary) {
    const { models, tenants, storage } = summary, shown = new Shown(summary);
    const byCost = byId("models").tHead.querySelector(".by-cost");
    byCost.textContent = `By ${noun(shown.unit)}`;
    byCost.title = shown.unit === "seconds" ? "Share of the model time that the cache has saved" : "Share of the cost that the cache has saved";
    this.#table("models", "model", models, shown, (row) => percent(row.cost_saved / cost(row)));
    this.#table("tenants", "tenant", tenants, shown, (row) => this.#size(row, storage));
  }

  #price(row, shown) {
    if (!PRICE[row.price] || !shown.asksPrices) return null;
    const [text, title] = PRICE[row.price];
    return h("small", { class: "price", title }, text);
  }

  #size(row, storage) {
    const limit = row.quota || storage.usable;
    const bar = h("b", {});
    bar.style.width = `${limit ? Math.min(100, (100 * (row.bytes ?? 0)) / limit) : 0}%`;
    return [row.quota ? `${bytes(row.bytes)} of ${bytes(row.quota)}` : bytes(row.bytes), h("i", { class: "mini", "aria-hidden": "true" }, bar)];
  }

  #table(id, field, list, shown, fourth) {
    const text = JSON.stringify([list, shown.id]);
    if (this.#drawn[id] === text) return;
    this.#drawn[id] = text;
    replaceRows(byId(id).tBodies[0], list.length ? sorted(list).map((row) => h("tr", { data: { key: row.name } },
      h("td", { class: "model" }, h("button", { type: "button", class: "link", title: `Show the entries of ${row.name || NAMELESS[field]}`, on: { click: () => this.#select(field, row.name) } }, row.name || NAMELESS[field]), this.#price(row, shown)),
      h("td", {}, count(row.requests)), h("td", {}, percent(hitRate(row))), h("td", { class: "hide-small" }, fourth(row)),
      h("td", { class: "hide-tiny" }, shown.sum(row, "spent"), estimated(row)), h("td", { class: "saved", title: `${count(row.tokens_saved)} tokens` }, shown.sum(row, "saved"))))
      : [h("tr", { class: "empty" }, h("td", { colspan: 6 }, "No requests yet."))]);
  }
}
