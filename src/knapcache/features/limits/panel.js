// Limits of tenants and of all callers together, and what is used of them.

import * as api from "/dashboard/api.js";
import { addStyles, figure, h, setText } from "/dashboard/dom.js";
import { age, moment, percent, tokens, usd } from "/dashboard/format.js";
import { TableCard } from "/dashboard/table.js";

const HEADINGS = [["Limit of", "model"], ["Limit", "model"], ["Used", "used"], ["Allowed"], ["Resets in", "hide-small"]];
const WARN = [[1, "bad"], [0.8, "warn"]]; // the shares at which the log warns, too, and the color of the bar
const NAMES = {
  usd_per_day: "dollars per day", usd_per_month: "dollars per month", requests_per_minute: "requests per minute",
  tokens_per_minute: "tokens per minute", concurrent: "concurrent calls",
};

addStyles(`
  #limits td.used { min-width: 150px; }
  .limit-bar { display: flex; height: 5px; margin-top: 3px; }
  .limit-bar b { background: var(--spent); border-radius: 0; }
  .limit-bar.warn b { background: var(--warn); }
  .limit-bar.bad b { background: var(--bad); }
  .limit-bar b.reserved { opacity: 0.4; }
  @media (max-width: 760px) {
    #limits-table :is(th, td) { white-space: normal; }
    #limits-table td.model { max-width: none; overflow-wrap: anywhere; }
    #limits td.used { min-width: 90px; white-space: nowrap; }
    #limits-table :is(th, td):nth-child(4) { padding-right: 14px; }
  }`);

const amount = (limit, value) => (limit.startsWith("usd") ? usd(value) : tokens(Math.round(value)));
const owner = ({ scope, name }) => (scope === "all" ? "all callers" : name);
const color = ({ ratio }) => WARN.find(([share]) => ratio >= share)?.[1] ?? "";

function bar(row) {
  const used = h("b", {}), reserved = h("b", { class: "reserved" });
  used.style.width = `${Math.min(100, 100 * row.ratio)}%`;
  reserved.style.width = `${Math.min(100 - Math.min(100, 100 * row.ratio), (100 * row.reserved) / row.allowed)}%`;
  return h("i", { class: `mini limit-bar ${color(row)}`, "aria-hidden": "true" }, used, reserved);
}

/** The limit that is nearest to its end. */
export function card(root) {
  const show = figure(root);
  return async () => {
    const { rows } = await api.get("/limits");
    const [first] = rows.sort((a, b) => b.ratio - a.ratio);
    if (first) show(percent(first.ratio), `of the ${NAMES[first.limit] ?? first.limit} of ${owner(first)}, the limit that is used most`, color(first));
    else show("–", "No limits.");
  };
}

export function view(root) {
  const table = new TableCard("limits", "Limits", HEADINGS, { dollars: true, tall: true });
  root.append(table.root);
  return async ({ now }) => {
    const { rows, alone } = await api.get("/limits");
    table.root.classList.toggle("no-dollars", !rows.some((row) => row.limit.startsWith("usd")));
    setText(table.note, alone ? `Each process counts for itself: ${alone}` : "");
    table.draw(rows, (row) => [
      h("td", { class: "model" }, owner(row)), h("td", { class: "model", title: row.limit }, NAMES[row.limit] ?? row.limit),
      h("td", { class: "used", title: row.reserved ? `${amount(row.limit, row.reserved)} more reserved for calls in flight` : "" }, `${amount(row.limit, row.used)} (${percent(row.ratio)})`, bar(row)),
      h("td", {}, amount(row.limit, row.allowed)),
      h("td", { class: "hide-small", title: row.resets_at ? moment(row.resets_at) : "" }, row.resets_at ? age(row.resets_at - now) : "–")],
    { key: (row) => `${row.scope} ${row.name} ${row.limit}`, also: rows.map((row) => row.resets_at && age(row.resets_at - now)) });
  };
}
