// The overview: savings, hit rates, capacity, spend over time, and the savings of other policies.

import { byId, h, radioGroup, setText } from "./dom.js";
import { Shown } from "./amounts.js";
import { bytes, count, day, minute, noun, percent, time, usd } from "./format.js";
import { SpendChart } from "./charts.js";
import { copyable, panel } from "./dialogs.js";
import { fromCache, hitRate, savingsByPolicy, sum } from "./usage.js";

const HOUR = 3600; // seconds
const SPANS = [["hour", "Hour"], ["day", "Day"], ["month", "Month"], ["all", "All"]];
const IN_WORDS = { hour: "last hour", day: "last day", month: "last month", all: "all time" };

export class Overview {
  #chart = new SpendChart(byId("chart"));
  #span = "day"; #mode = "cumulative"; #history = null; #summary = null; #shown = null; #selectSpan;

  /** onSpan: called after another span was selected, to fetch its history. */
  constructor(onSpan) {
    radioGroup(byId("chart-mode"), [["cumulative", "Cumulative"], ["step", "Per step"]], this.#mode, (value) => {
      this.#mode = value;
      this.#draw();
    });
    this.#selectSpan = radioGroup(byId("span"), SPANS, this.#span, (value) => {
      this.#span = value;
      onSpan();
    });
  }

  get span() {
    return this.#span;
  }

  /** The first summary selects the span: the last hour if the history is shorter than two hours. */
  update(summary) {
    if (!this.#summary && summary.now - summary.since < 2 * HOUR) {
      this.#span = "hour";
      this.#selectSpan("hour");
    }
    this.#summary = summary;
    const { today, all, storage, health: { engine } } = summary, before = this.#shown?.id, shown = (this.#shown = new Shown(summary));
    setText("saved-today", shown.amount(shown.saved(today)));
    setText("saved-all", shown.amount(shown.saved(all)));
    setText("saved-since", ` since ${this.#since()}`);
    setText("saved-other", this.#otherText(today));
    this.#priceNote();
    const simulated = shown.simulated ? " at simulated prices" : "";
    document.title = all.requests ? `${shown.amount(shown.saved(today))} saved today${simulated} · knapcache` : "knapcache";

    const [byCost, byRequests] = [shown.rate(today), hitRate(today)];
    setText("rate-cost-name", `by ${noun(shown.unit)}`);
    setText("rate-cost", percent(byCost));
    setText("rate-requests", percent(byRequests));
    const bars = byId("rate-bars").querySelectorAll("b");
    [byCost, byRequests].forEach((share, k) => (bars[k].style.width = `${100 * (share || 0)}%`));
    setText("rate-sub", `${count(fromCache(today))} of ${count(today.requests)} requests today`);

    // One scale: bytes charged for entries, of those that the policy may fill. Bytes on disk are another one, under Health.
    const used = storage.usable ? storage.bytes / storage.usable : 0;
    setText("capacity", `${bytes(storage.bytes)} of ${bytes(storage.usable)}`);
    const bar = byId("capacity-bar");
    bar.setAttribute("aria-valuenow", Math.round(100 * used));
    bar.firstElementChild.style.width = `${Math.min(100, 100 * used)}%`;
    setText("capacity-sub", `${percent(used)} full, ${count(storage.entries)} ${storage.entries === 1 ? "entry" : "entries"}`);
    setText("capacity-overhead", storage.usable < storage.capacity ? `For entries, of the configured ${bytes(storage.capacity)}. The rest is reserved for ${engine ? "the nursery, hit counts" : "the database's log, its index"} and the policy's state.` : "");

    this.#moreCapacity();
    if (before !== undefined && before !== shown.id) this.#draw();
  }

  #since() {
    const { now, since } = this.#summary;
    return now - since < 24 * HOUR ? minute(since) : day(since);
  }

  #otherText(today) {
    const model = `${time(today.seconds_saved)} of model time`; // summed over concurrent calls, so it may exceed the time of day
    const parts = { usd: [model], seconds: [], number: [model, today.usd_saved > 0 && usd(today.usd_saved)] }[this.#shown.unit];
    if (today.tokens_saved) parts.push(`${count(today.tokens_saved)} tokens`);
    const text = parts.filter(Boolean).length ? `${parts.filter(Boolean).join(" and ")} saved today` : "";
    return this.#shown.unit === "seconds" && today.seconds_saved ? `Model time, summed over concurrent calls${text ? `. ${text}` : ""}` : text;
  }

  /** Say what has no price, and how to set one. */
  #priceNote() {
    const { models, prices } = this.#summary;
    const unknown = models.filter((row) => ["unknown", "mixed"].includes(row.price) && row.unpriced > 0).map((row) => row.name);
    const text = !this.#shown.asksPrices ? ""
      : unknown.length ? `${this.#shown.unit === "usd" ? "Dollars are of models with a known price. " : ""}No price known for ${unknown.length === 1 ? unknown[0] : `${count(unknown.length)} models`}. `
      : prices === "none" ? "The embedded model is free, so savings are in seconds and tokens." : "";
    const note = byId("price-note");
    if (note.dataset.text === text) return;
    note.dataset.text = text;
    note.replaceChildren(text, unknown.length && text ? h("button", { type: "button", class: "link", on: { click: () => showPrices(unknown) } }, "Set a price") : "");
  }

  /** The price of a megabyte and the saving of twice the capacity: the same number, per megabyte and as a whole. */
  #moreCapacity() {
    const { all, doubling, price_per_mb: price, policy } = this.#summary, shown = this.#shown;
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
        ? `Twice the capacity would have saved ${per(doubling.saves)} more since ${this.#since()}.${daily}`
        : `Twice the capacity would have saved nothing more since ${this.#since()}.`);
    }
    byId("marginal-unit").hidden = !doubling || !all.evictions;
  }

  chart(history) {
    this.#history = history;
    this.#draw();
  }

  #draw() {
    if (!this.#history || !this.#summary) return;
    const { now, policy } = this.#summary, shown = this.#shown;
    const { points, step } = this.#history;
    this.#chart.show({ points, step, mode: this.#mode, shown, now });
    const total = sum(points);
    const item = (kind, name, value) => h("li", { class: kind }, h("i", { "aria-hidden": "true" }), name, " ", h("b", {}, value));
    byId("spend-legend").replaceChildren(
      item("without", "Without cache", shown.amount(shown.without(total))),
      item("spent", "With cache", shown.amount(shown.spent(total))),
      item("saved", "Saved", `${shown.amount(shown.saved(total))}${shown.without(total) > 0 ? ` (${percent(shown.rate(total))})` : ""}`),
      shown.partial ? h("li", {}, "only models with a known price") : "",
      this.#mode === "step" ? h("li", {}, `step: ${time(this.#chart.step)}`) : "");
    setText("policies-span", IN_WORDS[this.#span]);
    setText("spend-title", shown.unit === "seconds" ? "Model time with and without cache" : "Spend with and without cache");
    this.#policyBars(savingsByPolicy(total, policy.name), total);
  }

  #policyBars(list, total) {
    const text = (saved) => this.#shown.cost(saved, total.would.none);
    const highest = Math.max(...list.map((one) => one.saved), Number.MIN_VALUE);
    byId("bars").replaceChildren(...list.map((one) => {
      const bar = h("b", {});
      bar.style.width = `${(100 * Math.max(0, one.saved)) / highest}%`;
      return h("li", { class: one.live ? "live" : one.larger ? "larger" : "other" },
        h("span", { class: "name" }, one.label), h("span", { class: "amount" }, text(one.saved)), h("i", { "aria-hidden": "true" }, bar));
    }));
    byId("policies-note").hidden = list.length < 2;
    byId("policies-equal").hidden = total.evictions > 0 || list.length < 2 || !(list[0].saved > 0);
    const [live, ...others] = list;
    const differences = others.filter((one) => !one.larger).map((one) => {
      const more = live.saved - one.saved;
      if (Math.abs(more) <= 1e-9 * highest) return `as much as ${one.label}`;
      const share = one.saved > 0 ? ` (${percent(Math.abs(more) / one.saved)})` : "";
      return `${text(Math.abs(more))}${share} ${more > 0 ? "more" : "less"} than ${one.label}`;
    });
    setText("policies-sub", list.length < 2 ? "No other policy was simulated in this time. Simulations begin when the policies are compiled, about a minute after the first start."
      : differences.length && highest > Number.MIN_VALUE && total.evictions > 0 ? `knapcache saved ${differences.join(" and ")} at the same capacity.` : "");
  }
}

/** Show how to set the prices of models. */
function showPrices(names) {
  const shown = names.slice(0, 10).map((name) => `[prices.${JSON.stringify(name)}]\ninput = 2.5    # dollars per million input tokens\noutput = 10.0  # dollars per million output tokens`);
  panel("Set a price", h("p", { class: "sub" }, "Without a known price, savings are in seconds and tokens. Add the prices to the settings file and restart the proxy. These numbers are examples."),
    copyable(shown.join("\n\n"), "the settings"));
}
