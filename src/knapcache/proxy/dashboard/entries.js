// The view of entries, and the details of one. The server sorts, searches and pages, because there may be a million entries. The address has the
// selected model, tenant and tag: /dashboard/entries?model=gpt-4o.

import * as api from "./api.js";
import { confirm, copyable, openDrawer, toast } from "./dialogs.js";
import { byId, fact, h, replaceRows, setText } from "./dom.js";
import { age, amount, bytes, count, counted, digits, fractionalCount, moment, rate } from "./format.js";
import { goTo, refreshView, shown, summary } from "./frame.js";
import { noRequests } from "./welcome.js";

const PAGE = 20; // rows
const SEARCH_DELAY = 200; // ms after the last key press

const ENDPOINTS = { "chat/completions": "Chat", completions: "Completion", responses: "Response", embeddings: "Embedding", messages: "Messages" };
const TITLES = {
  request: "First words of the prompt; without content, its endpoint and when it was stored", value: "Requests × cost: what the requests for this entry would have cost without the cache",
  density: "Value divided by size. Entries with little value per MB are evicted first", requests: "As the policy counts them: older requests count less", per_day: "Requests per day since it was stored, from a day and ten requests on",
  cost: "What a miss costs", size: "Bytes charged for the entry, overhead included", age: "Time since the answer was fetched",
};

// name, heading, sort parameter or null, text of a cell, class that hides the column on small screens
const COLUMNS = [
  ["request", "Request", null, (row) => row.words || `${ENDPOINTS[row.endpoint] ?? row.endpoint ?? "Request"}, ${moment(Date.now() / 1000 - row.age)}`],
  ["model", "Model", null, (row) => row.model || "no model", "hide-small"],
  ["tenant", "Tenant", null, (row) => row.tenant || "–", "hide-small"],
  ["value", "Value", "value", (row, shown) => shown.answer(row, row.requests)],
  ["density", "Value per MB", null, (row, shown) => shown.answer(row, (1e6 * row.requests) / row.size), "hide-small"],
  ["requests", "Requests", "requests", (row) => fractionalCount(row.requests)],
  ["per_day", "Per day", "per_day", rate, "hide-small"],
  ["cost", "Cost", "cost", (row, shown) => shown.answer(row)],
  ["size", "Size", "size", (row) => bytes(row.size)],
  ["age", "Age", "age", (row) => age(row.age)],
];

/** A name that people can tell entries by: the first words of the request if they are shown, otherwise its origin. */
const entryName = (row) => row.words || `${row.model || "no model"} · ${row.key.slice(0, 8)} · ${age(row.age)} old`;

const entryCount = (number) => counted(number, "entry", "entries");

export function view() {
  const entries = new Entries();
  return (summary, slow) => entries.update(summary, slow);
}

class Entries {
  #page = null; #calls = 0; #sort = "value"; #descending = true; #offset = 0; #searchTimer = 0; #drawn = ""; #tag = ""; #address = null;

