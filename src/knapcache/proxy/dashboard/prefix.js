// Prompt caching at the provider: input tokens as reported, and the input bill by each rule of the prefix tier.
//
// Dollars are of requests of known price; without any, amounts are tokens at the price of plain input. A request without a
// reported usage is counted as such and is in no sum.

import { copyable } from "./dialogs.js";
import { byId, h, radioGroup, setText } from "./dom.js";
import { count, day, minute, percent, tokens, usd } from "./format.js";

const SPANS = [["today", "Today"], ["all", "All"]];
const HIDDEN = /^learned-/; // one learned rule of the tier: the bars have the whole tier
const ORDER = ["paid", "learned", "none", "last-5m", "last-30m", "last-1h", "system2-5m", "system2-30m", "system2-1h"];
const NAMES = {
  paid: "Paid", learned: "Learned by knapcache", none: "No marks", "learned-alone": "Learned, both times to live",
  "learned-short": "Learned, shorter time to live", "learned-certain": "Learned, without upgrades",
};
const PLACES = { last: "Last block", system2: "System prompt and last two turns" };
const TTLS = { "5m": "5 min", "30m": "30 min", "1h": "1 h" };
const MARKED = { on: "on", manage: "manage" };

/** A rule's name in words: last-5m is "Last block, 5 min". */
export function ruleName(rule) {
  if (NAMES[rule]) return NAMES[rule];
  const [place, ttl] = rule.split(/-(?=[^-]*$)/);
  return PLACES[place] && TTLS[ttl] ? `${PLACES[place]}, ${TTLS[ttl]}` : rule;
}

/** Bills of some requests in one unit: dollars if a price is known, otherwise tokens. */
export class Bills {
  constructor(list) {
    this.requests = sum(list, "requests");
    this.priced = sum(list, "priced");
    this.unit = this.priced ? "usd" : "tokens";
    this.amounts = {};
    for (const one of list) for (const [rule, amount] of Object.entries(one[this.unit])) this.amounts[rule] = (this.amounts[rule] ?? 0) + amount;
  }

  text(amount) {
    return this.unit === "usd" ? usd(amount) : `${tokens(amount)} tokens`;
  }

  /** The bill of `rule` less that of `other`, as text with its share; null if it is not positive. */
  less(rule, other) {
    const { [rule]: more, [other]: bill } = this.amounts;
    return more > 0 && more - bill > 1e-9 * more ? `${this.text(more - bill)} (${percent((more - bill) / more)})` : null;
  }

  /** Names of the rules: those of ORDER, then others. */
  get rules() {
    const others = Object.keys(this.amounts).filter((rule) => !ORDER.includes(rule) && !HIDDEN.test(rule));
    return [...ORDER.filter((rule) => rule in this.amounts), ...others.sort()];
  }
}

const sum = (list, name) => list.reduce((total, one) => total + one[name], 0);
const requests = (number) => (number === 1 ? "1 request" : `${count(number)} requests`);

export class Prefix {
  #span = "all"; #summary = null; #drawn = "";

