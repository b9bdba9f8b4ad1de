// The view of savings: by policy, by capacity, by model and by tenant.

import { byId, h, setText } from "./dom.js";
import { percent } from "./format.js";
import { shown } from "./frame.js";
import { History } from "./history.js";
import { since } from "./overview.js";
import { Plan } from "./plan.js";
import { savingsByPolicy, sum } from "./usage.js";
import { UsageTables } from "./usage_tables.js";
import { noRequests } from "./welcome.js";

export function view(root) {
  let live = "", points = null, drawnFor = "";
  const plan = new Plan(), tables = new UsageTables(root);
  const draw = () => {
    drawnFor = shown.id;
    drawPolicies(savingsByPolicy(sum(points), live), sum(points));
  };
  const history = new History(byId("policies-span"), (found) => {
    ({ points } = found);
    draw();
  });
  byId("policies-none").append(...noRequests(" and send the same request twice: the second answer is saved."));
  plan.resume().catch(() => {}); // an earlier plan is optional
  return async (summary, slow) => {
    live = summary.policy.name;
    drawMarginal(summary);
    tables.update(summary);
    if (points && drawnFor !== shown.id) draw();
    if (slow) await history.load();
  };
}

/** The price of a megabyte and the saving of twice the capacity: the same number, per megabyte and as a whole. */
function drawMarginal(summary) {
  const { all, doubling, price_per_mb: price, policy } = summary;
  const whole = all.would.none, per = (value) => shown.cost(value, whole);
  if (!doubling) {
    setText("marginal", "–");
    setText("doubling", `Not measured: the setting shadows does not contain ${policy.name}@2x.`);
  } else if (!all.evictions) {
    setText("marginal", "Not full yet");
    setText("doubling", "More capacity saves nothing: nothing was evicted so far.");
  } else {
    setText("marginal", `${per(price)}${shown.partial ? " of the cost" : ""}`);
    const range = doubling.per_day_low === null ? "" : ` (95 % range ${per(doubling.per_day_low)} to ${per(doubling.per_day_high)})`;
    const daily = doubling.per_day === null || shown.partial ? "" : ` Projected: ${per(doubling.per_day)} per day${range}.`;
    setText("doubling", doubling.saves > 0
      ? `Twice the capacity would have saved ${per(doubling.saves)} more since ${since(summary)}.${daily}`
      : `Twice the capacity would have saved nothing more since ${since(summary)}.`);
  }
  byId("marginal-unit").hidden = !doubling || !all.evictions;
}

/** Bars of what each policy saved. total: usage in the span. */
function drawPolicies(list, total) {
  const text = (saved) => shown.cost(saved, total.would.none);
  const highest = Math.max(...list.map((one) => one.saved), Number.MIN_VALUE);
  byId("bars").replaceChildren(...list.map((one) => {
    const bar = h("b", {});
    bar.style.width = `${(100 * Math.max(0, one.saved)) / highest}%`;
    return h("li", { class: one.live ? "live" : one.larger ? "larger" : "other" },
      h("span", { class: "name" }, one.label), h("span", { class: "amount" }, text(one.saved)), h("i", { "aria-hidden": "true" }, bar));
  }));
  byId("policies-note").hidden = list.length < 2;
  byId("policies-none").hidden = total.requests > 0;
  byId("policies-equal").hidden = total.evictions > 0 || list.length < 2 || !(list[0].saved > 0);
  const [live, ...others] = list;
  const differences = others.filter((one) => !one.larger).map((one) => {
    const more = live.saved - one.saved;
    if (Math.abs(more) <= 1e-9 * highest) return `as much as ${one.label}`;
    const share = one.saved > 0 ? ` (${percent(Math.abs(more) / one.saved)})` : "";
    return `${text(Math.abs(more))}${share} ${more > 0 ? "more" : "less"} than ${one.label}`;
  });
  setText("policies-sub", total.requests === 0 ? "" : list.length < 2 ? "No other policy was simulated in this time. Simulations begin when the policies are compiled, about a minute after the first start."
    : differences.length && highest > Number.MIN_VALUE && total.evictions > 0 ? `knapcache saved ${differences.join(" and ")} at the same capacity.` : "");
}
