// The view of settings: features that are on and off, the server, the proxies of a shared store, admin tokens, admin actions.

import * as api from "./api.js";
import { copyable, toast } from "./dialogs.js";
import { byId, dot, h, setText } from "./dom.js";
import { age, count, moment } from "./format.js";
import { panels } from "./frame.js";
import { serverFacts } from "./health.js";
import { TableCard } from "./table.js";

const AUDIT_ROWS = 20;
const ACTIONS = {
  purge: "Purge", forget: "Purge of an entry", snapshot: "Snapshot", start_plan: "Capacity plan", entry: "Content shown", request: "Content shown", entries: "First words listed", login: "Login",
  logout: "Logout", rotate_token: "Token replaced", log: "Content log searched", log_line: "Content shown", purge_log: "Purge of log lines",
  semantic: "Questions listed", mark_match: "Match marked as wrong", reset_semantic: "Labels of similar questions forgotten",
};
const WORDS = { key: (value) => `key ${value.slice(0, 8)}`, older_than: (value) => `older than ${age(value)}` };
const ROLES = { operator: "everything", "read-only": "figures, neither content nor changes" };

const cell = (text, kind = "model", title = null) => h("td", { class: kind, title }, text);

export function view(root) {
  byId("snapshot").addEventListener("click", async () => {
    try {
      await api.change("POST", "/snapshot");
      toast("Snapshot saved");
    } catch (error) {
      toast(`Snapshot failed: ${error.message}`, "bad");
    }
  });
  drawFeatures();
  const proxies = new TableCard("proxies", "Proxies", [["Proxy", "model"], ["Version", "model hide-small"], ["Running for"], ["Requests"], ["Owner", "model"]]);
  const engine = proxies.root.insertBefore(h("p", { class: "sub engine", id: "engine" }), proxies.root.lastElementChild);
  const tokens = new TableCard("tokens", "Admin tokens", [["Token", "model"], ["Role", "model"], ["Allows", "model hide-small"]], { kind: "operator" });
  const audit = new TableCard("audit", "Admin actions", [["Time", "time"], ["Action", "model"], ["Details", "model hide-small"], ["Token", "model"], ["Address", "model hide-small"], ["Status"]],
    { kind: "operator", empty: "No admin actions yet. Logins, purges and readings of content are listed here." });
  root.append(proxies.root, tokens.root, audit.root);
  return async (summary, slow) => {
    byId("server").replaceChildren(...serverFacts(summary));
    proxies.root.hidden = !summary.health.engine;
    if (summary.health.engine) drawProxies(proxies, engine, await api.get("/proxies"), summary.now);
    if (!slow || api.session.role !== "operator") return;
    const [{ rows }] = await Promise.all([api.get("/tokens"), drawAudit(audit)]);
    tokens.draw(rows, ({ name, role }) => [cell(name), cell(role), cell(ROLES[role], "model hide-small")], { key: ({ name }) => name });
    setText(tokens.note, rows.length > 1 ? "" : "Add others, with a role, as [[admin_tokens]] to the settings file.");
  };
}

/** One row for each feature: its view if it is on, otherwise the setting that turns it on. */
function drawFeatures() {
  byId("panels").replaceChildren(...panels.map(({ name, title, about, on, turn_on: line }) => h("li", { data: { name, on } },
    h("b", {}, on ? h("a", { href: `/dashboard/${name}` }, title) : title), h("span", { class: "note" }, about),
    on ? h("span", { class: "state" }, dot("good"), "on") : copyable(line, `the setting of ${title}`))));
}

function drawProxies(table, place, { engine, rows, ended, ignored }, now) {
  const since = age(now - engine.since), problem = { "read-only": `takes no writes, for ${since}`, away: `does not answer, for ${since}` }[engine.state];
  const more = [ended && `${count(ended)} more have ended and are part of the sums`, ignored && `${count(ignored)} documents could not be read`];
  setText(table.note, more.filter(Boolean).join("; "));
  place.replaceChildren(dot({ ok: "good", "read-only": "fair" }[engine.state] ?? "bad"),
    problem ? `${engine.place} ${problem}: ${engine.reason}. The numbers on this page are those of this proxy.` : engine.place);
  table.draw(rows, (row) => [
    cell([row.host, row.this && h("small", {}, "this page"), row.workers > 1 && h("small", {}, `${count(row.workers)} workers`)], "model", row.id),
    cell(row.version, "model hide-small"), cell(age(now - row.started), "", `since ${moment(row.started)}`), cell(count(row.requests), ""), cell(row.owner ? "owner" : "–")],
  { key: (row) => row.id, also: rows.map((row) => age(now - row.started)) });
}

async function drawAudit(table) {
  let rows;
  try {
    ({ rows } = await api.get("/audit", { limit: AUDIT_ROWS }));
  } catch (error) {
    if (error instanceof api.Unauthorized) throw error;
    setText(table.note, error.message); // the rest of the page does not depend on the log
    return;
  }
  setText(table.note, rows.length === AUDIT_ROWS ? `the last ${AUDIT_ROWS}` : "");
  table.draw(rows, (row) => [cell(moment(Date.parse(row.time) / 1000), "time"), cell(ACTIONS[row.action] ?? row.action), cell(details(row) || "–", "model details hide-small"),
    cell(row.name || "–"), cell(row.address || "–", "model hide-small"), cell(row.status == null ? "unfinished" : String(row.status), row.status >= 400 ? "error" : "")]);
}

/** Parameters and result of an action in one line: "model gpt-4o → purged 12". */
function details({ parameters, result, skipped }) {
  const words = (fields) => Object.entries(fields ?? {}).filter(([, value]) => value !== true)
    .map(([name, value]) => WORDS[name]?.(value) ?? `${name} ${value}`);
  const all = parameters.all ? ["all entries"] : [], more = skipped ? [`${count(skipped)} more not recorded`] : [];
  return [[...all, ...words(parameters), ...more].join(", "), words(result).join(", ")].filter(Boolean).join(" → ");
}