  constructor() {
    radioGroup(byId("prefix-span"), SPANS, this.#span, (value) => {
      this.#span = value;
      this.#draw();
    });
  }

  update(summary) {
    this.#summary = summary;
    this.#draw();
  }

  #draw() {
    const { prefix, now } = this.#summary ?? {};
    if (!prefix) return;
    const sums = prefix[this.#span], drawn = JSON.stringify([this.#span, prefix.mode, sums]);
    if (drawn === this.#drawn) return; // keeps the focus on a copy button
    this.#drawn = drawn;
    const since = prefix.since && this.#span === "all" ? `since ${now - prefix.since < 86400 ? minute(prefix.since) : day(prefix.since)}` : "";
    setText("prefix-note", since);
    byId("prefix-text").replaceChildren(...sentences(sums, prefix.mode, this.#span === "today"));
    byId("prefix-body").hidden = !sums.upstreams.length;
    byId("prefix-tokens").replaceChildren(...sums.upstreams.map(stack));
    const several = sums.tariffs.length > 1;
    byId("prefix-tariffs").replaceChildren(...sums.tariffs.map((tariff) => drawBills(tariff, several)));
    byId("prefix-facts").replaceChildren(...sums.tariffs.map((tariff) => drawFacts(tariff, several)));
    byId("prefix-body").classList.toggle("single", !sums.tariffs.length);
  }
}

/** What the tier has saved, would have saved, and how to switch it on. */
function sentences(sums, mode, today) {
  const text = (...parts) => h("p", { class: "sub" }, ...parts);
  if (!sums.upstreams.length) return [text(today ? "No request was sent to a provider today." : "No request was sent to a provider yet.")];
  if (!sums.tariffs.length) return [text(mode === "off" ? 'Prompts are not marked, because the setting is prefix = "off". ' : "There is nothing to decide for these upstreams: their providers cache prompts without marks, or not at all. ",
    "What they read from their prompt cache is shown as they report it.")];
  const kinds = (kind) => sums.tariffs.flatMap((tariff) => tariff.bills.filter((one) => one.kind === kind));
  const [placed, observed, own] = ["placed", "observed", "own"].map((kind) => new Bills(kinds(kind)));
  const of = (bills, what = "") => ` of the input bill of ${requests(bills.requests)}${what}${bills.priced && bills.priced < bills.requests ? `, ${count(bills.priced)} of them of known price` : ""}.`;
  const lines = [];
  if (placed.requests) {
    const saved = placed.less("none", "paid");
    lines.push(text(...(saved ? ["Marks by knapcache saved ", h("b", { class: "saved" }, saved), of(placed)]
      : [`Marks by knapcache have saved nothing yet on ${requests(placed.requests)}: writes are paid before reads return.`])));
  }
  if (observed.requests) {
    const possible = observed.less("paid", "learned");
    lines.push(text(...(possible ? ["No marks are placed. They would have saved ", h("b", { class: "saved" }, possible), of(observed, " without marks")]
      : [`No marks are placed. They would have saved nothing yet on ${requests(observed.requests)}: writes are paid before reads return.`])));
    if (possible) lines.push(h("div", { class: "switch-on" }, h("span", { class: "sub" }, "To place marks, add this line to the settings file and restart:"), copyable('prefix = "on"', "the setting")));
  }
  if (own.requests) {
    const saved = own.less("none", "paid");
    lines.push(text(`${requests(own.requests)} came with marks of the caller, which were left as they were${saved ? `. They saved ${saved}` : ""}.`));
  }
  return lines.length ? lines : [text("No answer with a usage yet, so there is nothing to compare.")];
}

/** The input tokens of an upstream, as a bar of three parts. */
function stack({ name, input, read, short_written: short, long_written: long, plain, unknown, requests: all }) {
  const part = (kind, value) => {
    const element = h("b", { class: kind });
    element.style.width = `${input ? (100 * value) / input : 0}%`;
    return element;
  };
  const item = (kind, word, value) => h("span", { class: kind }, h("i", { "aria-hidden": "true" }), `${word} `, h("b", {}, tokens(value)));
  return h("li", {}, h("span", { class: "name" }, name), h("span", { class: "amount" }, input ? `${percent(read / input)} read` : "no tokens reported"),
    h("div", { class: "stack", "aria-hidden": "true" }, part("read", read), part("written", short + long), part("plain", plain)),
    h("div", { class: "parts" }, item("read", "read", read), item("written", "written", short + long), item("plain", "plain", plain),
      unknown ? h("span", { class: "note" }, `${count(unknown)} of ${requests(all)} without a usage, not counted`) : null));
}

/** The bills of a tariff. named: there are several. */
function drawBills(tariff, named) {
  const bills = new Bills(tariff.bills), highest = Math.max(...Object.values(bills.amounts), Number.MIN_VALUE);
  const bars = bills.rules.map((rule) => {
    const bar = h("b", {});
    bar.style.width = `${(100 * bills.amounts[rule]) / highest}%`;
    return h("li", { class: { paid: "paid", learned: "live" }[rule] ?? "other" }, h("span", { class: "name" }, ruleName(rule)),
      h("span", { class: "amount" }, bills.text(bills.amounts[rule])), h("i", { "aria-hidden": "true" }, bar));
  });
  return h("div", { class: "tariff" },
    h("h3", {}, `Input bill by rule${named ? `, ${tariff.name}` : ""}`, bills.unit === "tokens" && bars.length ? h("span", { class: "note" }, " in tokens at the plain price") : null),
    bars.length ? h("ul", { class: "bars" }, ...bars) : h("p", { class: "sub" }, "No answer with a usage yet."));
}

/** What the tier knows of a tariff's requests. named: there are several. */
function drawFacts(tariff, named) {
  const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
  return h("div", {}, h("h3", {}, `Marks${named ? `, ${tariff.name}` : ""}`),
    h("dl", { class: "facts" },
      fact("Setting", `prefix = "${tariff.mode}"`),
      fact(MARKED[tariff.mode] ? "Rule that leads" : "Rule that would lead", ruleName(tariff.rule)),
      fact("Reads predicted and reported", tariff.compared ? `${tokens(tariff.predicted)} and ${tokens(tariff.reported)} tokens` : "no request with marks yet"),
      fact("Too short to be cached", `${percent(tariff.below / tariff.requests)} of ${requests(tariff.requests)}`)));
}
