// Webhooks and their last deliveries.

import { dot, figure, h, setText } from "/dashboard/dom.js";
import { age, counted } from "/dashboard/format.js";
import { TableCard } from "/dashboard/table.js";

export function card(root) {
  const show = figure(root);
  return ({ health: { webhooks }, now }) => {
    const failed = webhooks.filter(({ error }) => error), last = webhooks.filter(({ event }) => event).sort((a, b) => b.time - a.time)[0];
    if (failed.length) show(`${failed.length} of ${webhooks.length} failed`, `${failed[0].name}: ${failed[0].error}`, "bad");
    else show(counted(webhooks.length, "webhook"), last ? `The last event, ${last.event}, was delivered ${age(now - last.time)} ago.` : "No event yet.");
  };
}

export function view(root) {
  const table = new TableCard("webhooks", "Webhooks", [["Webhook", "model"], ["Events", "model hide-small"], ["Last event", "model"], ["Delivery", "model details"], ["Age"]], { tall: true });
  setText(table.note, "get a request when a state changes");
  root.append(table.root);
  return ({ health: { webhooks }, now }) => table.draw(webhooks, ({ name, events, event, time, error }) => [
    h("td", { class: "model" }, name), h("td", { class: "model details hide-small", title: events.join(", ") }, events.length ? events.join(", ") : "all"),
    h("td", { class: "model" }, event ?? "none yet"), h("td", { class: "model details", title: error }, event ? [dot(error ? "bad" : "good"), error || "delivered"] : "–"),
    h("td", {}, event ? age(now - time) : "–")], { key: ({ name }) => name, also: webhooks.map(({ time }) => time && age(now - time)) });
}
