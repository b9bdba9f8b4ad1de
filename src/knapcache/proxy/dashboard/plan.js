// The capacity plan: savings by capacity, from a replay of the request log in a process beside the proxy.
//
// Savings are those of the log's own span. A log of a day or more is also projected, with a range (lab/projection.py).
// The capacity axis is logarithmic, because the plan goes from 1 % of the working set to all of it.

import { Shown, policyName } from "./amounts.js";
import * as api from "./api.js";
import { toast } from "./dialogs.js";
import { byId, h, s, setText } from "./dom.js";
import { age, bytes, count, percent, time } from "./format.js";
import { summary } from "./frame.js";
import { amounts } from "./scale.js";

const INTERVAL = 1000; // ms between polls of a running plan
const HEIGHT = 220, TOP = 12, BOTTOM = 28;

export class Plan {
  #amounts = null; #result = null; #seconds = 0; #waiting = false;

  constructor() {
    byId("plan").addEventListener("click", () => this.#start());
    let width = 0;
    new ResizeObserver(([box]) => {
      if (this.#result && box.contentRect.width !== width) this.#draw();
      width = box.contentRect.width;
    }).observe(byId("plan-result"));
  }

  /** Show a plan that is running or done. */
  async resume() {
    const plan = await api.get("/plan");
    if (plan.state === "running") this.#wait();
    else if (plan.state === "done") this.#show(plan);
  }

  async #start() {
    try {
      await api.change("POST", "/plan");
      this.#wait();
    } catch (error) {
      toast(error.message, "bad");
    }
  }

  async #wait() {
    if (this.#waiting) return;
    this.#waiting = true;
    byId("plan").disabled = true;
    let plan = { state: "running", progress: 0, remaining: null, seconds: 0 };
    while (plan.state === "running") {
      this.#progress(plan);
      await new Promise((resolve) => setTimeout(resolve, INTERVAL));
      plan = await api.get("/plan").catch((error) => ({ state: error instanceof api.Unavailable ? "running" : "failed", result: error.message, progress: 0, remaining: null, seconds: plan.seconds }));
    }
    this.#waiting = false;
    byId("plan").disabled = false;
    byId("plan-progress").hidden = true;
    setText("plan-note", "");
    this.#show(plan);
  }

  #progress({ progress, remaining, seconds }) {
    const bar = byId("plan-progress");
    bar.hidden = false;
    if (progress > 0) bar.value = progress;
    else bar.removeAttribute("value"); // moves without a value
    const left = remaining === null ? "" : remaining < 1 ? ", almost done" : `, about ${time(Math.ceil(remaining))} left`;
    setText("plan-note", progress > 0 ? `Replaying: ${percent(progress)}${left}` : `Reading the log and compiling the policies: ${age(seconds)}`);
  }

  #show({ state, result, amounts, seconds }) {
    if (state === "done" && result?.rows?.length) {
      [this.#result, this.#amounts, this.#seconds] = [result, amounts, seconds];
      this.#draw();
    } else if (state === "failed") {
      const reason = typeof result === "string" ? result : result?.error?.message ?? result?.message ?? "the log could not be replayed";
      byId("plan-result").replaceChildren(h("p", { class: "sub error" }, `Plan failed: ${reason}`));
    }
  }

  #projection(amount) {
    const { projection } = this.#result;
    if (projection?.per_day == null || this.#amounts.unit === "share") return projection?.per_day == null ? projection?.method ?? "" : "";
    const range = (times) => `${amount(times * projection.per_day)} (between ${amount(times * projection.per_day_low)} and ${amount(times * projection.per_day_high)})`;
    return `Projected: ${range(1)} per day, ${range(30)} per 30 days. ${projection.method}`;
  }

  #draw() {
    const { rows: replays, recommended, largest_saving: largest, total_cost: total, requests } = this.#result;
    const shown = new Shown({ ...summary, amounts: this.#amounts }), root = byId("plan-result");
    const scale = shown.partial ? 100 / total : shown.factor; // in per cent of the cost, or in the unit
    const rows = replays.map((row) => ({ ...row, saved: row.saved * scale }));
    const amount = (value) => (shown.partial ? `${percent(value / total)} of the cost` : shown.cost(value));
    const names = [...new Set(rows.map((row) => row.policy))];
    const capacities = [...new Set(rows.map((row) => row.capacity))].sort((a, b) => a - b);
    const width = Math.max(240, root.clientWidth), ticks = amounts(Math.max(largest * scale, ...rows.map((row) => row.saved)), shown.partial ? "percent" : shown.unit);
    const left = 12 + 6.6 * Math.max(...ticks.map((tick) => tick.text.length)), right = width - 12;
    const [low, high] = [Math.log(capacities[0]), Math.log(Math.max(capacities.at(-1), capacities[0] * 1.01))];
    const x = (capacity) => left + ((right - left) * (Math.log(capacity) - low)) / (high - low);
    const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * value) / ticks.at(-1).value;
    const path = (name) => rows.filter((row) => row.policy === name).sort((a, b) => a.capacity - b.capacity)
      .map((row, k) => `${k ? "L" : "M"}${x(row.capacity).toFixed(1)} ${y(row.saved).toFixed(1)}`).join("");
    const every = Math.ceil(capacities.length / Math.max(2, Math.floor((right - left) / 84)));
    const usable = summary.storage.usable; // replays have no overhead
    const current = usable >= capacities[0] && usable <= capacities.at(-1) ? x(usable) : null;
    const advice = recommended
      ? `${bytes(recommended.capacity)} for entries would have saved ${amount(recommended.saved)} in the ${this.#result.span} of this log, ${percent(recommended.saved / largest)} of what unlimited capacity saves.`
      : "No request in this log repeats, so no capacity saves anything.";
    root.replaceChildren(
      h("p", { class: "sub" }, advice),
      recommended ? h("p", { class: "sub" }, this.#projection(amount)) : "",
      h("p", { class: "note" }, `${count(requests)} requests, replayed in ${time(this.#seconds)}.${shown.partial ? " Some models have no known price, so savings are shares of the cost." : ""}`),
      h("ul", { class: "legend" }, names.map((name) => h("li", { class: `p-${name}` }, h("i", { "aria-hidden": "true" }), name === "adaptive" ? "knapcache" : policyName(name)))),
      h("div", { class: "chart" }, s("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": advice },
        ticks.map(({ value, text }) => s("g", { class: "tick" }, s("line", { x1: left, x2: right, y1: y(value), y2: y(value) }),
          s("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, text))),
        capacities.filter((_, k) => k % every === 0).map((capacity) =>
          s("text", { class: "time", x: Math.min(right - 20, Math.max(left + 20, x(capacity))), y: HEIGHT - 8, "text-anchor": "middle" }, bytes(capacity))),
        current !== null && s("g", { class: "current" }, s("line", { x1: current, x2: current, y1: TOP, y2: HEIGHT - BOTTOM }),
          s("text", { x: current + (current > width / 2 ? -6 : 6), y: TOP + 10, "text-anchor": current > width / 2 ? "end" : "start" }, "current capacity")),
        names.toReversed().map((name) => s("path", { class: `curve p-${name}`, d: path(name) })))));
  }
}
