// The overview: savings, hit rates, capacity, spend over time, and the savings of other policies.

import { byId, h, radioGroup, setText } from "./dom.js";
import { amount, bytes, count, day, minute, noun, percent, time, usd } from "./format.js";
import { SpendChart } from "./charts.js";
import { costWithoutCache, fromCache, hitRate, hitRateByCost, lookups, savingsByPolicy, sum } from "./usage.js";

const HOUR = 3600; // seconds; a daily rate from a shorter time is too noisy to show
const SPANS = [["hour", "Hour"], ["day", "Day"], ["month", "Month"], ["all", "All"]];
const IN_WORDS = { hour: "last hour", day: "last day", month: "last month", all: "all time" };

export class Overview {
  #chart = new SpendChart(byId("chart"));
  #span = "day"; #mode = "cumulative"; #history = null; #summary = null; #selectSpan;

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
    const { today, all, unit, storage, doubling } = summary;
    setText("saved-today", amount(today.cost_saved, unit));
    setText("saved-all", amount(all.cost_saved, unit));
    setText("saved-since", ` since ${summary.now - summary.since < 24 * HOUR ? minute(summary.since) : day(summary.since)}`);
    setText("saved-other", unit === "usd" ? `${time(today.seconds_saved)} of upstream time saved today` : `${usd(today.usd_saved)} saved today`);
    document.title = all.requests ? `${amount(today.cost_saved, unit)} saved today · knapcache` : "knapcache";

    const [byCost, byRequests] = [hitRateByCost(today), hitRate(today)];
    setText("rate-cost-name", `by ${noun(unit)}`);
    setText("rate-cost", percent(byCost));
    setText("rate-requests", percent(byRequests));
    const bars = byId("rate-bars").querySelectorAll("b");
    [byCost, byRequests].forEach((share, k) => (bars[k].style.width = `${100 * (share || 0)}%`));
    setText("rate-sub", `${count(fromCache(today))} of ${count(lookups(today))} requests today`);

    const used = storage.capacity ? storage.bytes / storage.capacity : 0;
    setText("capacity", `${bytes(storage.bytes)} of ${bytes(storage.capacity)}`);
    const bar = byId("capacity-bar");
    bar.setAttribute("aria-valuenow", Math.round(100 * used));
    bar.firstElementChild.style.width = `${Math.min(100, 100 * used)}%`;
    setText("capacity-sub", `${count(storage.entries)} ${storage.entries === 1 ? "entry" : "entries"}${storage.disk_bytes ? ` · ${bytes(storage.disk_bytes)} on disk` : ""}`);

    setText("marginal", amount(summary.price_per_mb, unit));
    setText("doubling", this.#doublingText(doubling, unit, summary.now - summary.since));
  }

  #doublingText(doubling, unit, seconds) {
    if (doubling?.saves == null || !this.#summary.all.requests) return "";
    if (doubling.saves <= 0) return "Twice the capacity would have saved no more.";
    const daily = seconds >= HOUR && doubling.per_day > 0 ? `, ${amount(doubling.per_day, unit)} per day` : "";
    return `Twice the capacity would have saved ${amount(doubling.saves, unit)} more${daily}.`;
  }

  chart(history) {
    this.#history = history;
    this.#draw();
  }

  #draw() {
    if (!this.#history || !this.#summary) return;
    const { unit, now, policy } = this.#summary;
    const { points, step } = this.#history;
    this.#chart.show({ points, step, mode: this.#mode, unit, now });
    const total = sum(points);
    const item = (kind, name, value) => h("li", { class: kind }, h("i", { "aria-hidden": "true" }), name, " ", h("b", {}, value));
    byId("spend-legend").replaceChildren(
      item("without", "Without cache", amount(costWithoutCache(total), unit)),
      item("spent", "With cache", amount(total.cost_spent, unit)),
      item("saved", "Saved", `${amount(total.cost_saved, unit)}${costWithoutCache(total) > 0 ? ` (${percent(hitRateByCost(total))})` : ""}`),
      this.#mode === "step" ? h("li", {}, `step: ${time(this.#chart.step)}`) : "");
    setText("policies-span", IN_WORDS[this.#span]);
    this.#policyBars(savingsByPolicy(total, policy.name), unit);
  }

  #policyBars(list, unit) {
    const highest = Math.max(...list.map((one) => one.saved), Number.MIN_VALUE);
    byId("bars").replaceChildren(...list.map((one) => {
      const bar = h("b", {});
      bar.style.width = `${(100 * Math.max(0, one.saved)) / highest}%`;
      return h("li", { class: one.live ? "live" : one.larger ? "larger" : "other" },
        h("span", { class: "name" }, one.label), h("span", { class: "amount" }, amount(one.saved, unit)), h("i", { "aria-hidden": "true" }, bar));
    }));
    const [live, ...others] = list;
    const differences = others.filter((one) => !one.larger).map((one) => {
      const more = live.saved - one.saved;
      if (Math.abs(more) <= 1e-9 * highest) return `as much as ${one.label}`;
      const share = one.saved > 0 ? ` (${percent(Math.abs(more) / one.saved)})` : "";
      return `${amount(Math.abs(more), unit)}${share} ${more > 0 ? "more" : "less"} than ${one.label}`;
    });
    setText("policies-sub", differences.length && highest > Number.MIN_VALUE ? `knapcache saved ${differences.join(" and ")} at the same capacity.` : "");
  }
}
