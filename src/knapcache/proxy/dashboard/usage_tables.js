// Usage by model and by tenant.

import { h } from "./dom.js";
import { bytes, count, noun, percent, usd } from "./format.js";
import { shown } from "./frame.js";
import { TableCard } from "./table.js";
import { hitRate } from "./usage.js";
import { noRequests } from "./welcome.js";

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

export class UsageTables {
  #models; #tenants;

  /** root: the element to which both tables are added. */
  constructor(root) {
    const table = (id, title, first, fourth) => new TableCard(id, title,
      [[first, "model"], ["Requests"], ["Hit rate"], fourth, ["Spent", "hide-tiny"], ["Saved"]], { dollars: true, tall: true, empty: noRequests(".") });
    this.#models = table("models", "Models", "Model", ["By cost", "hide-small by-cost"]);
    this.#tenants = table("tenants", "Tenants", "Tenant", ["Size", "hide-small"]);
    root.append(h("div", { class: "twins" }, this.#models.root, this.#tenants.root));
  }

  update({ models, tenants, storage }) {
    const byCost = this.#models.head.querySelector(".by-cost");
    byCost.textContent = `By ${noun(shown.unit)}`;
    byCost.title = shown.unit === "seconds" ? "Share of the model time that the cache has saved" : "Share of the cost that the cache has saved";
    draw(this.#models, "model", models, (row) => percent(row.cost_saved / cost(row)));
    draw(this.#tenants, "tenant", tenants, (row) => size(row, storage));
  }
}

function price(row) {
  if (!PRICE[row.price] || !shown.asksPrices) return null;
  const [text, title] = PRICE[row.price];
  return h("small", { class: "price", title }, text);
}

function size(row, storage) {
  const limit = row.quota || storage.usable;
  const bar = h("b", {});
  bar.style.width = `${limit ? Math.min(100, (100 * (row.bytes ?? 0)) / limit) : 0}%`;
  return [row.quota ? `${bytes(row.bytes)} of ${bytes(row.quota)}` : bytes(row.bytes), h("i", { class: "mini", "aria-hidden": "true" }, bar)];
}

function draw(table, field, list, fourth) {
  table.draw(sorted(list), (row) => [
    h("td", { class: "model" }, row.name ? h("a", { class: "link", title: `Show the entries of ${row.name}`, href: `/dashboard/entries?${new URLSearchParams({ [field]: row.name })}` }, row.name) : NAMELESS[field], price(row)),
    h("td", {}, count(row.requests)), h("td", {}, percent(hitRate(row))), h("td", { class: "hide-small" }, fourth(row)),
    h("td", { class: "hide-tiny" }, shown.sum(row, "spent"), estimated(row)), h("td", { class: "saved", title: `${count(row.tokens_saved)} tokens` }, shown.sum(row, "saved"))],
  { key: (row) => row.name, also: shown.id });
}
