// What amounts are shown in, from a summary of the admin API (`prices` and `amounts`).
//
//     unit "usd"        dollars of answers whose price is known. They are never estimated
//     unit "seconds"    model time, summed over concurrent calls: no price is known, the model is free, or the cache saves time
//     unit "number"     a blend of dollars and seconds
//
// Costs of the policy contain estimates for answers without a price. If only some prices are known, a cost is shown as a
// share, and never as dollars.

import { amount, percent, time, usd } from "./format.js";

export class Shown {
  constructor({ prices, amounts, unit }) {
    this.prices = prices;
    this.asksPrices = unit.includes("usd"); // the setting cost; otherwise nobody misses a price
    this.simulated = prices === "simulated";
    this.unit = amounts.unit === "share" ? "usd" : amounts.unit;
    this.partial = amounts.unit === "share";
    this.factor = amounts.factor;
  }

  /** Text that tells whether a table drawn for another summary is still right. */
  get id() {
    return `${this.unit} ${this.partial} ${this.factor} ${this.simulated}`;
  }

  spent(row) {
    return { usd: row.usd_spent, seconds: row.seconds_spent, number: row.cost_spent }[this.unit] ?? 0;
  }

  saved(row) {
    return { usd: row.usd_saved, seconds: row.seconds_saved, number: row.cost_saved }[this.unit] ?? 0;
  }

  without(row) {
    return this.spent(row) + this.saved(row);
  }

  /** Share of the cost that the cache has saved. */
  rate(row) {
    return this.saved(row) / this.without(row);
  }

  /** Text of an amount in `unit`. */
  amount(value) {
    return amount(value, this.unit);
  }

  /** Text of a cost of the policy; `whole`: what a share is of. */
  cost(value, whole) {
    return this.partial ? percent(value / whole) : amount(value * this.factor, this.unit);
  }

  /** Text of a sum of a model or tenant: seconds if none of its answers has a price. name: "spent" or "saved". */
  sum(row, name) {
    if (this.unit !== "usd" || row.priced > 0 || !row.unpriced) return this.amount(this[name](row));
    return time(row[`seconds_${name}`]);
  }

  /** Text of what an answer cost, `times` times: dollars if its price is known, otherwise model time. */
  answer({ usd: dollars, seconds, cost }, times = 1) {
    if (this.unit === "number") return amount(cost * times, "number");
    return this.unit === "usd" && dollars != null ? usd(dollars * times) : time(seconds * times);
  }
}

// Formulas on usage totals of the admin API (its schema `Usage`).
//
//     fromCache        = hits + similar + coalesced + stale   requests whose answer was not paid for
//     hitRate          = fromCache / requests              requests: all of them, whatever came of them
//     saved by X       = would.none − would.X              X: a shadow policy on the same requests, with its own cache
//
// The cost of requests that no policy can cache is in every `would`, so it cancels in every difference.

const COUNTS = ["requests", "hits", "similar", "coalesced", "stale", "misses", "bypasses", "passthrough", "failed", "cost_spent", "cost_saved", "usd_spent", "usd_estimated", "usd_saved", "seconds_spent", "seconds_saved", "tokens_spent", "tokens_saved", "priced", "unpriced", "evictions"];

/** Add up rows. */
export function sum(list) {
  const total = Object.fromEntries(COUNTS.map((name) => [name, 0]));
  const policies = new Set(list.flatMap((row) => Object.keys(row.would ?? {})));
  total.would = Object.fromEntries([...policies].map((name) => [name, 0]));
  for (const row of list) {
    for (const name of COUNTS) total[name] += row[name] ?? 0;
    for (const name of policies) total.would[name] += row.would?.[name] ?? row.would?.none ?? 0; // unknown: it saved nothing
  }
  return total;
}

export const fromCache = (row) => (row.hits ?? 0) + (row.similar ?? 0) + (row.coalesced ?? 0) + (row.stale ?? 0);
export const hitRate = (row) => fromCache(row) / row.requests;

const NAMES = { lru: "LRU", gdsf: "GDSF without cost", "gdsf-cost": "GDSF" };

/** Display name of a policy or of a shadow ("lru", "adaptive@2x"). */
export function policyName(name) {
  const [base, factor] = name.split("@");
  if (factor) return factor === "2x" ? "Twice the capacity" : `${factor.replace("x", "")} × the capacity`;
  return NAMES[base] ?? base;
}

/** Savings of the live policy and of the shadows: [{name, label, saved}]. The live policy is first; larger caches are last. */
export function savingsByPolicy(row, live) {
  const none = row.would?.none;
  const others = Object.entries(row.would ?? {})
    .filter(([name]) => name !== "none" && none != null)
    .map(([name, cost]) => ({ name, label: policyName(name), saved: none - cost, larger: name.includes("@") }))
    .sort((a, b) => a.larger - b.larger || b.saved - a.saved);
  return [{ name: live, label: "knapcache", saved: row.cost_saved ?? 0, live: true }, ...others];
}
