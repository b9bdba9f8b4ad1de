// What is kept: a table that the server sorts, searches and pages, as there may be a million answers.

import * as api from "./api.js";
import { at, h, put, rows } from "./dom.js";
import { age, amount, bytes, count, often, rate } from "./format.js";
import { confirm, toast } from "./notes.js";

const PAGE = 20;
const TYPING = 200; // ms of silence before a search is sent

// name, heading, what the server sorts by, what a cell says, and whether it may go on a phone
const COLUMNS = [
  ["model", "Model", null, (row) => row.model || "–"],
  ["tenant", "Tenant", null, (row) => row.tenant || "–", "spare"],
  ["value", "Value", "value", (row, unit) => amount(row.value, unit)],
  ["density", "Value per MB", null, (row, unit) => amount(1e6 * row.density, unit), "spare"],
  ["requests", "Requests", "requests", (row) => often(row.requests)],
  ["per_day", "Per day", "per_day", rate, "spare"],
  ["cost", "Cost", "cost", (row, unit) => amount(row.cost, unit)],
  ["size", "Size", "size", (row) => bytes(row.size)],
  ["age", "Age", "age", (row) => age(row.age)],
];

export class Entries {
  #unit = "usd"; #open; #shown = null; #asked = 0; #sort = "value"; #down = true; #offset = 0; #typing = 0; #text = "";

