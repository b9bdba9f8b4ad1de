// The first screen: what was saved, what it would have been otherwise, and what more room would bring.

import { at, choices, h, put } from "./dom.js";
import { amount, bytes, count, day, minute, noun, percent, time, usd } from "./format.js";
import { SpendChart } from "./charts.js";
import { answered, rateByCost, rateByRequests, rivals, served, sum, without } from "./rows.js";

const HOUR = 3600; // after less, a rate per day is a guess
const SPANS = [["hour", "Hour"], ["day", "Day"], ["month", "Month"], ["all", "All"]];
const IN_WORDS = { hour: "last hour", day: "last day", month: "last month", all: "in all" };

export class Overview {
  #chart = new SpendChart(at("chart"));
  #span = "day"; #adding = "total"; #history = null; #summary = null; #spans;

  /** changed: called when another span was picked, which has to be fetched. */
  constructor(changed) {
    choices(at("adding"), [["total", "Total"], ["step", "Per step"]], this.#adding, (value) => {
      this.#adding = value;
      this.#draw();
    });
    this.#spans = choices(at("span"), SPANS, this.#span, (value) => {
      this.#span = value;
      changed();
    });
  }

  get span() {
    return this.#span;
  }

  /** A new summary has come. The first decides the span: a young history looks best from near. */
  update(summary) {
    if (!this.#summary && summary.now - (summary.since ?? summary.started) < 2 * HOUR) {
      this.#span = "hour";
      this.#spans("hour");
    }
    this.#summary = summary;
    const { today, all, unit, storage, doubling } = summary;
    put("saved-today", amount(today.cost_saved, unit));
    put("saved-all", amount(all.cost_saved, unit));
    put("saved-since", !summary.since ? "" : ` since ${summary.now - summary.since < 24 * HOUR ? minute(summary.since) : day(summary.since)}`);
    // The other measure, by itself and named: dollars and seconds are never added up.
    put("saved-other", unit === "usd" ? `and ${time(today.seconds_saved)} of waiting today` : `and ${usd(today.usd_saved)} today`);
    document.title = all.requests ? `${amount(today.cost_saved, unit)} saved today · knapcache` : "knapcache";

    const [byMoney, byRequests] = [rateByCost(today), rateByRequests(today)];
    put("rate-money-name", `by ${noun(unit)}`);
    put("rate-money", percent(byMoney));
    put("rate-requests", percent(byRequests));
    const rails = at("rate-rails").querySelectorAll("b");
    [byMoney, byRequests].forEach((share, k) => (rails[k].style.width = `${100 * (share || 0)}%`));
    put("rate-sub", `${count(served(today))} of ${count(answered(today))} requests today`);

    const used = storage.capacity ? storage.bytes / storage.capacity : 0;
    put("room", `${bytes(storage.bytes)} of ${bytes(storage.capacity)}`);
    const rail = at("room-rail");
    rail.setAttribute("aria-valuenow", Math.round(100 * used));
    rail.firstElementChild.style.width = `${Math.min(100, 100 * used)}%`;
    put("room-sub", `${count(storage.entries)} ${storage.entries === 1 ? "answer" : "answers"}${storage.disk_bytes ? ` · ${bytes(storage.disk_bytes)} on disk` : ""}`);

    put("price", amount(summary.price_per_mb, unit));
    put("doubling", this.#moreRoom(doubling, unit, summary.now - (summary.since ?? summary.started)));
  }

  #moreRoom(doubling, unit, watched) {
    if (doubling?.saves == null || !this.#summary.all.requests) return "";
    if (doubling.saves <= 0) return "Twice the room would have saved no more.";
    const daily = watched >= HOUR && doubling.per_day > 0 ? `, ${amount(doubling.per_day, unit)} a day` : "";
    return `Twice the room would have saved ${amount(doubling.saves, unit)} more${daily}.`;
  }

  /** A new history has come. */
  chart(history) {
    this.#history = history;
    this.#draw();
  }

  #draw() {
    if (!this.#history || !this.#summary) return;
    const { unit, now, policy } = this.#summary;
    const { points, step } = this.#history;
    this.#chart.show({ points, step, adding: this.#adding, unit, now });
    const total = sum(points);
    const key = (kind, name, value) => h("li", { class: kind }, h("i", { "aria-hidden": "true" }), name, " ", h("b", {}, value));
    at("spend-legend").replaceChildren(
      key("gone", "Without the cache", amount(without(total), unit)),
      key("paid", "With it", amount(total.cost_spent, unit)),
      key("saved", "Saved", `${amount(total.cost_saved, unit)}${without(total) > 0 ? ` (${percent(rateByCost(total))})` : ""}`),
      this.#adding === "step" ? h("li", { class: "each" }, `a step is ${time(this.#chart.step)}`) : "");
    put("rivals-span", IN_WORDS[this.#span]);
    this.#bars(rivals(total, policy.name), unit);
  }

  #bars(list, unit) {
    const most = Math.max(...list.map((one) => one.saved), Number.MIN_VALUE);
    at("bars").replaceChildren(...list.map((one) => {
      const bar = h("b", {});
      bar.style.width = `${(100 * Math.max(0, one.saved)) / most}%`;
      return h("li", { class: one.ours ? "ours" : one.roomier ? "roomier" : "other" },
        h("span", { class: "who" }, one.label), h("span", { class: "much" }, amount(one.saved, unit)), h("i", { "aria-hidden": "true" }, bar));
    }));
    const [ours, ...others] = list;
    const words = others.filter((one) => !one.roomier).map((one) => {
      const more = ours.saved - one.saved;
      if (Math.abs(more) <= 1e-9 * most) return `as much as ${one.label}`;
      const share = one.saved > 0 ? ` (${percent(Math.abs(more) / one.saved)})` : "";
      return `${amount(Math.abs(more), unit)}${share} ${more > 0 ? "more" : "less"} than ${one.label}`;
    });
    put("rivals-sub", words.length && most > Number.MIN_VALUE ? `knapcache saved ${words.join(" and ")} would have, with the same room.` : "");
  }
}
