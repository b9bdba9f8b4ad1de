// Admin actions from the audit log, newest first. Only operators may read it.

import * as api from "./api.js";
import { byId, h, replaceRows, setText } from "./dom.js";
import { age, count, moment } from "./format.js";

const ROWS = 20;
const ACTIONS = {
  purge: "Purge", forget: "Purge of an entry", snapshot: "Snapshot", start_plan: "Capacity plan", entry: "Content shown", request: "Content shown", entries: "First words listed", login: "Login",
  logout: "Logout", rotate_token: "Token replaced", log: "Content log searched", log_line: "Content shown", purge_log: "Purge of log lines",
  semantic: "Questions listed", mark_match: "Match marked as wrong",
};

const WORDS = { key: (value) => `key ${value.slice(0, 8)}`, older_than: (value) => `older than ${age(value)}` };

/** Parameters and result in one line: "model gpt-4o → purged 12". */
function details({ parameters, result, skipped }) {
  const words = (fields) => Object.entries(fields ?? {}).filter(([, value]) => value !== true)
    .map(([name, value]) => WORDS[name]?.(value) ?? `${name} ${value}`);
  const all = parameters.all ? ["all entries"] : [];
  const more = skipped ? [`${count(skipped)} more not recorded`] : [];
  return [[...all, ...words(parameters), ...more].join(", "), words(result).join(", ")].filter(Boolean).join(" → ");
}

export class Audit {
  #drawn = "";

  constructor() {
    byId("audit-table").tHead.append(h("tr", {}, [["Time", "time"], ["Action", "model"], ["Details", "model hide-small"],
      ["Token", "model"], ["Address", "model hide-small"], ["Status"]].map(([title, kind]) => h("th", { scope: "col", class: kind ?? "" }, title))));
  }

  async refresh() {
    if (api.session.role !== "operator") return;
    let rows;
    try {
      ({ rows } = await api.get("/audit", { limit: ROWS }));
    } catch (error) {
      if (error instanceof api.Unauthorized) throw error;
      setText("audit-note", error.message); // the rest of the page does not depend on the log
      return;
    }
    const text = JSON.stringify(rows);
    if (text === this.#drawn) return;
    this.#drawn = text;
    setText("audit-note", rows.length === ROWS ? `the last ${ROWS}` : "");
    replaceRows(byId("audit-table").tBodies[0], rows.length ? rows.map((row) => h("tr", {},
      h("td", { class: "time" }, moment(Date.parse(row.time) / 1000)), h("td", { class: "model" }, ACTIONS[row.action] ?? row.action),
      h("td", { class: "model details hide-small" }, details(row) || "–"), h("td", { class: "model" }, row.name || "–"),
      h("td", { class: "model hide-small" }, row.address || "–"),
      h("td", { class: row.status >= 400 ? "error" : "" }, row.status == null ? "unfinished" : String(row.status))))
      : [h("tr", { class: "empty" }, h("td", { colspan: 6 }, "No admin actions yet."))]);
  }

  /** Remove the rows: the next session may not read them. */
  clear() {
    this.#drawn = "";
    byId("audit-table").tBodies[0].replaceChildren();
  }
}
