// Why one answer is kept: the sum behind its value, beside the price of room.

import * as api from "./api.js";
import { at, h } from "./dom.js";
import { age, amount, bytes, digits, moment, often, rate } from "./format.js";
import { closesOutside, confirm, copyable, toast } from "./notes.js";

const FULL = 0.9; // of the budget: from here on answers have to leave for others

/** JSON in lines, anything else as it is. What was asked is kept with its endpoint and namespace before it, as
 *  `length:text,` each; the reader wants the request. */
function pretty(text) {
  let rest = text;
  for (let found; (found = /^(\d+):/.exec(rest)); ) rest = rest.slice(found[0].length + Number(found[1]) + 1);
  try {
    return JSON.stringify(JSON.parse(rest), null, 2);
  } catch {
    return text;
  }
}

const fact = (name, ...value) => h("div", {}, h("dt", {}, name), h("dd", {}, ...value));

/** The sentence that says why. */
export function because(density, price, unit, full) {
  const own = amount(1e6 * density, unit);
  if (!full || !(price > 0)) return `It has earned ${own} for each megabyte it takes. There is still room, so all is kept.`;
  const times = (1e6 * density) / price;
  if (times < 1) return `It has earned ${own} for each megabyte it takes, less than the ${amount(price, unit)} that room is worth: it goes when room is needed.`;
  return `It has earned ${own} for each megabyte it takes, ${digits(Number(times.toPrecision(2)))} times the ${amount(price, unit)} that room is worth: it stays.`;
}

export class Drawer {
  #dialog = at("drawer"); #entries; #unit = "usd"; #price = 0; #full = false;

  /** entries: the table, which is told when one is removed. */
  constructor(entries) {
    this.#entries = entries;
    closesOutside(this.#dialog);
  }

  update(summary) {
    this.#unit = summary.unit;
    this.#price = summary.price_per_mb;
    this.#full = summary.storage.bytes > FULL * summary.storage.capacity;
  }

  async open(key) {
    let row;
    try {
      row = await api.get(`/entries/${key}`);
    } catch (error) {
      toast(error.status === 404 ? "No longer kept" : error.message, "bad");
      return;
    }
    const unit = this.#unit;
    this.#dialog.replaceChildren(
      h("header", { class: "head" }, h("h2", { id: "drawer-title" }, row.model || "Answer"),
        h("button", { type: "button", class: "quiet icon", "aria-label": "Close", autofocus: true, on: { click: () => this.#dialog.close() } }, "✕")),
      h("div", { class: "sheet" },
        h("h3", {}, "Why it is kept"),
        h("p", { class: "sum" },
          h("span", {}, h("b", {}, often(row.requests)), h("small", {}, row.requests === 1 ? "request" : "requests")), h("i", {}, "×"),
          h("span", {}, h("b", {}, amount(row.cost, unit)), h("small", {}, "cost")), h("i", {}, "="),
          h("span", { class: "result" }, h("b", {}, amount(row.value, unit)), h("small", {}, "value"))),
        this.#scale(1e6 * row.density),
        h("p", { class: "sub" }, because(row.density, this.#price, unit, this.#full)),
        h("dl", { class: "facts" },
          fact("Tenant", row.tenant || "–"), fact("Size", bytes(row.size)),
          fact("Rate", rate(row) === "–" ? "too new to say" : `${rate(row)} a day`),
          fact("Cost", [row.usd != null && amount(row.usd, "usd"), row.seconds != null && amount(row.seconds, "seconds")].filter(Boolean).join(" and ") || "–"),
          fact("Age", `${age(row.age)}, since ${moment(Date.now() / 1000 - row.age)}`),
          fact("Expires", row.expires_in == null ? "never" : row.expires_in <= 0 ? "now" : `in ${age(row.expires_in)}`),
          fact("Key", h("code", { class: "key" }, row.key))),
        row.request == null && row.answer == null
          ? h("p", { class: "sub quote" }, "Texts are not shown. Start the proxy with ", h("code", {}, "show_content"), " to read requests and answers here.")
          : [["Request", row.request], ["Answer", row.answer]].filter(([, text]) => text != null).map(([name, text]) =>
            [h("h3", {}, name), copyable(pretty(text), name.toLowerCase())])),
      h("footer", { class: "foot" }, h("button", { type: "button", class: "danger", on: { click: () => this.#remove(row) } }, "Purge this answer")));
    if (!this.#dialog.open) this.#dialog.showModal();
    this.#dialog.scrollTop = 0;
  }

  /** Its value per MB beside the price of one, on a scale of powers of ten. */
  #scale(density) {
    const price = this.#price;
    if (!(price > 0) || !(density > 0)) return null;
    const place = (value) => `${Math.max(2, Math.min(98, 50 + 12 * Math.log10(value / price)))}%`;
    const [mark, bar] = [h("b", {}), h("i", {})];
    mark.style.left = place(density);
    bar.style.width = place(density);
    return h("div", { class: "against", "aria-hidden": "true" }, bar, h("em", {}, "price of room"), mark);
  }

  async #remove(row) {
    const sure = await confirm("Purge this answer?", h("p", { class: "sub" },
      `It costs ${amount(row.cost, this.#unit)} when it is asked for again. So far it was asked for ${often(row.requests)} times.`), "Purge");
    if (sure && (await this.#entries.remove(() => api.change("DELETE", `/entries/${row.key}`)))) this.#dialog.close();
  }
}
