// Axes: where ticks stand, and what they say.

import { day, digits, minute } from "./format.js";

const MINUTE = 60, HOUR = 3600, DAY = 86_400;
const TIMES = [MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY, 91 * DAY, 182 * DAY, 364 * DAY];
const LENGTHS = [[DAY, "d"], [HOUR, "h"], [MINUTE, "min"], [1, "s"], [1e-3, "ms"], [1e-6, "µs"]];

/** The smallest of 1, 2, 5 times a power of ten that is at least `least`. */
export function nice(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].find((k) => k * power >= least * (1 - 1e-9)) * power;
}

/** Ticks from 0 to at least `most`: [{value, text}], about `wanted` of them, in the unit of the page. */
export function amounts(most, unit, wanted = 5) {
  const top = most > 0 ? most : unit === "usd" ? 0.01 : 1;
  // Hours are counted in hours: ticks at 2.78 h, because that is 10,000 s, help nobody.
  const [one, name] = unit === "seconds" ? LENGTHS.find(([length]) => top >= length) ?? LENGTHS.at(-1) : [1, ""];
  const step = nice(top / one / wanted);
  const after = Math.max(unit === "usd" && step < 1 ? 2 : 0, -Math.floor(Math.log10(step) + 1e-9));
  const say = (value) => {
    if (unit === "usd") return `$${value.toLocaleString("en-US", { minimumFractionDigits: Math.min(after, 12), maximumFractionDigits: Math.min(after, 12) })}`;
    return name ? `${digits(Number(value.toPrecision(6)))} ${name}` : digits(Number(value.toPrecision(6)));
  };
  const ticks = [];
  for (let k = 0; (k - 1) * step < (top / one) * (1 - 1e-9); k++) ticks.push({ value: k * step * one, text: say(k * step) });
  return ticks;
}

/** Ticks between two times, on round local times: [{value, text, strong}]; midnights are strong, and say the day. */
export function times(start, end, most) {
  const step = TIMES.find((length) => (end - start) / length <= most) ?? TIMES.at(-1);
  const zone = (unix) => 60 * new Date(unix * 1000).getTimezoneOffset();
  const ticks = [];
  for (let local = Math.ceil((start - zone(start)) / step) * step; ; local += step) {
    const value = local + zone(local + zone(start)); // the zone may change on the way
    if (value > end) return ticks;
    if (value < start) continue;
    const strong = local % DAY === 0;
    ticks.push({ value, text: strong || step >= DAY ? day(value) : minute(value), strong: strong && step < DAY });
  }
}

/** Steps grouped so that at most `most` remain, in round groups: the rows of each, with start and end. */
export function grouped(points, step, most) {
  const wanted = (points.length * step) / most;
  const length = wanted <= step ? step : TIMES.find((time) => time >= wanted && time % step === 0) ?? Math.ceil(wanted / step) * step;
  const groups = [];
  for (const point of points) {
    // Days as they come, shorter ones by the clock.
    const start = length === step ? point.time : Math.floor(point.time / length) * length;
    if (groups.at(-1)?.start !== start) groups.push({ start, end: start + length, rows: [] });
    groups.at(-1).rows.push(point);
  }
  if (groups.length) groups[0].start = Math.max(groups[0].start, points[0].time);
  return groups;
}
