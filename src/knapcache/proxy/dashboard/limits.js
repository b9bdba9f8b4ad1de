// Limits of tenants and of all callers together, and what is used of them. Without limits the card is hidden.

import * as api from "./api.js";
import { byId, h, replaceRows, setText } from "./dom.js";
import { age, moment, percent, tokens, usd } from "./format.js";

const HEADINGS = [["Limit of", "model"], ["Limit", "model"], ["Used", "used"], ["Allowed"], ["Resets in", "hide-small"]];
const WARN = [[1, "bad"], [0.8, "warn"]]; // the shares at which the log warns, too, and the color of the bar
const NAMES = {
  usd_per_day: "dollars per day", usd_per_month: "dollars per month", requests_per_minute: "requests per minute",
  tokens_per_minute: "tokens per minute", concurrent: "concurrent calls",
};

const amount = (limit, value) => (limit.startsWith("usd") ? usd(value) : tokens(Math.round(value)));

function bar(row) {
  const used = h("b", {}), reserved = h("b", { class: "reserved" });
  used.style.width = `${Math.min(100, 100 * row.ratio)}%`;
  reserved.style.width = `${Math.min(100 - Math.min(100, 100 * row.ratio), (100 * row.reserved) / row.allowed)}%`;
  const [, color] = WARN.find(([share]) => row.ratio >= share) ?? [0, ""];
  return h("i", { class: `mini limit-bar ${color}`, "aria-hidden": "true" }, used, reserved);
}

export class Limits {
  #drawn = "";

  constructor() {
    byId("limits-table").tHead.append(h("tr", {}, HEADINGS.map(([title, kind]) => h("th", { scope: "col", class: kind ?? "" }, title))));
  }

  async refresh(now) {
    const { rows, alone } = await api.get("/limits");
    byId("limits").hidden = rows.length === 0;
    byId("limits").classList.toggle("no-dollars", !rows.some((row) => row.limit.startsWith("usd")));
    setText("limits-note", alone ? `Each process counts for itself: ${alone}` : "");
    const text = JSON.stringify([rows, rows.map((row) => row.resets_at && age(row.resets_at - now))]);
    if (text === this.#drawn) return;
    this.#drawn = text;
    replaceRows(byId("limits-table").tBodies[0], rows.map((row) => h("tr", { data: { key: `${row.scope} ${row.name} ${row.limit}` } },
      h("td", { class: "model" }, row.scope === "all" ? "all callers" : row.name),
      h("td", { class: "model", title: row.limit }, NAMES[row.limit] ?? row.limit),
      h("td", { class: "used", title: row.reserved ? `${amount(row.limit, row.reserved)} more reserved for calls in flight` : "" },
        `${amount(row.limit, row.used)} (${percent(row.ratio)})`, bar(row)),
      h("td", {}, amount(row.limit, row.allowed)),
      h("td", { class: "hide-small", title: row.resets_at ? moment(row.resets_at) : "" }, row.resets_at ? age(row.resets_at - now) : "–"))));
  }
}
