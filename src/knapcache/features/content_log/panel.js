// The content log: search requests and answers by their text, and read one line. Only for operators, and only if the setting
// show_content is on as well. The list is not polled; it changes only with a search.

import * as api from "/dashboard/api.js";
import { copyable, openDrawer, toast } from "/dashboard/dialogs.js";
import { addStyles, fact, h, setText } from "/dashboard/dom.js";
import { bytes, clock, count, counted, day, moment, time, usd } from "/dashboard/format.js";
import { TableCard } from "/dashboard/table.js";
import { OUTCOMES } from "/dashboard/requests.js";

const PAGE = 50; // lines
const SAVED = ["hit", "similar", "coalesced", "stale"]; // outcomes that cost nothing
const START = "\x02", END = "\x03"; // around found words in an excerpt
const HEADINGS = [["Time", "time"], ["Outcome", "outcome"], ["Model", "model"], ["Tenant", "tenant hide-small"], ["Text", "excerpt"], ["Saved or spent", "cost hide-small"], ["Total", "seconds hide-small"]];

addStyles(`
  #log-off { display: grid; gap: 12px; }
  #log-table .excerpt { max-width: 0; width: 45%; text-align: left; }
  #log-table .excerpt button { display: block; max-width: 100%; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; text-align: left; }
  #log-table :is(td, th):is(.time, .outcome, .model, .tenant) { text-align: left; }
  .logged { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0 0 12px; max-height: 320px; overflow: auto; }
  @media (max-width: 420px) {
    #log-table :is(td, th).model:not(.excerpt) { display: none; }
    #log-table :is(td, th).time { white-space: normal; }
  }`);

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

export function card(root) {
  root.append(h("p", { class: "middle" }, "Logged"), h("p", { class: "sub" }, "Requests and answers with their text, after redaction. Operators search them by their words."));
  return () => {};
}

export function view(root) {
  const outcome = h("select", { id: "log-outcome" }, h("option", { value: "" }, "All outcomes"), Object.keys(OUTCOMES).map((name) => h("option", { value: name }, name)));
  const words = h("input", { id: "log-search", type: "search", placeholder: "Search the texts", title: 'All words must occur. "A phrase" in quotes; word* by its beginning.', autocomplete: "off", spellcheck: "false" });
  const form = h("form", { class: "controls", role: "search" },
    h("label", { class: "field" }, h("span", { class: "visually-hidden" }, "Outcome"), outcome),
    h("label", { class: "field search" }, h("span", { class: "visually-hidden" }, "Words in requests and answers"), words),
    h("button", { type: "submit" }, "Search"));
  const table = new TableCard("log", "Content log", HEADINGS, { dollars: true, tall: true, tools: form });
  const more = h("footer", { class: "foot", hidden: true }, h("button", { type: "button", class: "quiet", id: "log-more", on: { click: () => load(rows.at(-1)?.id) } }, "Older lines"));
  table.root.append(more);
  let rows = [], calls = 0, loaded = false;

  async function load(before) {
    const call = ++calls, text = words.value.trim(), asked = { ...(text && { text }), ...(outcome.value && { outcome: outcome.value }) };
    let found;
    try {
      ({ rows: found } = await api.get("/log", { ...asked, limit: PAGE, ...(before && { before }) }));
    } catch (error) {
      setText(table.note, error.message); // the rest of the page does not depend on the log
      return;
    }
    if (call !== calls) return;
    rows = before ? [...rows, ...found] : found;
    setText(table.note, rows.length ? found.length === PAGE ? `the newest ${count(rows.length)} lines` : counted(rows.length, "line") : "");
    more.hidden = found.length < PAGE;
    table.draw(rows, cells, { key: ({ id }) => String(id), empty: Object.keys(asked).length ? "No line has all of these words. Try fewer of them, or word* for a beginning." : "No lines yet. The next request is logged here; search again to see it." });
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    load();
  });
  outcome.addEventListener("change", () => load());
  return ({ content_log: readable }) => {
    const allowed = readable && api.session.role === "operator";
    if (allowed && !loaded) {
      root.replaceChildren(table.root);
      load();
    } else if (!allowed && !root.hasChildNodes()) root.append(h("article", { class: "card", id: "log-off" },
      readable ? h("p", { class: "sub" }, "Only operators can read the content log. Log in with a token of this role.")
        : [h("p", { class: "sub" }, "Requests and answers are logged. To search them here, add this line to the settings file and restart:"), copyable("show_content = true", "the setting")]));
    loaded ||= allowed;
  };
}

function cells(row) {
  return [
    h("td", { class: "time", title: day(row.time) }, moment(row.time)), h("td", { class: "outcome" }, h("span", { class: `outcome ${row.outcome}` }, row.outcome)),
    h("td", { class: "model" }, row.model || "–"), h("td", { class: "model tenant hide-small" }, row.tenant || "–"),
    h("td", { class: "model excerpt" }, h("button", { type: "button", class: "link", on: { click: () => open(row.id) } }, row.excerpt.trim() ? marked(row.excerpt) : "(no text)")),
    h("td", { class: "cost hide-small" }, dollars(row)), h("td", { class: "seconds hide-small" }, time(row.seconds))];
}

/** Show one line with its request and its answer. */
async function open(id) {
  let line;
  try {
    line = await api.get(`/log/lines/${id}`);
  } catch (error) {
    toast(error.status === 404 ? "This line was deleted meanwhile" : error.message, "bad");
    return;
  }
  const known = (value) => Object.keys(value).length > 0;
  openDrawer([h("span", { class: `outcome ${line.outcome}` }, line.outcome), line.model || line.endpoint], [
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
    known(line.response) && [h("h3", {}, "Response, after redaction"), copyable(indented(line.response), "the response")]]);
}
