// The routes of the settings: when each applies, what it does, and how recent requests fared. Hidden without routes.

import { byId, h, replaceRows } from "./dom.js";
import { count } from "./format.js";

const HEADINGS = [["Route", "model"], ["Applies if", "model"], ["Rules", "model"], ["Last 1,000 requests"]];

const shown = (value) => (Array.isArray(value) ? value.map((each) => each.name ?? each).join(", ") : String(value));

export class Routes {
  #drawn = "";

  constructor() {
    byId("routes-table").tHead.append(h("tr", {}, HEADINGS.map(([title, kind]) => h("th", { scope: "col", class: kind ?? "" }, title))));
  }

  update({ routes }) {
    byId("routes").hidden = !routes.length;
    const text = JSON.stringify(routes);
    if (text === this.#drawn) return;
    this.#drawn = text;
    replaceRows(byId("routes-table").tBodies[0], routes.map(({ name, conditions, rules, recent }) => {
      const outcomes = Object.entries(recent).map(([outcome, number]) => `${count(number)}\u00a0${outcome}`);
      return h("tr", { data: { key: name } },
        h("td", { class: "model" }, name),
        h("td", { class: "model" }, conditions.join(" and ") || "always"),
        h("td", { class: "model" }, Object.entries(rules).map(([rule, value]) => `${rule} = ${shown(value)}`).join(", ") || "–"),
        h("td", {}, outcomes.join(", ") || "none"));
    }));
  }
}
