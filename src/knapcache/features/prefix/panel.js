// Prompt caching at the provider: input tokens as reported, and the input bill by each rule of the prefix tier.
//
// Dollars are of requests of known price; without any, amounts are tokens at the price of plain input. A request without a
// reported usage is counted as such and is in no sum.

import { copyable } from "/dashboard/dialogs.js";
import { addStyles, fact, figure, h, radioGroup, setText } from "/dashboard/dom.js";
import { count, day, minute, percent, tokens, usd } from "/dashboard/format.js";
import { noRequests } from "/dashboard/welcome.js";

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
function ruleName(rule) {
  if (NAMES[rule]) return NAMES[rule];
  const [place, ttl] = rule.split(/-(?=[^-]*$)/);
  return PLACES[place] && TTLS[ttl] ? `${PLACES[place]}, ${TTLS[ttl]}` : rule;
}

/** Bills of some requests in one unit: dollars if a price is known, otherwise tokens. */
class Bills {
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

addStyles(`
  #prefix-text { display: grid; gap: 8px; margin-bottom: 4px; }
  #prefix-text .saved { color: var(--saved); }
  .switch-on { display: flex; flex-wrap: wrap; align-items: center; gap: 6px 14px; }
  .switch-on pre { padding: 8px 72px 8px 14px; }
  .switch-on .copy { top: 5px; }
  #prefix-body { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: 24px 40px; margin-top: 16px; }
  #prefix-body.single { grid-template-columns: minmax(0, 1fr); }
  #prefix-tariffs { display: grid; gap: 24px; align-content: start; }
  :is(#prefix-tariffs, #prefix-facts):empty { display: none; }
  #prefix-facts { display: grid; gap: 20px; margin-top: 24px; }
  .stacks { display: grid; gap: 18px; margin-top: 12px; }
  .stacks li { display: grid; grid-template-columns: 1fr auto; gap: 5px 12px; font-size: 13px; }
  .stacks .name { overflow-wrap: anywhere; }
  .stacks .amount { font-weight: 600; }
  .stack, .parts { grid-column: 1 / -1; }
  .stack { display: flex; height: 9px; border-radius: 99px; overflow: hidden; background: var(--faint); }
  .stack .read, .parts .read i { background: var(--saved); }
  .stack .written, .parts .written i { background: var(--warn); }
  .stack .plain, .parts .plain i { background: var(--without); }
  .parts { display: flex; flex-wrap: wrap; gap: 2px 16px; color: var(--soft); }
  .parts i { display: inline-block; width: 8px; height: 8px; margin-right: 6px; border-radius: 2px; }
  .parts b { color: var(--ink); font-weight: 600; }
  .tariff h3 .note { font-weight: 400; }
  .tariff .bars { margin: 12px 0 8px; gap: 10px; }
  .bars .paid b { background: var(--spent); }
  .bars .paid :is(.name, .amount) { font-weight: 600; }
  @media (max-width: 760px) { #prefix-body { grid-template-columns: minmax(0, 1fr); } }`);

/** The share of input that providers have read from their prompt caches. */
export function card(root) {
  const show = figure(root);
  return ({ prefix }) => {
    const input = sum(prefix.all.upstreams, "input");
    if (input) show(percent(sum(prefix.all.upstreams, "read") / input), `of ${tokens(input)} input tokens were read from the providers' prompt caches`);
    else show("–", "No input tokens were reported yet.");
  };
}

export function view(root) {
  const [text, stacks, facts, bills] = [h("div", { id: "prefix-text" }), h("ul", { class: "stacks", id: "prefix-tokens" }), h("div", { id: "prefix-facts" }), h("div", { id: "prefix-tariffs" })];
  const body = h("div", { id: "prefix-body" }, h("div", {}, h("h3", {}, "Input tokens, as reported"), stacks, facts), bills);
  const spans = h("div", { class: "switch", role: "radiogroup", "aria-label": "Today or all" }), note = h("span", { class: "note" });
  root.append(h("article", { class: "card" }, h("header", { class: "head" }, h("h2", {}, "Prompt caching at the provider"), note, h("div", { class: "switches" }, spans)), text, body));
  let span = "all", summary = null, drawn = "";
  const draw = () => {
    const { prefix, now } = summary, sums = prefix[span], state = JSON.stringify([span, prefix.mode, sums]), several = sums.tariffs.length > 1;
    if (state === drawn) return; // keeps the focus on a copy button
    drawn = state;
    setText(note, prefix.since && span === "all" ? `since ${now - prefix.since < 86400 ? minute(prefix.since) : day(prefix.since)}` : "");
    text.replaceChildren(...sentences(sums, prefix.mode, span === "today"));
    body.hidden = !sums.upstreams.length;
    stacks.replaceChildren(...sums.upstreams.map(stack));
    bills.replaceChildren(...sums.tariffs.map((tariff) => drawBills(tariff, several)));
    facts.replaceChildren(...sums.tariffs.map((tariff) => drawFacts(tariff, several)));
    body.classList.toggle("single", !sums.tariffs.length);
  };
  radioGroup(spans, SPANS, span, (value) => {
    span = value;
    draw();
  });
  return (found) => {
    summary = found;
    draw();
  };
}

/** What the tier has saved, would have saved, and how to switch it on. */
function sentences(sums, mode, today) {
  const text = (...parts) => h("p", { class: "sub" }, ...parts);
  if (!sums.upstreams.length) return [text(...(today ? ["No request was sent to a provider today."] : noRequests(" and send one to a provider.")))];
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
  return h("div", {}, h("h3", {}, `Marks${named ? `, ${tariff.name}` : ""}`),
    h("dl", { class: "facts" },
      fact("Setting", `prefix = "${tariff.mode}"`),
      fact(MARKED[tariff.mode] ? "Rule that leads" : "Rule that would lead", ruleName(tariff.rule)),
      fact("Reads predicted and reported", tariff.compared ? `${tokens(tariff.predicted)} and ${tokens(tariff.reported)} tokens` : "no request with marks yet"),
      fact("Too short to be cached", `${percent(tariff.below / tariff.requests)} of ${requests(tariff.requests)}`)));
}
