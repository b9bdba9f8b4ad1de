// Details of one entry: its value, how the value compares with the marginal value of capacity, and its content.

import * as api from "./api.js";
import { closeOnOutsideClick, confirm, copyable, toast } from "./dialogs.js";
import { byId, h } from "./dom.js";
import { age, amount, bytes, digits, fractionalCount, moment, rate } from "./format.js";

const FULL = 0.9; // of the capacity: above this, new entries evict others

/** Indent JSON; return other text unchanged. A stored request starts with its endpoint and namespace, as `length:text,`
 *  each. They are left out. */
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

/** Compare the value per MB of an entry with the marginal value per MB of the cache. */
export function comparison(density, marginal, unit, full) {
  const own = `Value per MB: ${amount(1e6 * density, unit)}`;
  if (!full || !(marginal > 0)) return `${own}. The cache is not full, so nothing is evicted.`;
  const ratio = (1e6 * density) / marginal, least = amount(marginal, unit);
  if (ratio < 1) return `${own}, less than the cache's marginal value per MB (${least}). It is among the next entries to be evicted.`;
  return `${own}, ${digits(Number(ratio.toPrecision(2)))} times the cache's marginal value per MB (${least}).`;
}

export class Drawer {
  #dialog = byId("drawer"); #entries; #unit = "usd"; #marginal = 0; #full = false;

  /** entries: the table to refresh after a purge. */
  constructor(entries) {
    this.#entries = entries;
    closeOnOutsideClick(this.#dialog);
  }

  update(summary) {
    this.#unit = summary.unit;
    this.#marginal = summary.price_per_mb;
    this.#full = summary.storage.bytes > FULL * summary.storage.capacity;
  }

  async open(key) {
    let row;
    try {
      row = await api.get(`/entries/${key}`);
    } catch (error) {
      toast(error.status === 404 ? "No longer in the cache" : error.message, "bad");
      return;
    }
    const unit = this.#unit;
    this.#dialog.replaceChildren(
      h("header", { class: "head" }, h("h2", { id: "drawer-title" }, row.words || row.model || "Entry"),
        h("button", { type: "button", class: "quiet icon", "aria-label": "Close", autofocus: true, on: { click: () => this.#dialog.close() } }, "✕")),
      h("div", { class: "sheet" },
        h("h3", {}, "Value"),
        h("p", { class: "formula" },
          h("span", {}, h("b", {}, fractionalCount(row.requests)), h("small", {}, row.requests === 1 ? "request" : "requests")), h("i", {}, "×"),
          h("span", {}, h("b", {}, amount(row.cost, unit)), h("small", {}, "cost")), h("i", {}, "="),
          h("span", { class: "result" }, h("b", {}, amount(row.value, unit)), h("small", {}, "value"))),
        this.#scale(1e6 * row.density),
        h("p", { class: "sub" }, comparison(row.density, this.#marginal, unit, this.#full)),
        h("dl", { class: "facts" },
          fact("Endpoint", row.endpoint || "–"), fact("Model", row.model || "–"),
          fact("Tenant", row.tenant || "–"), fact("Size", bytes(row.size)),
          fact("Request rate", rate(row) === "–" ? "not known yet" : `${rate(row)} per day`),
          fact("Cost of a miss", [row.usd != null && amount(row.usd, "usd"), row.seconds != null && amount(row.seconds, "seconds")].filter(Boolean).join(" and ") || "–"),
          fact("Age", `${age(row.age)}, since ${moment(Date.now() / 1000 - row.age)}`),
          fact("Expires", row.expires_in == null ? "never" : row.expires_in <= 0 ? "now" : `in ${age(row.expires_in)}`),
          fact("Key", h("code", { class: "key" }, row.key))),
        row.request == null && row.answer == null
          ? h("p", { class: "sub quote" }, "Content is hidden. Operators see requests and answers here if the proxy is started with ", h("code", {}, "--set show_content=true"), " or ", h("code", {}, "show_content = true"), " is in the settings file.")
          : [["Request", row.request], ["Answer", row.answer]].filter(([, text]) => text != null).map(([name, text]) =>
            [h("h3", {}, name), copyable(pretty(text), name.toLowerCase())])),
      h("footer", { class: "foot operator" }, h("button", { type: "button", class: "danger", on: { click: () => this.#remove(row) } }, "Purge this entry")));
    if (!this.#dialog.open) this.#dialog.showModal();
    this.#dialog.scrollTop = 0;
  }

  /** The entry's value per MB beside the cache's marginal value per MB, on a logarithmic scale. */
  #scale(density) {
    const marginal = this.#marginal;
    if (!(marginal > 0) || !(density > 0)) return null;
    const place = (value) => `${Math.max(2, Math.min(98, 50 + 12 * Math.log10(value / marginal)))}%`;
    const [mark, bar] = [h("b", {}), h("i", {})];
    mark.style.left = place(density);
    bar.style.width = place(density);
    return h("div", { class: "scale", "aria-hidden": "true" }, bar, h("em", {}, "marginal value"), mark);
  }

  async #remove(row) {
    const confirmed = await confirm("Purge this entry?", h("p", { class: "sub" },
      `The next request for it is a miss and costs ${amount(row.cost, this.#unit)}. Requests so far: ${fractionalCount(row.requests)}.`), "Purge");
    if (confirmed && (await this.#entries.remove(() => api.change("DELETE", `/entries/${row.key}`)))) this.#dialog.close();
  }
}
