// Text forms of numbers and times. Every amount is in the unit of the cache's cost.
//
//     unit "usd"        dollars              $0.000012   $0.0342   $12.30   $1,234
//     unit "seconds"    time                 420 ms   4.2 s   12 min   3.4 h
//     any blend         a plain number       a sum of dollars and seconds has no unit
//
// Dollars and seconds never share a sum or an axis.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** 1,234 */
export const count = (value) => whole.format(value ?? 0);

/** A number with its noun: 1 call, 1,234 calls, 2 entries with the plural given. */
export const counted = (value, singular, plural = `${singular}s`) => `${count(value)} ${value === 1 ? singular : plural}`;

/** Tokens: 1,234, or 12.3 M from a million on. */
export const tokens = (value) => (value < 1e6 ? whole.format(value ?? 0) : `${digits(Number((value / 1e6).toPrecision(3)))} M`);

/** Three significant digits, without an exponent. */
export function digits(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 100) return whole.format(value);
  const after = Math.min(12, Math.max(0, 2 - Math.floor(Math.log10(size))));
  return value.toFixed(after).replace(/\.?0+$/, "");
}

/** Dollars. */
export function usd(value) {
  const size = Math.abs(value ?? 0);
  const sign = value < 0 ? "−" : "";
  if (size === 0) return "$0.00";
  if (size >= 1000) return `${sign}$${whole.format(size)}`;
  if (size >= 1) return `${sign}$${size.toFixed(2)}`;
  if (size < 5e-10) return `${sign}<$0.000000001`;
  const after = Math.max(2, Math.min(9, 2 - Math.floor(Math.log10(size))));
  return `${sign}$${size.toFixed(after).replace(/(\.\d\d\d*?)0+$/, "$1")}`;
}

const STEPS = [[1e-3, 1e-6, "µs"], [1, 1e-3, "ms"], [60, 1, "s"], [3600, 60, "min"], [2 * 86400, 3600, "h"], [Infinity, 86400, "d"]];

/** A duration in its largest unit of at least 1. */
export function time(value) {
  const size = Math.abs(value ?? 0);
  if (size === 0) return "0 s";
  const [, one, name] = STEPS.find(([below]) => size < below);
  return `${value < 0 ? "−" : ""}${digits(Number((size / one).toPrecision(3)))} ${name}`;
}

/** An amount in the unit of the cache's cost. */
export const amount = (value, unit) =>
  unit === "usd" ? usd(value) : unit === "seconds" ? time(value) : digits(value ?? 0).replace("-", "−");

/** The noun for amounts. */
export const noun = (unit) => (unit === "seconds" ? "time" : "cost");

/** Bytes in decimal units, as capacities are configured. */
export function bytes(value) {
  let size = value ?? 0;
  for (const name of ["B", "kB", "MB", "GB"]) {
    if (Math.abs(size) < 999.5) return `${digits(size)} ${name}`;
    size /= 1000;
  }
  return `${digits(size)} TB`;
}

/** A share of one: 34 %, 3.4 %, 99.9 %. */
export function percent(share) {
  if (!Number.isFinite(share)) return "–";
  const value = 100 * share;
  if (value > 0 && value < 0.05) return "< 0.1 %";
  const near = Math.abs(value) < 10 || (value > 99 && value < 100);
  const text = near && value !== 0 ? value.toFixed(1) : value.toFixed(0);
  return `${text === "100.0" ? (value < 100 ? "99.9" : "100") : text} %`.replace("-", "−");
}

/** An age in whole units. */
export function age(seconds) {
  const value = Math.max(0, seconds ?? 0);
  if (value < 60) return `${Math.floor(value)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min`;
  if (value < 2 * 86400) return `${Math.floor(value / 3600)} h`;
  return `${Math.floor(value / 86400)} d`;
}

/** A request count of the policy. It decays with time, so it is not a whole number. */
export const fractionalCount = (times) => digits(times >= 10 ? Math.round(times) : times >= 1 ? Number(times.toFixed(1)) : Number(times.toPrecision(1)));

/** Requests per day of an entry; "–" where the server knows too little to tell. */
export const rate = (row) => (row.per_day == null ? "–" : fractionalCount(row.per_day));

const clockForm = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const minuteForm = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const dayForm = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const fullForm = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" });

/** Local time, from Unix time. */
export const clock = (unix) => clockForm.format(unix * 1000);
export const minute = (unix) => minuteForm.format(unix * 1000);
export const day = (unix) => dayForm.format(unix * 1000);
export const moment = (unix) => fullForm.format(unix * 1000);

/** A range of time: "15 Nov, 14:05 – 14:10". */
export function range(start, end) {
  if (end - start >= 86400 - 3700) {
    const last = day(end - 1);
    return day(start) === last ? last : `${day(start)} – ${last}`;
  }
  return `${day(start)}, ${minute(start)} – ${minute(end)}`;
}
