// The content log: search requests and answers by their text, and read one line. Only for operators, if the settings
// content_log and show_content are on. Nothing is polled: the list changes when somebody searches.

import * as api from "./api.js";
import { copyable, toast } from "./dialogs.js";
import { byId, h, replaceRows, setText } from "./dom.js";
import { bytes, count, counted, day, clock, moment, time, usd } from "./format.js";
import { OUTCOMES } from "./why.js";

const PAGE = 50; // lines
const SAVED = ["hit", "similar", "coalesced", "stale"]; // outcomes that cost nothing
const START = "\x02", END = "\x03"; // around found words in an excerpt
const HEADINGS = [["Time", "time"], ["Outcome", "outcome"], ["Model", "model"], ["Tenant", "tenant hide-small"], ["Text", "excerpt"], ["Saved or spent", "cost hide-small"], ["Total", "seconds hide-small"]];

const fact = (name, ...value) => h("div", {}, h("dt", {}, name), h("dd", {}, ...value));
const indented = (value) => JSON.stringify(value, null, 2);

/** What an answer cost, and whether that was saved or spent. */
const dollars = ({ usd: cost, outcome }) => (cost == null ? "–" : `${usd(cost)} ${SAVED.includes(outcome) ? "saved" : "spent"}`);

/** An excerpt with the found words marked. */
function marked(excerpt) {
  return excerpt.split(START).flatMap((part, index) => {
    if (index === 0) return [part];
    const [found, ...rest] = part.split(END);
    return [h("mark", {}, found), rest.join("")];
  });
}

export class ContentLog {
  #rows = []; #query = {}; #calls = 0; #checked = false;

  constructor() {
    const table = byId("log-table");
    table.tHead.append(h("tr", {}, HEADINGS.map(([title, kind]) => h("th", { scope: "col", class: kind }, title))));
    byId("log-outcome").append(h("option", { value: "" }, "All outcomes"), ...Object.keys(OUTCOMES).map((name) => h("option", { value: name }, name)));
    byId("log-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.search();
    });
    byId("log-outcome").addEventListener("change", () => this.search());
    byId("log-more").addEventListener("click", () => this.#load(this.#rows.at(-1)?.id));
  }

  /** Show the newest lines once for each session, or how to switch the log on. */
  update(summary) {
    const on = summary.content_log && api.session.role === "operator";
    byId("log-off").hidden = on;
    byId("content-log").classList.toggle("no-dollars", !on);
    byId("log-body").hidden = byId("log-form").hidden = !on;
    if (!on && !byId("log-off").hasChildNodes()) drawOff();
    if (!on || this.#checked) return;
    this.#checked = true;
    this.#load();
  }

  /** Search for what the fields say. */
  async search() {
    const text = byId("log-search").value.trim(), outcome = byId("log-outcome").value;
    this.#query = { ...(text ? { text } : {}), ...(outcome ? { outcome } : {}) };
    await this.#load();
  }

  async #load(before) {
    const call = ++this.#calls;
    let rows;
    try {
      ({ rows } = await api.get("/log", { ...this.#query, limit: PAGE, ...(before ? { before } : {}) }));
    } catch (error) {
      setText("log-note", error.message); // the rest of the page does not depend on the log
      return;
    }
    if (call !== this.#calls) return;
    this.#rows = before ? [...this.#rows, ...rows] : rows;
    setText("log-note", this.#rows.length ? rows.length === PAGE ? `the newest ${count(this.#rows.length)} lines` : counted(this.#rows.length, "line") : "");
    byId("log-more").parentElement.hidden = rows.length < PAGE;
    replaceRows(byId("log-table").tBodies[0], this.#rows.length ? this.#rows.map((row) => this.#row(row))
      : [h("tr", { class: "empty" }, h("td", { colspan: HEADINGS.length }, Object.keys(this.#query).length ? "No line has all of these words." : "No requests yet."))]);
  }

  #row(row) {
    return h("tr", { data: { key: String(row.id) } },
      h("td", { class: "time", title: day(row.time) }, moment(row.time)), h("td", { class: "outcome" }, h("span", { class: `outcome ${row.outcome}` }, row.outcome)),
      h("td", { class: "model" }, row.model || "–"), h("td", { class: "model tenant hide-small" }, row.tenant || "–"),
      h("td", { class: "model excerpt" }, h("button", { type: "button", class: "link", on: { click: () => this.#open(row.id) } }, row.excerpt.trim() ? marked(row.excerpt) : "(no text)")),
      h("td", { class: "cost hide-small" }, dollars(row)), h("td", { class: "seconds hide-small" }, time(row.seconds)));
  }

  /** Show one line with its request and its answer. */
  async #open(id) {
    let line;
    try {
      line = await api.get(`/log/lines/${id}`);
    } catch (error) {
      toast(error.status === 404 ? "This line was deleted meanwhile" : error.message, "bad");
      return;
    }
    const dialog = byId("drawer"), known = (value) => Object.keys(value).length > 0;
    dialog.replaceChildren(
      h("header", { class: "head" }, h("span", { class: `outcome ${line.outcome}` }, line.outcome), h("h2", { id: "drawer-title" }, line.model || line.endpoint),
        h("button", { type: "button", class: "quiet icon", "aria-label": "Close", autofocus: true, on: { click: () => dialog.close() } }, "✕")),
      h("div", { class: "sheet" },
        line.prompt && [h("h3", {}, "Question"), h("p", { class: "logged" }, line.prompt)],
        line.answer && [h("h3", {}, "Answer"), h("p", { class: "logged" }, line.answer)],
        line.cut && h("p", { class: "sub" }, "A part of the request or the answer is not in the log: it was too long, or no text."),
        h("dl", { class: "facts" },
          fact("Time", `${day(line.time)}, ${clock(line.time)}`), fact("Endpoint", line.endpoint, line.stream && ", streamed"), fact("Tenant", line.tenant || "–"),
          line.route && fact("Route", line.route), fact("Status", String(line.status)), fact("Upstream", line.upstream || "not called"),
          fact(SAVED.includes(line.outcome) ? "Saved" : "Spent", line.usd == null ? "–" : usd(line.usd)), fact("Tokens", line.tokens ? count(line.tokens) : "–"),
          fact("Time taken", time(line.seconds)), line.size > 0 && fact("Size of the entry", bytes(line.size)),
          fact("Key", line.key ? h("code", { class: "key" }, line.key) : "none"), fact("Line", String(line.id))),
        known(line.request) && [h("h3", {}, "Request, after redaction"), copyable(indented(line.request), "the request")],
        known(line.response) && [h("h3", {}, "Response, after redaction"), copyable(indented(line.response), "the response")]));
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
  }

  /** Remove the lines: the next session may not read them. */
  clear() {
    this.#rows = [];
    this.#checked = false;
    byId("log-table").tBodies[0].replaceChildren();
  }
}

function drawOff() {
  byId("log-off").append(h("p", { class: "sub" }, "The proxy can log requests and answers with their text, after redaction of e-mail addresses and keys. To search them here, set both of these and restart:"),
    copyable("content_log = true\nshow_content = true", "the settings"));
}
