// Webhooks and their last deliveries.

import { h, setText } from "/dashboard/dom.js";
import { age, counted } from "/dashboard/format.js";
import { TableCard } from "/dashboard/table.js";

const dot = (kind) => h("i", { class: `dot ${kind}`, "aria-hidden": "true" });

export function card(root) {
  const state = h("p", { class: "middle" }), text = h("p", { class: "sub" });
  root.append(state, text);
  return ({ health: { webhooks }, now }) => {
    const failed = webhooks.filter(({ error }) => error), last = webhooks.filter(({ event }) => event).sort((a, b) => b.time - a.time)[0];
    state.className = `middle ${failed.length ? "bad" : ""}`;
    setText(state, failed.length ? `${failed.length} of ${webhooks.length} failed` : counted(webhooks.length, "webhook"));
    setText(text, failed.length ? `${failed[0].name}: ${failed[0].error}` : last ? `The last event, ${last.event}, was delivered ${age(now - last.time)} ago.` : "No event yet.");
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
