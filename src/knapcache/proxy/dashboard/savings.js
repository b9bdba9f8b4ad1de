// The view of savings: by policy, by capacity, by model and by tenant.

import { hitRate, savingsByPolicy, sum } from "./amounts.js";
import { History } from "./charts.js";
import { byId, h, setText } from "./dom.js";
import { bytes, count, noun, percent, usd } from "./format.js";
import { shown } from "./frame.js";
import { since } from "./overview.js";
import { Plan } from "./plan.js";
import { TableCard } from "./table.js";
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
  ? h("small", { title: "Calls without a usage that can be billed. Limits count this estimate for them" }, `and ${usd(row.usd_estimated)} estimated`) : null;

/** The tables of models and tenants. */
const usageTable = (id, title, first, fourth) => new TableCard(id, title,
  [[first, "model"], ["Requests"], ["Hit rate"], fourth, ["Spent", "hide-tiny"], ["Saved"]], { dollars: true, tall: true, empty: noRequests(".") });

export function view(root) {
  let live = "", points = null, drawnFor = "";
  const plan = new Plan(), models = usageTable("models", "Models", "Model", ["", "hide-small"]), tenants = usageTable("tenants", "Tenants", "Tenant", ["Size", "hide-small"]);
  root.append(h("div", { class: "twins" }, models.root, tenants.root));
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
    setText("policies-sample", estimateNote(summary.policy));
    drawMarginal(summary);
    setText(models.head.querySelector(".hide-small"), `By ${noun(shown.unit)}`);
    drawUsage(models, "model", summary.models, (row) => percent(row.cost_saved / cost(row)));
    drawUsage(tenants, "tenant", summary.tenants, (row) => size(row, summary.storage));
    if (points && drawnFor !== shown.id) draw();
    if (slow) await history.load();
  };
}

/** How much of the traffic the simulated policies have seen. */
const estimateNote = (policy) => policy.shadow_rate > 1 ? ` Estimated from 1 key in ${policy.shadow_rate}.` : "";

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
      ? `Twice the capacity would have saved ${per(doubling.saves)} more since ${since(summary)}.${daily}${estimateNote(policy)}`
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

function price(row) {
  if (!PRICE[row.price] || !shown.asksPrices) return null;
  const [text, title] = PRICE[row.price];
  return h("small", { title }, text);
}

function size(row, storage) {
  const limit = row.quota || storage.usable;
  const bar = h("b", {});
  bar.style.width = `${limit ? Math.min(100, (100 * (row.bytes ?? 0)) / limit) : 0}%`;
  return [row.quota ? `${bytes(row.bytes)} of ${bytes(row.quota)}` : bytes(row.bytes), h("i", { class: "mini", "aria-hidden": "true" }, bar)];
}

function drawUsage(table, field, list, fourth) {
  table.draw(sorted(list), (row) => [
    h("td", { class: "model" }, row.name ? h("a", { class: "link", title: `Show the entries of ${row.name}`, href: `/dashboard/entries?${new URLSearchParams({ [field]: row.name })}` }, row.name) : NAMELESS[field], price(row)),
    h("td", {}, count(row.requests)), h("td", {}, percent(hitRate(row))), h("td", { class: "hide-small" }, fourth(row)),
    h("td", { class: "hide-tiny" }, shown.sum(row, "spent"), estimated(row)), h("td", { class: "saved", title: `${count(row.tokens_saved)} tokens` }, shown.sum(row, "saved"))],
  { key: (row) => row.name, also: shown.id });
}
