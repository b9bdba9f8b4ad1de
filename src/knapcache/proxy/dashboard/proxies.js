// The proxies of a shared store, and the state of its engine. Without a shared store the card is hidden.

import * as api from "./api.js";
import { byId, h, replaceRows, setText } from "./dom.js";
import { age, count, moment } from "./format.js";

const HEADINGS = [["Proxy", "model"], ["Version", "model hide-small"], ["Running for"], ["Requests"], ["Owner", "model"]];

export class Proxies {
  #drawn = ""; #shared = false;

  constructor() {
    byId("proxies-table").tHead.append(h("tr", {}, HEADINGS.map(([title, kind]) => h("th", { scope: "col", class: kind ?? "" }, title))));
  }

  update({ health }) {
    this.#shared = health.engine != null;
    byId("proxies").hidden = !this.#shared;
    document.body.toggleAttribute("data-shared", this.#shared);
  }

  async refresh(now) {
    if (!this.#shared) return;
    const { engine, rows, ended, ignored } = await api.get("/proxies");
    const since = age(now - engine.since), problem = { "read-only": `takes no writes, for ${since}`, away: `does not answer, for ${since}` }[engine.state];
    const more = [ended && `${count(ended)} more have ended and are part of the sums`, ignored && `${count(ignored)} documents could not be read`];
    setText("proxies-note", more.filter(Boolean).join("; "));
    byId("engine").replaceChildren(h("i", { class: `dot ${{ ok: "good", "read-only": "fair" }[engine.state] ?? "bad"}`, "aria-hidden": "true" }),
      problem ? `${engine.place} ${problem}: ${engine.reason}. The numbers on this page are those of this proxy.` : engine.place);
    const text = JSON.stringify([rows, rows.map((row) => age(now - row.started))]);
    if (text === this.#drawn) return;
    this.#drawn = text;
    replaceRows(byId("proxies-table").tBodies[0], rows.map((row) => h("tr", { data: { key: row.id } },
      h("td", { class: "model", title: row.id }, row.host, row.this ? h("small", { class: "price" }, "this page") : null, row.workers > 1 ? h("small", { class: "price" }, `${count(row.workers)} workers`) : null),
      h("td", { class: "model hide-small" }, row.version), h("td", { title: `since ${moment(row.started)}` }, age(now - row.started)),
      h("td", {}, count(row.requests)), h("td", { class: "model" }, row.owner ? "owner" : "–"))));
  }
}
