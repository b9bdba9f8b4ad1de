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
