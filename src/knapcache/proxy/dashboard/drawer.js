// Details of one entry: its value, how the value compares with that of the entries that are evicted first, and its content.

import * as api from "./api.js";
import { confirm, copyable, openDrawer, toast } from "./dialogs.js";
import { byId, fact, h } from "./dom.js";
import { age, amount, bytes, counted, digits, fractionalCount, moment, rate } from "./format.js";
import { goTo, refreshView, shown, summary } from "./frame.js";

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

/** Compare the value per MB of an entry with that of the least valuable tenth of the cache, which is evicted first. */
export function comparison(own, ratio, evicting) {
  if (!evicting || !Number.isFinite(ratio)) return `Value per MB: ${own}. Nothing was evicted yet.`;
  if (ratio < 1) return `Value per MB: ${own}, less than the least valuable tenth of the cache has. It is among the next entries to be evicted.`;
  return `Value per MB: ${own}, ${digits(Number(ratio.toPrecision(2)))} times that of the least valuable tenth of the cache, which is evicted first.`;
}

/** Show an entry. */
export async function openEntry(key) {
  let row;
  try {
    row = await api.get(`/entries/${key}`);
  } catch (error) {
    toast(error.status === 404 ? "No longer in the cache" : error.message, "bad");
    return;
  }
  const evicting = summary.all.evictions > 0, ratio = (1e6 * row.density) / summary.least_value_per_mb;
  openDrawer([null, row.words || row.model || "Entry"], [
    h("h3", {}, "Value"),
    h("p", { class: "formula" },
      h("span", {}, h("b", {}, fractionalCount(row.requests)), h("small", {}, row.requests === 1 ? "request" : "requests")), h("i", {}, "×"),
      h("span", {}, h("b", {}, shown.answer(row)), h("small", {}, "cost")), h("i", {}, "="),
      h("span", { class: "result" }, h("b", {}, shown.answer(row, row.requests)), h("small", {}, "value"))),
    shown.simulated && h("p", { class: "sub" }, "simulated prices"),
    evicting && ratio > 0 && Number.isFinite(ratio) && scale(ratio),
    h("p", { class: "sub" }, comparison(shown.answer(row, (1e6 * row.requests) / row.size), ratio, evicting)),
    h("dl", { class: "facts" },
      fact("Endpoint", row.endpoint || "–"), fact("Model", row.model || "–"),
      fact("Tenant", row.tenant || "–"), fact("Size", bytes(row.size)),
      fact("Tags", ...(row.tags.length ? row.tags.map(tagButton) : ["–"])),
      fact("System prompt", row.system ? h("code", { class: "key", title: "Its digest: the first 16 digits of SHA-256" }, row.system) : "–"),
      fact("Request rate", rate(row) === "–" ? "not known yet" : `${rate(row)} per day`),
      fact("Cost of a miss", [row.usd != null && amount(row.usd, "usd"), row.seconds != null && amount(row.seconds, "seconds")].filter(Boolean).join(" and ") || "–"),
      fact("Age", `${age(row.age)}, since ${moment(Date.now() / 1000 - row.age)}`),
      fact("Expires", row.expires_in == null ? "never" : row.expires_in <= 0 ? "now" : `in ${age(row.expires_in)}`),
      fact("Key", h("code", { class: "key" }, row.key))),
    row.request == null && row.answer == null
      ? h("p", { class: "sub quote" }, "Content is hidden. Operators see requests and answers here if the proxy is started with ", h("code", {}, "--set show_content=true"), " or ", h("code", {}, "show_content = true"), " is in the settings file.")
      : [["Request", row.request], ["Answer", row.answer]].filter(([, text]) => text != null).map(([name, text]) =>
        [h("h3", {}, name), copyable(pretty(text), name.toLowerCase())])],
  h("footer", { class: "foot operator" }, h("button", { type: "button", class: "danger", on: { click: () => purgeEntry(row) } }, "Purge this entry")));
}

/** A tag; a click shows the entries that have it. */
function tagButton(tag) {
  const show = () => {
    byId("drawer").close();
    goTo(`entries?${new URLSearchParams({ tag })}`);
  };
  return h("button", { type: "button", class: "link tag", title: "Show the entries with this tag", on: { click: show } }, tag);
}

/** The entry's value per MB as a multiple of that of the least valuable tenth, on a logarithmic scale. */
function scale(ratio) {
  const place = `${Math.max(2, Math.min(98, 50 + 12 * Math.log10(ratio)))}%`;
  const [mark, bar] = [h("b", {}), h("i", {})];
  mark.style.left = place;
  bar.style.width = place;
  return h("div", { class: "scale", "aria-hidden": "true" }, bar, h("em", {}, "evicted first"), mark);
}

async function purgeEntry(row) {
  const confirmed = await confirm("Purge this entry?", h("p", { class: "sub" },
    `The next request for it is a miss and costs ${shown.answer(row)}. Requests so far: ${fractionalCount(row.requests)}.`), "Purge");
  if (confirmed) await removeEntries(() => api.change("DELETE", `/entries/${row.key}`));
}

/** Run a call that removes entries, report their number and refresh the view. */
export async function removeEntries(call) {
  try {
    const { purged } = (await call()) ?? {};
    toast(purged === 0 ? "No entries to purge" : `Purged ${counted(purged ?? 1, "entry", "entries")}`);
    byId("drawer").close();
    await refreshView();
  } catch (error) {
    toast(`Purge failed: ${error.message}`, "bad");
  }
}
