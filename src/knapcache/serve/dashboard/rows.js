// What a row of the admin API says, in the words of this page.
//
//     served   = hits + coalesced + stale                  answered without a call of their own
//     without  = cost_spent + cost_saved                   what the same answers cost without a cache
//     saved by X = would.none − would.X                    X: another policy on the same requests, with its own cache
//
// What no cache could have answered cost everybody the same: it is in every `would`, and in no difference of two.

const COUNTS = ["requests", "hits", "coalesced", "stale", "misses", "bypasses", "passthrough", "failed", "cost_spent", "cost_saved", "usd_spent", "usd_saved", "seconds_spent", "seconds_saved"];

/** The sum of rows. */
export function sum(list) {
  const total = Object.fromEntries(COUNTS.map((name) => [name, 0]));
  total.would = {};
  for (const row of list) {
    for (const name of COUNTS) total[name] += row[name] ?? 0;
    for (const [name, cost] of Object.entries(row.would ?? {})) total.would[name] = (total.would[name] ?? 0) + cost;
  }
  return total;
}

export const served = (row) => (row.hits ?? 0) + (row.coalesced ?? 0) + (row.stale ?? 0);
/** Requests that were answered and could have been a hit, or were. */
export const answered = (row) => served(row) + (row.misses ?? 0) + (row.bypasses ?? 0);
export const without = (row) => (row.cost_spent ?? 0) + (row.cost_saved ?? 0);
export const rateByRequests = (row) => served(row) / answered(row);
export const rateByCost = (row) => (row.cost_saved ?? 0) / without(row);

const NAMES = { lru: "LRU", gdsf: "GDSF, blind to cost", "gdsf-cost": "GDSF" };

/** A policy's name for people. */
export function policyName(name) {
  const [base, times] = name.split("@");
  if (times) return times === "2x" ? "Twice the room" : `${times.replace("x", "")} × the room`;
  return NAMES[base] ?? base;
}

/** Who would have saved how much: [{name, label, saved}], ours first, then by `would`; more room last. */
export function rivals(row, own) {
  const none = row.would?.none;
  const others = Object.entries(row.would ?? {})
    .filter(([name]) => name !== "none" && none != null)
    .map(([name, cost]) => ({ name, label: policyName(name), saved: none - cost, roomier: name.includes("@") }))
    .sort((a, b) => a.roomier - b.roomier || b.saved - a.saved);
  return [{ name: own, label: "knapcache", saved: row.cost_saved ?? 0, ours: true }, ...others];
}
