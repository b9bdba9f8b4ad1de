// What another budget would save: the log replayed beside the proxy, drawn as savings over room.
//
// Room is on a scale of powers: from a hundredth of the working set to all of it, every doubling is as wide as the last.

import * as api from "./api.js";
import { at, h, put, s } from "./dom.js";
import { amount, bytes, percent } from "./format.js";
import { toast } from "./notes.js";
import { policyName } from "./rows.js";
import { amounts } from "./scale.js";

const AGAIN = 1500; // ms between two looks at a plan that runs
const HEIGHT = 220, TOP = 12, BOTTOM = 28;

export class Plan {
  #unit = "usd"; #capacity = 0; #result = null; #waiting = false;

  constructor() {
    at("plan").addEventListener("click", () => this.#start());
    let width = 0;
    new ResizeObserver(([box]) => {
      if (this.#result && box.contentRect.width !== width) this.#draw();
      width = box.contentRect.width;
    }).observe(at("plan-result"));
  }

  update({ unit, storage }) {
    this.#unit = unit;
    this.#capacity = storage.capacity;
  }

  /** A plan may be there from before. */
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
    at("plan").disabled = true;
    put("plan-note", "Replaying…");
    let plan = { state: "running" };
    while (plan.state === "running") {
      await new Promise((resolve) => setTimeout(resolve, AGAIN));
      plan = await api.get("/plan").catch((error) => ({ state: error instanceof api.NotInMemory ? "running" : "failed", result: error.message }));
    }
    this.#waiting = false;
    at("plan").disabled = false;
    put("plan-note", "");
    this.#show(plan);
  }

  #show({ state, result }) {
    if (state === "done" && result?.rows?.length) {
      this.#result = result;
      this.#draw();
    } else if (state === "failed") {
      const reason = typeof result === "string" ? result : result?.error?.message ?? result?.message ?? "the log could not be replayed";
      at("plan-result").replaceChildren(h("p", { class: "sub wrong" }, `No plan: ${reason}`));
    }
  }

  #draw() {
    const { rows, per, recommended, largest_saving: largest, working_set: whole } = this.#result;
    const unit = this.#unit, root = at("plan-result");
    const names = [...new Set(rows.map((row) => row.policy))];
    const budgets = [...new Set(rows.map((row) => row.capacity))].sort((a, b) => a - b);
    const width = Math.max(240, root.clientWidth), ticks = amounts(Math.max(largest, ...rows.map((row) => row.saved)), unit);
    const left = 12 + 6.6 * Math.max(...ticks.map((tick) => tick.text.length)), right = width - 12;
    const [low, high] = [Math.log(budgets[0]), Math.log(Math.max(budgets.at(-1), budgets[0] * 1.01))];
    const x = (room) => left + ((right - left) * (Math.log(room) - low)) / (high - low);
    const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * value) / ticks.at(-1).value;
    const path = (name) => rows.filter((row) => row.policy === name).sort((a, b) => a.capacity - b.capacity)
      .map((row, k) => `${k ? "L" : "M"}${x(row.capacity).toFixed(1)} ${y(row.saved).toFixed(1)}`).join("");
    const every = Math.ceil(budgets.length / Math.max(2, Math.floor((right - left) / 84)));
    const here = this.#capacity >= budgets[0] && this.#capacity <= budgets.at(-1) ? x(this.#capacity) : null;
    const advice = recommended
      ? `${bytes(recommended.capacity)} with ${recommended.policy} saves ${amount(recommended.saved, unit)} a ${per}, ${percent(recommended.saved / largest)} of all that can be saved (${bytes(whole)} hold everything).`
      : "Nothing comes twice in this log: no budget saves anything.";
    root.replaceChildren(
      h("p", { class: "sub" }, advice),
      h("ul", { class: "legend" }, names.map((name) => h("li", { class: `p-${name}` }, h("i", { "aria-hidden": "true" }), name === "adaptive" ? "knapcache" : policyName(name)))),
      h("div", { class: "chart" }, s("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": advice },
        ticks.map(({ value, text }) => s("g", { class: "tick" }, s("line", { x1: left, x2: right, y1: y(value), y2: y(value) }),
          s("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, text))),
        budgets.filter((_, k) => k % every === 0).map((room) =>
          s("text", { class: "when", x: Math.min(right - 20, Math.max(left + 20, x(room))), y: HEIGHT - 8, "text-anchor": "middle" }, bytes(room))),
        here !== null && s("g", { class: "here" }, s("line", { x1: here, x2: here, y1: TOP, y2: HEIGHT - BOTTOM }),
          s("text", { x: here + (here > width / 2 ? -6 : 6), y: TOP + 10, "text-anchor": here > width / 2 ? "end" : "start" }, "budget now")),
        names.toReversed().map((name) => s("path", { class: `curve p-${name}`, d: path(name) })))));
  }
}
