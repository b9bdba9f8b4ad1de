// The history of usage for a selected span of time, and spend over time as SVG: the cost with the cache, the cost without it,
// and the savings between the two lines.
//
// A cursor shows the numbers of a step, by pointer or by keyboard (arrows, Home, End). For screen readers the chart is a
// slider over time.

import { sum } from "./amounts.js";
import * as api from "./api.js";
import { toast } from "./dialogs.js";
import { h, radioGroup, s } from "./dom.js";
import { percent, range } from "./format.js";
import { summary } from "./frame.js";
import { amounts, grouped, times } from "./scale.js";

const HEIGHT = 264, TOP = 12, BOTTOM = 26;
const MAX_STEPS = 160; // drawn; more would be narrower than a few pixels each
const MIN_STEPS = 15; // drawn, even if most of them have no requests

/** Drop the steps before the first request. */
function trimStart(points) {
  const first = points.findIndex((point) => point.requests > 0);
  return points.slice(Math.max(0, Math.min(first < 0 ? 0 : first - 1, points.length - MIN_STEPS)));
}

const line = (points) => points.map(([x, y], k) => `${k ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

export class SpendChart {
  #root; #plot; #tooltip; #data = null; #marks = []; #at = null; #cursor = null; #x = null; #step = 0;

  constructor(root) {
    this.#root = root;
    this.#plot = h("div", {
      class: "plot", tabindex: 0, role: "slider", "aria-orientation": "horizontal",
      "aria-label": "Spend over time; arrow keys move between steps", "aria-valuemin": 0, "aria-valuemax": 0, "aria-valuenow": 0,
      on: {
        pointermove: (event) => this.#onPointer(event), pointerdown: (event) => this.#onPointer(event),
        pointerleave: () => this.#select(null), blur: () => this.#select(null),
        focus: () => this.#plot.matches(":focus-visible") && this.#select(this.#at ?? this.#marks.length - 1),
        keydown: (event) => this.#onKey(event),
      },
    });
    this.#tooltip = h("div", { class: "tooltip", "aria-hidden": "true", hidden: true });
    root.replaceChildren(this.#plot, this.#tooltip);
    let width = 0;
    new ResizeObserver(() => {
      if (root.clientWidth !== width && this.#data) this.#draw();
      width = root.clientWidth;
    }).observe(root);
  }

  /** Length of a drawn step, in seconds. */
  get step() {
    return this.#step;
  }

  /** data: {points, step} of the history; mode: "cumulative" from the start of the span, or each "step"; shown; now. */
  show(data) {
    this.#data = data;
    this.#draw();
  }

  #draw() {
    const { points, step, mode, shown, now } = this.#data;
    let spent = 0, without = 0;
    const groups = grouped(trimStart(points), step, MAX_STEPS);
    this.#step = groups.length ? groups.at(-1).end - groups.at(-1).start : step;
    this.#marks = groups.map(({ start, end, rows }) => {
      const row = sum(rows);
      if (mode === "step") spent = without = 0;
      spent += shown.spent(row);
      without += shown.without(row);
      return { start, end: Math.max(start + 1, Math.min(end, now)), label: range(start, end), spent, without };
    });
    const width = Math.max(240, this.#root.clientWidth);
    const ticks = amounts(Math.max(0, ...this.#marks.map((mark) => mark.without)), shown.unit);
    const left = 12 + 6.6 * Math.max(...ticks.map((tick) => tick.text.length)), right = width - 8;
    const first = this.#marks[0]?.start ?? now - 3600, last = Math.max(first + 1, this.#marks.at(-1)?.end ?? now);
    const x = (this.#x = (time) => left + ((right - left) * (time - first)) / (last - first));
    const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * value) / ticks.at(-1).value;
    const path = (name) => mode === "step"
      ? this.#marks.flatMap((mark) => [[x(mark.start), y(mark[name])], [x(mark.end), y(mark[name])]])
      : [[x(first), y(0)], ...this.#marks.map((mark) => [x(mark.end), y(mark[name])])];
    const above = path("without"), below = path("spent");
    this.#cursor = s("g", { class: "cursor", visibility: "hidden" },
      s("line", { y1: TOP, y2: HEIGHT - BOTTOM }), s("circle", { r: 4, class: "without" }), s("circle", { r: 4, class: "spent" }));
    this.#cursor.place = (mark) => {
      const here = mode === "step" ? (x(mark.start) + x(mark.end)) / 2 : x(mark.end);
      const [rule, upper, lower] = this.#cursor.children;
      for (const [name, value] of [["x1", here], ["x2", here]]) rule.setAttribute(name, value);
      for (const [dot, name] of [[upper, "without"], [lower, "spent"]]) {
        dot.setAttribute("cx", here);
        dot.setAttribute("cy", y(mark[name]));
      }
      return here;
    };
    this.#plot.replaceChildren(
      s("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, "aria-hidden": "true", focusable: "false" },
        ticks.map(({ value, text }) => s("g", { class: "tick" },
          s("line", { x1: left, x2: right, y1: y(value), y2: y(value) }),
          s("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, text))),
        times(first, last, Math.max(2, Math.floor((right - left) / 76))).map(({ value, text, strong }) =>
          s("text", { class: strong ? "time strong" : "time", x: Math.min(right - 14, Math.max(left + 14, x(value))), y: HEIGHT - 6, "text-anchor": "middle" }, text)),
        above.length > 1 && s("path", { class: "saved-area", d: `${line(above)}${line(below.toReversed()).replace("M", "L")}Z` }),
        above.length > 1 && s("path", { class: "spent-area", d: `${line(below)}L${below.at(-1)[0]} ${y(0)}L${below[0][0]} ${y(0)}Z` }),
        s("path", { class: "without-line", d: line(above) }),
        s("path", { class: "spent-line", d: line(below) }),
        this.#cursor));
    this.#plot.setAttribute("aria-valuemax", Math.max(0, this.#marks.length - 1));
    this.#select(this.#at === null ? null : Math.min(this.#at, this.#marks.length - 1));
  }

  /** Show the numbers of step k; null hides them. */
  #select(k) {
    this.#at = k;
    const mark = k === null ? null : this.#marks[k];
    this.#cursor?.setAttribute("visibility", mark ? "visible" : "hidden");
    this.#tooltip.hidden = !mark;
    if (!mark) return;
    const { shown, mode } = this.#data;
    const saved = mark.without - mark.spent;
    const share = mark.without > 0 ? ` (${percent(saved / mark.without)})` : "";
    const period = mode === "step" ? mark.label : `up to ${mark.label.split(" – ").at(-1)}`;
    const item = (kind, name, value) => h("div", { class: kind }, h("span", {}, name), h("b", {}, value));
    this.#tooltip.replaceChildren(h("div", { class: "tooltip-time" }, period),
      item("without", "Without cache", shown.amount(mark.without)), item("spent", "With cache", shown.amount(mark.spent)),
      item("saved", "Saved", shown.amount(saved) + share), shown.simulated ? h("div", {}, "simulated prices") : "");
    const here = this.#cursor.place(mark), available = this.#root.clientWidth, own = this.#tooltip.offsetWidth;
    const place = here + 14 + own <= available ? here + 14 : here - 14 - own;
    this.#tooltip.style.left = `${Math.max(0, Math.min(place, available - own))}px`;
    this.#plot.setAttribute("aria-valuenow", k);
    this.#plot.setAttribute("aria-valuetext",
      `${period}: ${shown.amount(mark.without)} without cache, ${shown.amount(mark.spent)} with cache, ${shown.amount(saved)} saved`);
  }

  #onPointer(event) {
    if (!this.#marks.length) return;
    const here = event.clientX - this.#plot.getBoundingClientRect().left;
    const position = this.#data.mode === "step" ? (mark) => (this.#x(mark.start) + this.#x(mark.end)) / 2 : (mark) => this.#x(mark.end);
    let best = 0;
    this.#marks.forEach((mark, k) => {
      if (Math.abs(position(mark) - here) < Math.abs(position(this.#marks[best]) - here)) best = k;
    });
    this.#select(best);
  }

  #onKey(event) {
    const last = this.#marks.length - 1, k = this.#at ?? last;
    const to = { ArrowLeft: k - 1, ArrowRight: k + 1, PageUp: k - 10, PageDown: k + 10, Home: 0, End: last }[event.key];
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.#select(Math.max(0, Math.min(last, to)));
  }
}

const SPANS = [["hour", "Hour"], ["day", "Day"], ["month", "Month"], ["all", "All"]];
const SHORT = 2 * 3600; // seconds; a shorter history is shown by the hour

export class History {
  #draw; #calls = 0;

  /** root: an element for the switch; draw({step, points}): called after each load. */
  constructor(root, draw) {
    this.#draw = draw;
    this.span = summary.now - summary.since < SHORT ? "hour" : "day";
    radioGroup(root, SPANS, this.span, (span) => {
      this.span = span;
      this.load().catch((error) => toast(error.message, "bad"));
    });
  }

  async load() {
    const call = ++this.#calls;
    const found = await api.get("/history", { span: this.span });
    if (call === this.#calls) this.#draw(found); // a later call has not overtaken this one
  }
}
