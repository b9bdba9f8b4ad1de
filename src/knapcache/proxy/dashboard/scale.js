// Axes: positions and labels of ticks.

import { day, digits, minute } from "./format.js";

const MINUTE = 60, HOUR = 3600, DAY = 86_400;
const TIMES = [MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY, 91 * DAY, 182 * DAY, 364 * DAY];
const TIME_UNITS = [[DAY, "d"], [HOUR, "h"], [MINUTE, "min"], [1, "s"], [1e-3, "ms"], [1e-6, "µs"]];

/** The smallest of 1, 2, 5 times a power of ten that is at least `least`. */
export function nice(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].find((k) => k * power >= least * (1 - 1e-9)) * power;
}

/** Ticks from 0 to at least `highest`: [{value, text}], about `wanted` of them. */
export function amounts(highest, unit, wanted = 5) {
  const top = highest > 0 ? highest : unit === "usd" ? 0.01 : 1;
  // Steps are round in the unit of the label: 2 h, not 10,000 s = 2.78 h.
  const [one, name] = unit === "seconds" ? TIME_UNITS.find(([length]) => top >= length) ?? TIME_UNITS.at(-1) : [1, ""];
  const step = nice(top / one / wanted);
  const after = Math.max(unit === "usd" && step < 1 ? 2 : 0, -Math.floor(Math.log10(step) + 1e-9));
  const label = (value) => {
    if (unit === "usd") return `$${value.toLocaleString("en-US", { minimumFractionDigits: Math.min(after, 12), maximumFractionDigits: Math.min(after, 12) })}`;
    if (unit === "percent") return `${digits(Number(value.toPrecision(6)))} %`;
    return name ? `${digits(Number(value.toPrecision(6)))} ${name}` : digits(Number(value.toPrecision(6)));
  };
  const ticks = [];
  for (let k = 0; (k - 1) * step < (top / one) * (1 - 1e-9); k++) ticks.push({ value: k * step * one, text: label(k * step) });
  return ticks;
}

/** At most `limit` ticks between two times, at round local times: [{value, text, strong}]. Midnights are strong and show the day. */
export function times(start, end, limit) {
  const step = TIMES.find((length) => (end - start) / length <= limit) ?? TIMES.at(-1);
  const zone = (unix) => 60 * new Date(unix * 1000).getTimezoneOffset();
  const ticks = [];
  for (let local = Math.ceil((start - zone(start)) / step) * step; ; local += step) {
    const value = local + zone(local + zone(start)); // daylight saving time may begin or end in between
    if (value > end) return ticks;
    if (value < start) continue;
    const strong = local % DAY === 0;
    ticks.push({ value, text: strong || step >= DAY ? day(value) : minute(value), strong: strong && step < DAY });
  }
}

/** Group steps into at most about `limit` groups of round length: [{start, end, rows}]. */
export function grouped(points, step, limit) {
  const wanted = (points.length * step) / limit;
  const length = wanted <= step ? step : TIMES.find((time) => time >= wanted && time % step === 0) ?? Math.ceil(wanted / step) * step;
  const groups = [];
  for (const point of points) {
    // Groups start at multiples of their length; ungrouped points keep their time.
    const start = length === step ? point.time : Math.floor(point.time / length) * length;
    if (groups.at(-1)?.start !== start) groups.push({ start, end: start + length, rows: [] });
    groups.at(-1).rows.push(point);
  }
  if (groups.length) groups[0].start = Math.max(groups[0].start, points[0].time);
  return groups;
}
