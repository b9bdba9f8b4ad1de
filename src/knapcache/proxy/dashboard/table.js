// A card with a heading and a table. Without rows it says what to do.

import { h, replaceRows } from "./dom.js";

export class TableCard {
  #drawn = null; #body; #columns; #empty;

  /** headings: [[title, class]]; empty: text or nodes; kind: classes of the card; dollars: the table has some; tools: nodes. */
  constructor(id, title, headings, { empty = "", kind = "", dollars = false, tall = false, tools = [] } = {}) {
    this.#columns = headings.length;
    this.#empty = empty;
    this.#body = h("tbody", {});
    this.note = h("span", { class: "note", id: `${id}-note`, role: "status" });
    this.head = h("thead", {}, h("tr", {}, headings.map(([text, kinds]) => h("th", { scope: "col", class: kinds }, text))));
    this.root = h("article", { class: `card flush ${kind}` },
      h("header", { class: "head" }, h("h2", { id: `${id}-title` }, title), dollars && h("span", { class: "simulated" }, "simulated prices"), this.note, tools),
      h("div", { class: tall ? "scroll tall" : "scroll", tabindex: 0, role: "region", "aria-labelledby": `${id}-title` },
        h("table", { id: `${id}-table` }, this.head, this.#body)));
  }

  /** Draw `list`, unless it is as before. cells(one): the cells of its row; key(one): a name of the row, to keep the focus. */
  draw(list, cells, { key = () => null, also = "", empty = this.#empty } = {}) {
    const text = JSON.stringify([list, also]);
    if (text === this.#drawn) return;
    this.#drawn = text;
    replaceRows(this.#body, list.length ? list.map((one) => h("tr", { data: { key: key(one) ?? "" } }, cells(one)))
      : [h("tr", { class: "empty" }, h("td", { colspan: this.#columns }, empty))]);
  }
}
