// The overview: savings, hit rates, capacity, spend over time, health, and one part of each feature that is on.

import { fromCache, hitRate, sum } from "./amounts.js";
import { History, SpendChart } from "./charts.js";
import { copyable, panel } from "./dialogs.js";
import { byId, h, radioGroup, setText } from "./dom.js";
import { bytes, count, day, minute, noun, percent, time, usd } from "./format.js";
import { panels, shown } from "./frame.js";
import { drawHealth } from "./health.js";
import { drawWelcome } from "./welcome.js";

/** When the history began, as text. */
export const since = ({ now, since: start }) => (now - start < 86_400 ? minute(start) : day(start));

export function view() {
  const cards = drawCards(), chart = new SpendChart(byId("chart"));
  let mode = "cumulative", points = null, drawnFor = "", now = 0;
  const draw = () => {
    drawnFor = shown.id;
    chart.show({ ...points, mode, shown, now });
    drawLegend(chart, sum(points.points), mode);
  };
  const history = new History(byId("span"), (found) => {
    points = found;
    draw();
  });
  radioGroup(byId("chart-mode"), [["cumulative", "Cumulative"], ["step", "Per step"]], mode, (value) => {
    mode = value;
    if (points) draw();
  });
  return async (summary, slow) => {
    now = summary.now;
    const empty = summary.all.requests === 0 && summary.storage.entries === 0;
    if (empty && byId("welcome").hidden) drawWelcome(byId("welcome"), summary.first_request);
    byId("welcome").hidden = !empty;
    drawTiles(summary);
    drawHealth(summary);
    if (points && drawnFor !== shown.id) draw();
    await Promise.all([slow && history.load(), ...cards.map(async (update) => update(summary, slow))]);
  };
}

/** Draw the parts of the features. Returns their update functions. */
function drawCards() {
  const found = panels.filter(({ code }) => code?.card).map(({ name, title, code }) => {
    const root = h("div", { id: `${name}-card` }, h("h2", {}, code.view ? h("a", { href: `/dashboard/${name}` }, title) : title));
    byId("features").append(root);
    return code.card(root);
  });
  byId("features").hidden = !found.length;
  return found;
}

function drawTiles(summary) {
  const { today, all, storage, health: { engine } } = summary;
  setText("saved-today", shown.amount(shown.saved(today)));
  setText("saved-all", shown.amount(shown.saved(all)));
  setText("saved-since", ` since ${since(summary)}`);
  setText("saved-other", otherText(today));
  priceNote(summary);
  const simulated = shown.simulated ? " at simulated prices" : "";
  document.title = all.requests ? `${shown.amount(shown.saved(today))} saved today${simulated} · knapcache` : "knapcache";

  const [byCost, byRequests] = [shown.rate(today), hitRate(today)];
  setText("rate-cost-name", `by ${noun(shown.unit)}`);
  setText("rate-cost", percent(byCost));
  setText("rate-requests", percent(byRequests));
  const bars = byId("rate-bars").querySelectorAll("b");
  [byCost, byRequests].forEach((share, k) => (bars[k].style.width = `${100 * (share || 0)}%`));
  setText("rate-sub", `${count(fromCache(today))} of ${count(today.requests)} requests today`);

  // One scale: bytes charged for entries, of those that the policy may fill. Bytes on disk are another one, on the settings view.
  const used = storage.usable ? storage.bytes / storage.usable : 0;
  setText("capacity", `${bytes(storage.bytes)} of ${bytes(storage.usable)}`);
  const bar = byId("capacity-bar");
  bar.setAttribute("aria-valuenow", Math.round(100 * used));
  bar.firstElementChild.style.width = `${Math.min(100, 100 * used)}%`;
  setText("capacity-sub", `${percent(used)} full, ${count(storage.entries)} ${storage.entries === 1 ? "entry" : "entries"}`);
  setText("capacity-overhead", storage.usable < storage.capacity ? `For entries, of the configured ${bytes(storage.capacity)}. The rest is reserved for ${engine ? "the nursery, hit counts" : "the database's log, its index"} and the policy's state.` : "");
}

function otherText(today) {
  const model = `${time(today.seconds_saved)} of model time`; // summed over concurrent calls, so it may exceed the time of day
  const parts = { usd: [model], seconds: [], number: [model, today.usd_saved > 0 && usd(today.usd_saved)] }[shown.unit];
  if (today.tokens_saved) parts.push(`${count(today.tokens_saved)} tokens`);
  const text = parts.filter(Boolean).length ? `${parts.filter(Boolean).join(" and ")} saved today` : "";
  return shown.unit === "seconds" && today.seconds_saved ? `Model time, summed over concurrent calls${text ? `. ${text}` : ""}` : text;
}

/** Say what has no price, and how to set one. */
function priceNote({ models, prices }) {
  const unknown = models.filter((row) => ["unknown", "mixed"].includes(row.price) && row.unpriced > 0).map((row) => row.name);
  const text = !shown.asksPrices ? ""
    : unknown.length ? `${shown.unit === "usd" ? "Dollars are of models with a known price. " : ""}No price known for ${unknown.length === 1 ? unknown[0] : `${count(unknown.length)} models`}. `
    : prices === "none" ? "The embedded model is free, so savings are in seconds and tokens." : "";
  const note = byId("price-note");
  if (note.dataset.text === text) return;
  note.dataset.text = text;
  note.replaceChildren(text, unknown.length && text ? h("button", { type: "button", class: "link", on: { click: () => showPrices(unknown) } }, "Set a price") : "");
}

function drawLegend(chart, total, mode) {
  const item = (kind, name, value) => h("li", { class: kind }, h("i", { "aria-hidden": "true" }), name, " ", h("b", {}, value));
  byId("spend-legend").replaceChildren(
    item("without", "Without cache", shown.amount(shown.without(total))),
    item("spent", "With cache", shown.amount(shown.spent(total))),
    item("saved", "Saved", `${shown.amount(shown.saved(total))}${shown.without(total) > 0 ? ` (${percent(shown.rate(total))})` : ""}`),
    shown.partial ? h("li", {}, "only models with a known price") : "",
    mode === "step" ? h("li", {}, `step: ${time(chart.step)}`) : "");
  setText("spend-title", shown.unit === "seconds" ? "Model time with and without cache" : "Spend with and without cache");
}

/** Show how to set the prices of models. */
function showPrices(names) {
  const shown = names.slice(0, 10).map((name) => `[prices.${JSON.stringify(name)}]\ninput = 2.5    # dollars per million input tokens\noutput = 10.0  # dollars per million output tokens`);
  panel("Set a price", h("p", { class: "sub" }, "Without a known price, savings are in seconds and tokens. Add the prices to the settings file and restart the proxy. These numbers are examples."),
    copyable(shown.join("\n\n"), "the settings"));
}
