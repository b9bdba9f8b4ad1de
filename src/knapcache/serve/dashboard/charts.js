// Spend over time, as SVG: what was paid, what would have been paid without the cache, and between them what was saved.
//
// A cursor reads the numbers at any step: by pointer, or from the keyboard (arrows, Home, End), where the chart is a slider
// over time whose value screen readers speak.

import { h, s } from "./dom.js";
import { amount, percent, range } from "./format.js";
import { sum, without } from "./rows.js";
import { amounts, grouped, times } from "./scale.js";

const HEIGHT = 264, TOP = 12, BOTTOM = 26;
const MOST = 160; // steps drawn; more would be finer than the screen

const LEAST = 15; // and at least so many, where the past is empty

/** Without the time before the first request, which says nothing. */
function begun(points) {
  const first = points.findIndex((point) => point.requests > 0);
  return points.slice(Math.max(0, Math.min(first < 0 ? 0 : first - 1, points.length - LEAST)));
}

const line = (points) => points.map(([x, y], k) => `${k ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

export class SpendChart {
  #root; #plot; #tip; #data = null; #marks = []; #at = null; #cursor = null; #x = null; #step = 0;

  constructor(root) {
    this.#root = root;
    this.#plot = h("div", {
      class: "plot", tabindex: 0, role: "slider", "aria-orientation": "horizontal",
      "aria-label": "Spend over time; arrow keys read it step by step", "aria-valuemin": 0, "aria-valuemax": 0, "aria-valuenow": 0,
      on: {
        pointermove: (event) => this.#point(event), pointerdown: (event) => this.#point(event),
        pointerleave: () => this.#read(null), blur: () => this.#read(null),
        focus: () => this.#plot.matches(":focus-visible") && this.#read(this.#at ?? this.#marks.length - 1),
        keydown: (event) => this.#key(event),
      },
    });
    this.#tip = h("div", { class: "tip", "aria-hidden": "true", hidden: true });
    root.replaceChildren(this.#plot, this.#tip);
    let width = 0;
    new ResizeObserver(() => {
      if (root.clientWidth !== width && this.#data) this.#draw();
      width = root.clientWidth;
    }).observe(root);
  }

  /** Seconds that a step of the drawing stands for. */
  get step() {
    return this.#step;
  }

  /** points, step: as the history gives them; adding: "total" runs from the start of the span, "step" is each by itself. */
  show(data) {
    this.#data = data;
    this.#draw();
  }

  #draw() {
    const { points, step, adding, unit, now } = this.#data;
    let paid = 0, gone = 0;
    const groups = grouped(begun(points), step, MOST);
    this.#step = groups.length ? groups.at(-1).end - groups.at(-1).start : step;
    this.#marks = groups.map(({ start, end, rows }) => {
      const row = sum(rows);
      if (adding === "step") paid = gone = 0;
      paid += row.cost_spent;
      gone += without(row);
      return { start, end: Math.max(start + 1, Math.min(end, now)), label: range(start, end), paid, gone };
    });
    const width = Math.max(240, this.#root.clientWidth);
    const ticks = amounts(Math.max(0, ...this.#marks.map((mark) => mark.gone)), unit);
    const left = 12 + 6.6 * Math.max(...ticks.map((tick) => tick.text.length)), right = width - 8;
    const first = this.#marks[0]?.start ?? now - 3600, last = Math.max(first + 1, this.#marks.at(-1)?.end ?? now);
    const x = (this.#x = (time) => left + ((right - left) * (time - first)) / (last - first));
    const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * value) / ticks.at(-1).value;
    const path = (name) => adding === "step"
      ? this.#marks.flatMap((mark) => [[x(mark.start), y(mark[name])], [x(mark.end), y(mark[name])]])
      : [[x(first), y(0)], ...this.#marks.map((mark) => [x(mark.end), y(mark[name])])];
    const above = path("gone"), below = path("paid");
    this.#cursor = s("g", { class: "cursor", visibility: "hidden" },
      s("line", { y1: TOP, y2: HEIGHT - BOTTOM }), s("circle", { r: 4, class: "gone" }), s("circle", { r: 4, class: "paid" }));
    this.#cursor.place = (mark) => {
      const here = adding === "step" ? (x(mark.start) + x(mark.end)) / 2 : x(mark.end);
      const [rule, one, two] = this.#cursor.children;
      for (const [name, value] of [["x1", here], ["x2", here]]) rule.setAttribute(name, value);
      for (const [dot, name] of [[one, "gone"], [two, "paid"]]) {
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
          s("text", { class: strong ? "when strong" : "when", x: Math.min(right - 14, Math.max(left + 14, x(value))), y: HEIGHT - 6, "text-anchor": "middle" }, text)),
        above.length > 1 && s("path", { class: "saved-area", d: `${line(above)}${line(below.toReversed()).replace("M", "L")}Z` }),
        above.length > 1 && s("path", { class: "paid-area", d: `${line(below)}L${below.at(-1)[0]} ${y(0)}L${below[0][0]} ${y(0)}Z` }),
        s("path", { class: "gone-line", d: line(above) }),
        s("path", { class: "paid-line", d: line(below) }),
        this.#cursor));
    this.#plot.setAttribute("aria-valuemax", Math.max(0, this.#marks.length - 1));
    this.#read(this.#at === null ? null : Math.min(this.#at, this.#marks.length - 1));
  }

  /** Show the numbers of a step; null: none. */
  #read(k) {
    this.#at = k;
    const mark = k === null ? null : this.#marks[k];
    this.#cursor?.setAttribute("visibility", mark ? "visible" : "hidden");
    this.#tip.hidden = !mark;
    if (!mark) return;
    const { unit, adding } = this.#data;
    const saved = mark.gone - mark.paid;
    const share = mark.gone > 0 ? ` (${percent(saved / mark.gone)})` : "";
    const when = adding === "step" ? mark.label : `up to ${mark.label.split(" – ").at(-1)}`;
    const entry = (kind, name, value) => h("div", { class: kind }, h("span", {}, name), h("b", {}, value));
    this.#tip.replaceChildren(h("div", { class: "tip-when" }, when),
      entry("gone", "Without", amount(mark.gone, unit)), entry("paid", "With", amount(mark.paid, unit)),
      entry("saved", "Saved", amount(saved, unit) + share));
    const here = this.#cursor.place(mark), room = this.#root.clientWidth, own = this.#tip.offsetWidth;
    const place = here + 14 + own <= room ? here + 14 : here - 14 - own;
    this.#tip.style.left = `${Math.max(0, Math.min(place, room - own))}px`;
    this.#plot.setAttribute("aria-valuenow", k);
    this.#plot.setAttribute("aria-valuetext",
      `${when}: ${amount(mark.gone, unit)} without, ${amount(mark.paid, unit)} with, ${amount(saved, unit)} saved`);
  }

  #point(event) {
    if (!this.#marks.length) return;
    const here = event.clientX - this.#plot.getBoundingClientRect().left;
    const spot = this.#data.adding === "step" ? (mark) => (this.#x(mark.start) + this.#x(mark.end)) / 2 : (mark) => this.#x(mark.end);
    let best = 0;
    this.#marks.forEach((mark, k) => {
      if (Math.abs(spot(mark) - here) < Math.abs(spot(this.#marks[best]) - here)) best = k;
    });
    this.#read(best);
  }

  #key(event) {
    const last = this.#marks.length - 1, k = this.#at ?? last;
    const to = { ArrowLeft: k - 1, ArrowRight: k + 1, PageUp: k - 10, PageDown: k + 10, Home: 0, End: last }[event.key];
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.#read(Math.max(0, Math.min(last, to)));
  }
}