  /** open(key): show one of them. */
  constructor(open) {
    this.#open = open;
    at("entries-table").tHead.append(this.#head());
    at("entries-table").tBodies[0].addEventListener("keydown", (event) => this.#arrow(event));
    at("search").addEventListener("input", () => {
      clearTimeout(this.#typing);
      this.#typing = setTimeout(() => this.#from(0), TYPING);
    });
    for (const id of ["by-model", "by-tenant"]) at(id).addEventListener("change", () => this.#from(0));
    at("back").addEventListener("click", () => this.#from(this.#offset - PAGE));
    at("next").addEventListener("click", () => this.#from(this.#offset + PAGE));
    at("purge").addEventListener("click", () => this.#purge());
  }

  /** A new summary has come: names to choose from. */
  update(summary) {
    this.#unit = summary.unit;
    this.#offer("by-model", "All models", summary.models.map((row) => row.name));
    this.#offer("by-tenant", "All tenants", summary.tenants.map((row) => row.name));
  }

  /** Show those of one model or tenant only. */
  only(which, name) {
    at("by-model").value = which === "model" ? name : "";
    at("by-tenant").value = which === "tenant" ? name : "";
    this.#from(0);
  }

  #offer(id, all, names) {
    const select = at(id), text = names.join("\n");
    if (select.dataset.names === text) return;
    const chosen = select.value;
    select.dataset.names = text;
    select.replaceChildren(h("option", { value: "" }, all), ...names.filter(Boolean).map((name) => h("option", { value: name }, name)));
    select.value = names.includes(chosen) ? chosen : "";
  }

  #from(offset) {
    this.#offset = Math.max(0, offset);
    return this.refresh().catch((error) => toast(error.message, "bad"));
  }

  #query() {
    const query = { sort: this.#sort, descending: String(this.#down), offset: this.#offset, limit: PAGE };
    for (const [name, id] of [["search", "search"], ["model", "by-model"], ["tenant", "by-tenant"]]) {
      if (at(id).value.trim()) query[name] = at(id).value.trim();
    }
    return query;
  }

  /** Ask again, and show what comes; an older answer never overtakes a newer one. */
  async refresh() {
    const asked = ++this.#asked;
    const found = await api.get("/entries", this.#query());
    if (asked !== this.#asked) return;
    if (this.#offset && this.#offset >= found.total) {
      this.#offset = PAGE * Math.floor(Math.max(0, found.total - 1) / PAGE);
      return this.refresh();
    }
    this.#shown = found;
    this.#draw();
  }

  #head() {
    return h("tr", {}, COLUMNS.map(([name, title, sort, , spare]) =>
      h("th", { scope: "col", class: `${name} ${spare ?? ""}`, "aria-sort": sort && (sort === this.#sort ? "descending" : "none") },
        sort ? h("button", { type: "button", data: { sort }, on: { click: () => this.#sortBy(sort) } }, title, h("i", { "aria-hidden": "true" })) : title)));
  }

  #sortBy(sort) {
    this.#down = sort === this.#sort ? !this.#down : true;
    this.#sort = sort;
    for (const button of at("entries-table").tHead.querySelectorAll("button")) {
      const here = button.dataset.sort === sort;
      button.parentElement.setAttribute("aria-sort", here ? (this.#down ? "descending" : "ascending") : "none");
    }
    this.#from(0);
  }

  #draw() {
    const { total, rows: found, price_per_mb: price } = this.#shown;
    const filtered = ["search", "by-model", "by-tenant"].some((id) => at(id).value.trim());
    put("entries-total", `${count(total)}${filtered ? " found" : ""}`);
    put("page", total ? `${count(this.#offset + 1)}–${count(this.#offset + found.length)} of ${count(total)}` : "");
    at("back").disabled = this.#offset === 0;
    at("next").disabled = this.#offset + found.length >= total;
    at("purge").disabled = total === 0;
    put("purge", this.#scope() ? `Purge ${this.#scope().name}…` : "Purge…");
    put("entries-note", price > 0 ? `Value = requests × cost. A megabyte more is worth ${amount(price, this.#unit)}.` : "Value = requests × cost.");
    const text = JSON.stringify([found, this.#unit]);
    if (text === this.#text) return;
    this.#text = text;
    const most = Math.max(...found.map((row) => row.value), Number.MIN_VALUE);
    rows(at("entries-table").tBodies[0], found.length
      ? found.map((row) => this.#row(row, most))
      : [h("tr", { class: "none" }, h("td", { colspan: COLUMNS.length }, filtered ? "Nothing kept matches." : "Nothing is kept yet."))]);
  }

  #row(row, most) {
    return h("tr", { data: { key: row.key }, on: { click: () => this.#open(row.key) } }, COLUMNS.map(([name, , , say, spare]) => {
      const text = say(row, this.#unit);
      const cell = h("td", { class: `${name} ${spare ?? ""}` });
      if (name === "model") cell.append(h("button", { type: "button", class: "link", "aria-haspopup": "dialog", title: row.key }, text), h("small", {}, row.key.slice(0, 8)));
      else if (name === "value") {
        const bar = h("b", {});
        bar.style.width = `${(100 * row.value) / most}%`;
        cell.append(text, h("i", { class: "mini", "aria-hidden": "true" }, bar));
      } else cell.append(text);
      return cell;
    }));
  }

  #arrow(event) {
    const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    const to = step && event.target.closest("tr")?.[step]?.querySelector("button");
    if (!to) return;
    event.preventDefault();
    to.focus();
  }

  /** What the purge button would remove: the chosen model and tenant. A search narrows what is seen, not what goes. */
  #scope() {
    const what = {};
    for (const which of ["model", "tenant"]) if (at(`by-${which}`).value) what[which] = at(`by-${which}`).value;
    const name = Object.values(what).join(" of ");
    return name && !at("search").value.trim() ? { what, name } : null;
  }

  async #purge() {
    const scope = this.#scope();
    const olders = [["2592000", "30 days"], ["604800", "a week"], ["86400", "a day"], ["3600", "an hour"]]; // the mildest first
    const pick = h("select", { "aria-label": "What to remove" },
      scope && h("option", { value: "scope" }, `All of ${scope.name}`),
      olders.map(([seconds, words]) => h("option", { value: seconds }, `Everything older than ${words}`)),
      h("option", { value: "all" }, "Everything"));
    const size = scope ? `${count(this.#shown.total)} ${this.#shown.total === 1 ? "answer is" : "answers are"} shown. ` : "";
    const sure = await confirm("Purge", [
      h("p", { class: "sub" }, `${size}What is removed has to be paid for again when somebody asks. It cannot be brought back.`),
      h("label", { class: "field" }, pick)], "Purge");
    if (!sure) return;
    const what = pick.value === "scope" ? scope.what : pick.value === "all" ? { all: true } : { older_than: Number(pick.value) };
    await this.remove(() => api.change("POST", "/purge", what));
  }

  /** Remove by a call that says how many; tell, and look again. */
  async remove(call) {
    try {
      const { purged } = (await call()) ?? {};
      toast(purged === 0 ? "Nothing to remove" : `Removed ${count(purged ?? 1)} ${(purged ?? 1) === 1 ? "answer" : "answers"}`);
      await this.refresh();
      return true;
    } catch (error) {
      toast(`Not removed: ${error.message}`, "bad");
      return false;
    }
  }
}