  constructor() {
    byId("entries-table").tHead.append(this.#head());
    byId("entries-table").tBodies[0].addEventListener("keydown", (event) => this.#moveFocus(event));
    byId("search").addEventListener("input", () => {
      clearTimeout(this.#searchTimer);
      this.#searchTimer = setTimeout(() => this.#goToOffset(0), SEARCH_DELAY);
    });
    for (const id of ["by-model", "by-tenant"]) byId(id).addEventListener("change", () => this.#filter());
    byId("by-tag").addEventListener("click", () => {
      this.#tag = "";
      this.#filter();
    });
    byId("previous").addEventListener("click", () => this.#goToOffset(this.#offset - PAGE));
    byId("next").addEventListener("click", () => this.#goToOffset(this.#offset + PAGE));
    byId("purge").addEventListener("click", () => this.#purge());
  }

  async update({ models, tenants }, slow) {
    const moved = location.search !== this.#address, given = new URLSearchParams((this.#address = location.search));
    for (const [field, all, rows] of [["model", "All models", models], ["tenant", "All tenants", tenants]]) {
      const select = byId(`by-${field}`), chosen = moved ? given.get(field) ?? "" : select.value;
      this.#setOptions(select, all, [...new Set([...rows.map((row) => row.name), chosen])]);
      select.value = chosen;
    }
    if (moved) {
      this.#tag = given.get("tag") ?? "";
      this.#offset = 0;
    }
    if (moved || (slow && !document.querySelector("dialog[open]"))) await this.refresh();
  }

  /** Show other entries, and put what selects them into the address. */
  #filter() {
    const query = new URLSearchParams(this.#selected());
    this.#address = query.size ? `?${query}` : "";
    history.replaceState(null, "", location.pathname + this.#address);
    this.#goToOffset(0);
  }

  /** The selected model, tenant and tag. */
  #selected() {
    const found = { model: byId("by-model").value, tenant: byId("by-tenant").value, tag: this.#tag };
    return Object.fromEntries(Object.entries(found).filter(([, value]) => value));
  }

  #setOptions(select, all, names) {
    const text = names.join("\n");
    if (select.dataset.names === text) return;
    select.dataset.names = text;
    select.replaceChildren(h("option", { value: "" }, all), ...names.filter(Boolean).map((name) => h("option", { value: name }, name)));
  }

  #goToOffset(offset) {
    this.#offset = Math.max(0, offset);
    return this.refresh().catch((error) => toast(error.message, "bad"));
  }

  #query() {
    const search = byId("search").value.trim();
    return { sort: this.#sort, descending: String(this.#descending), offset: this.#offset, limit: PAGE, ...(search && { search }), ...this.#selected() };
  }

  /** Fetch and draw the page. A response that a later call has overtaken is dropped. */
  async refresh() {
    const call = ++this.#calls;
    const found = await api.get("/entries", this.#query());
    if (call !== this.#calls) return;
    if (this.#offset && this.#offset >= found.total) {
      this.#offset = PAGE * Math.floor(Math.max(0, found.total - 1) / PAGE);
      return this.refresh();
    }
    this.#page = found;
    this.#draw();
  }

  #head() {
    return h("tr", {}, COLUMNS.map(([name, title, sort, , hidden]) =>
      h("th", { scope: "col", title: TITLES[name], class: `${name} ${hidden ?? ""}`, "aria-sort": sort && (sort === this.#sort ? "descending" : "none") },
        sort ? h("button", { type: "button", data: { sort }, on: { click: () => this.#sortBy(sort) } }, title, h("i", { "aria-hidden": "true" })) : title)));
  }

  #sortBy(sort) {
    this.#descending = sort === this.#sort ? !this.#descending : true;
    this.#sort = sort;
    for (const button of byId("entries-table").tHead.querySelectorAll("button")) {
      const active = button.dataset.sort === sort;
      button.parentElement.setAttribute("aria-sort", active ? (this.#descending ? "descending" : "ascending") : "none");
    }
    this.#goToOffset(0);
  }

  #draw() {
    const { total, rows: found } = this.#page;
    const filtered = byId("search").value.trim() || Object.keys(this.#selected()).length > 0;
    byId("by-tag").hidden = !this.#tag;
    setText("by-tag", `Tag ${this.#tag} ✕`);
    setText("entries-total", `${count(total)}${filtered ? " found" : ""}`);
    setText("page", total ? `${count(this.#offset + 1)}–${count(this.#offset + found.length)} of ${count(total)}` : "");
    byId("previous").disabled = this.#offset === 0;
    byId("next").disabled = this.#offset + found.length >= total;
    byId("purge").disabled = total === 0;
    this.#drawHint();
    setText("purge", this.#scope() ? `Purge ${this.#scope().name}…` : "Purge…");
    setText("entries-note", "Value = requests × cost of a miss. Entries with the least value per MB are evicted first.");
    const text = JSON.stringify([found, shown.id]);
    if (text === this.#drawn) return;
    this.#drawn = text;
    const highest = Math.max(...found.map((row) => row.value), Number.MIN_VALUE);
    replaceRows(byId("entries-table").tBodies[0], found.length
      ? found.map((row) => this.#row(row, highest))
      : [h("tr", { class: "empty" }, h("td", { colspan: COLUMNS.length }, filtered ? "No matching entries. Change or clear what you search for." : document.body.dataset.state === "empty" ? noRequests(" and send one: its answer is stored here.") : "No entries. The answers to the next requests are stored here."))]);
  }

  /** Say what can be searched, and how to see the words of prompts. */
  #drawHint() {
    const { content, searched, entries } = this.#page, hint = byId("entries-hint");
    byId("search").placeholder = content ? "Search words, key, tag" : "Search key, model, tag";
    const searching = content && byId("search").value.trim() && searched < entries;
    const off = api.session.role === "operator"
      ? ["Prompts are hidden. To see and search their first words, start the proxy with ", h("code", {}, "--set show_content=true"), " or set ", h("code", {}, "show_content = true"), " in the settings file."]
      : ["Only operators see the first words of prompts, if ", h("code", {}, "show_content"), " is on."];
    hint.replaceChildren(...(content ? searching ? [`Searched the words of the newest ${count(searched)} of ${count(entries)} entries so far.`] : [] : off));
    hint.hidden = !hint.childNodes.length;
  }

  #row(row, highest) {
    return h("tr", { data: { key: row.key }, on: { click: () => openEntry(row.key) } }, COLUMNS.map(([name, , , format, hidden]) => {
      const text = format(row, shown);
      const cell = h("td", { class: `${name} ${hidden ?? ""}` });
      if (name === "request") cell.append(h("button", { type: "button", class: "link", "aria-haspopup": "dialog", title: row.words ?? row.key }, text), h("small", {}, row.key.slice(0, 8)), ...(row.tags.length ? [h("div", { class: "tags" }, row.tags.map((tag) => h("span", { class: "tag" }, tag)))] : []));
      else if (name === "value") {
        const bar = h("b", {});
        bar.style.width = `${(100 * row.value) / highest}%`;
        cell.append(text, h("i", { class: "mini", "aria-hidden": "true" }, bar));
      } else cell.append(text);
      return cell;
    }));
  }

  #moveFocus(event) {
    const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    const to = step && event.target.closest("tr")?.[step]?.querySelector("button");
    if (!to) return;
    event.preventDefault();
    to.focus();
  }

  /** The condition of the purge button: the selected model, tenant and tag, or null. The API cannot purge by search text. */
  #scope() {
    const { tag, ...condition } = this.#selected(), name = Object.values(this.#selected()).join(" of ");
    if (tag) condition.tags = [tag];
    return name && !byId("search").value.trim() ? { condition, name } : null;
  }

  async #purge() {
    const scope = this.#scope();
    const ages = [["2592000", "30 days"], ["604800", "a week"], ["86400", "a day"], ["3600", "an hour"]];
    const select = h("select", { "aria-label": "Entries to purge" },
      scope && h("option", { value: "scope" }, `All entries of ${scope.name}`),
      ages.map(([seconds, words]) => h("option", { value: seconds }, `Entries older than ${words}`)),
      h("option", { value: "tags" }, "Entries with a tag"),
      h("option", { value: "system" }, "Entries with a system prompt"),
      h("option", { value: "all" }, "All entries"));
    const typed = h("input", { type: "text", autocomplete: "off", spellcheck: false });
    const hints = { tags: "Tags, separated by commas", system: "Digest of the system prompt, or its first digits" };
    const words = () => typed.value.split(",").map((word) => word.trim()).filter(Boolean);
    const conditions = {
      scope: () => scope.condition, tags: () => (words().length ? { tags: words() } : null),
      system: () => (words().length ? { system: words()[0].toLowerCase() } : null), all: () => ({ all: true }),
    };
    const condition = () => (conditions[select.value] ?? (() => ({ older_than: Number(select.value) })))();
    const preview = h("div", { class: "preview", role: "status" });
    let calls = 0;
    const show = async (button) => {
      const call = ++calls;
      button.disabled = true;
      setText(button, "Purge");
      typed.hidden = !(select.value in hints);
      for (const name of ["aria-label", "placeholder"]) typed.setAttribute(name, hints[select.value] ?? "");
      if (!condition()) return preview.replaceChildren();
      preview.replaceChildren(h("p", { class: "sub" }, "Counting…"));
      let content;
      try {
        const { preview: found } = await api.change("POST", "/purge", { ...condition(), dry_run: true });
        if (call !== calls) return; // another choice was made meanwhile
        content = this.#previewed(found);
        button.disabled = found.entries === 0;
        setText(button, found.entries ? `Purge ${entryCount(found.entries)}` : "Nothing to purge");
      } catch (error) {
        content = [h("p", { class: "error" }, `No preview: ${error.message}.`)];
      }
      preview.replaceChildren(...content);
    };
    const confirmed = await confirm("Purge entries", [h("label", { class: "field" }, select), h("label", { class: "field" }, typed), preview], "Purge", (button) => {
      select.addEventListener("change", () => show(button));
      typed.addEventListener("input", () => show(button));
      show(button);
    });
    if (confirmed) await removeEntries(() => api.change("POST", "/purge", condition()));
  }

  /** What a purge would remove: number, size, and the most valuable entries. */
  #previewed({ entries, bytes: size, rows }) {
    if (!entries) return [h("p", { class: "sub" }, "No entry meets this condition.")];
    const more = entries - rows.length;
    return [
      h("p", {}, h("b", {}, `${entryCount(entries)}, ${bytes(size)}`), ` would be removed.`),
      h("ul", { class: "rows" }, rows.map((row) => h("li", {},
        h("span", { class: "name" }, entryName(row)), h("span", { class: "amount" }, `${bytes(row.size)}, ${shown.answer(row, row.requests)}`)))),
      more > 0 && h("p", { class: "sub" }, `and ${entryCount(more)} of less value.`),
      h("p", { class: "sub" }, "Purged entries cannot be restored. The next request for one is a miss.")].filter(Boolean);
  }
}

// Details of one entry: its value, how that compares with the entries that are evicted first, and its content.

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
function comparison(own, ratio, evicting) {
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
async function removeEntries(call) {
  try {
    const { purged } = (await call()) ?? {};
    toast(purged === 0 ? "No entries to purge" : `Purged ${counted(purged ?? 1, "entry", "entries")}`);
    byId("drawer").close();
    await refreshView();
  } catch (error) {
    toast(`Purge failed: ${error.message}`, "bad");
  }
}
