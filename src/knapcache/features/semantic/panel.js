// The semantic tier: what is served by similarity, the certificate of each level of risk, and recent matches with feedback.
//
// The list of matches is redrawn only when it has changed, so that the focus stays on a button.

import * as api from "/dashboard/api.js";
import { confirm, toast } from "/dashboard/dialogs.js";
import { addStyles, byId, fact, figure, h, setText } from "/dashboard/dom.js";
import { clock, count, counted, day, digits, minute, percent, time, usd } from "/dashboard/format.js";

const LISTED = 20; // matches
const KINDS = {
  served: ["served", "The stored answer was sent."],
  shadow: ["not served", "The request went upstream: this level of risk is not certified, or the mode is shadow."],
  audit: ["audit", "The request went upstream to check the match: a share of them, drawn at random."],
};
const VERDICTS = { same: "same answer", different: "different answers", undecided: "undecided, counts as wrong" };
const NOT_EXCLUDED = ["veto", "evicted", "other frame"]; // reasons of requests that could have been matched
const REASONS = { deixis: "references such as “this”", date: "relative dates", language: "other languages", n: "several answers", code: "code" };
const FAILURES = {
  "not ready": "model not loaded yet", busy: "too many at once", timeout: "search over 2 s", failure: "store or embeddings failed",
  fault: "errors, see the log", closing: "proxy was stopping",
};
const MODES = { shadow: 'semantic = "shadow"', on: 'semantic = "on"' };

const text = (...parts) => h("p", { class: "sub" }, ...parts);
const times = (number) => (number === 1 ? "once" : `${count(number)} times`);
const sumOf = (counts, test) => Object.entries(counts).reduce((total, [name, number]) => total + (test(name) ? number : 0), 0);
/** Labels of some sums, and how many are wrong. source: shadow, audit or feedback; all by default. */
const labels = (usage, source = "") => sumOf(usage.labels, (name) => name.startsWith(source));
const wrong = (usage, source = "") => sumOf(usage.labels, (name) => name.startsWith(source) && !name.endsWith(" same"));
/** Error rates need more digits than shares: 0.83 %. */
const rate = (share) => (share >= 1 ? "–" : `${digits(Number((100 * share).toPrecision(2)))} %`);

addStyles(`
  #semantic-text { display: grid; gap: 8px; }
  #semantic-text .saved { color: var(--saved); }
  #semantic .problem { color: var(--warn); }
  #semantic-body { display: grid; grid-template-columns: minmax(0, 3fr) minmax(0, 2fr); gap: 24px 40px; margin-top: 16px; }
  #semantic-body > div:first-child { display: grid; grid-template-columns: minmax(0, 1fr); gap: 8px; align-content: start; }
  #semantic-others { max-width: 420px; }
  #semantic table.plain :is(th, td):not(:first-child):not(.state) { text-align: right; }
  #semantic table.plain :is(th, td) { white-space: nowrap; min-width: 0; }
  #semantic-others table.plain td.state { white-space: normal; }
  #semantic table.plain td.state { color: var(--soft); padding-left: 16px; }
  #semantic table.plain tr.serves td.state { color: var(--saved); font-weight: 550; }
  #semantic-matches { max-height: 460px; overflow: auto; }
  #semantic-matches li { border-top: 1px solid var(--line); padding: 10px 0; }
  #semantic-matches .line { display: flex; flex-wrap: wrap; align-items: center; gap: 4px 14px; min-height: 30px; }
  #semantic-matches .line button { margin-left: auto; font-size: 13px; }
  #semantic-matches .verdict { font-size: 13px; color: var(--saved); }
  #semantic-matches .verdict.wrong { color: var(--bad); font-weight: 550; }
  #semantic-matches .pairs { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: 4px 24px; margin-top: 4px; }
  #semantic-matches .pairs p { overflow-wrap: anywhere; }
  @media (max-width: 760px) { :is(#semantic-body, #semantic-matches .pairs) { grid-template-columns: minmax(0, 1fr); } }`);

/** Whether the tier serves, and what is certified. */
export function card(root) {
  const show = figure(root);
  return async () => {
    const { scopes, problem } = await api.get("/semantic", { limit: 1 });
    const serving = scopes.filter((scope) => scope.state === "serving"), judged = scopes.reduce((total, { all }) => total + labels(all), 0);
    show(problem ? "Does not work" : serving.length ? "Serving" : "In the shadow", problem || (serving.length ? `${count(scopes.reduce((total, { all }) => total + all.served, 0))} answers by similarity; at most ${rate(Math.max(...serving.map(({ bound }) => bound)))} are wrong`
      : `${counted(judged, "match", "matches")} judged so far`));
  };
}

export function view(root) {
  root.append(
    h("article", { class: "card" },
      h("header", { class: "head" }, h("h2", {}, "Semantic tier"), h("span", { class: "simulated" }, "simulated prices"), h("span", { class: "note", id: "semantic-note" }),
        h("div", { class: "controls" }, h("label", { class: "field", hidden: true }, h("span", { class: "visually-hidden" }, "Tenant"), h("select", { id: "semantic-scope" })))),
      h("div", { id: "semantic-text" }),
      h("div", { id: "semantic-body", hidden: true },
        h("div", {}, h("h3", {}, "Levels of risk"), h("div", { id: "semantic-levels", class: "scroll", tabindex: 0, role: "region", "aria-label": "Levels of risk" }),
          h("h3", {}, "What would be served at other error rates"), h("div", { id: "semantic-others" })),
        h("div", { id: "semantic-facts" }))),
    h("article", { class: "card" }, h("header", { class: "head" }, h("h2", {}, "Recent matches")), h("p", { class: "sub", id: "semantic-hint", hidden: true }), h("ul", { id: "semantic-matches" })));
  const semantic = new Semantic();
  return () => semantic.refresh();
}

class Semantic {
  #scope = ""; #drawn = ""; #listed = ""; #status = null; #calls = 0;

  constructor() {
    byId("semantic-scope").addEventListener("change", (event) => {
      this.#scope = event.target.value;
      this.refresh().catch((error) => toast(error.message, "bad"));
    });
  }

  /** Read the state of the tier. */
  async refresh() {
    const call = ++this.#calls;
    const status = await api.get("/semantic", { limit: LISTED, ...(this.#scope ? { scope: this.#scope } : {}) });
    if (call !== this.#calls) return;
    this.#status = status;
    await this.#draw();
  }

  async #draw() {
    const { scopes, matches, content, ...status } = this.#status;
    if (this.#scope && !scopes.some((one) => one.scope === this.#scope)) { // its tenant was removed
      this.#scope = "";
      return this.refresh();
    }
    const shown = scopes.find((one) => one.scope === this.#scope) ?? scopes[0];
    const drawn = JSON.stringify([shown, status, scopes.map((one) => one.scope)]);
    if (drawn !== this.#drawn) {
      this.#drawn = drawn;
      this.#drawScopes(scopes, shown);
      setText("semantic-note", shown ? MODES[shown.mode] : "");
      byId("semantic-text").replaceChildren(...sentences(status, shown));
      byId("semantic-body").hidden = !shown?.levels.length;
      if (shown?.levels.length) {
        byId("semantic-levels").replaceChildren(levelTable(shown), h("p", { class: "note" }, `Matches with a higher risk than ${rate(shown.levels.at(-1).threshold)} are in no level and never served.`));
        byId("semantic-others").replaceChildren(otherTable(shown));
        byId("semantic-facts").replaceChildren(...facts(status, shown));
      }
    }
    const list = JSON.stringify([matches, content, api.session.role]);
    if (list === this.#listed) return;
    this.#listed = list;
    byId("semantic-hint").replaceChildren(...hint(content));
    byId("semantic-hint").hidden = content || !matches.length;
    byId("semantic-matches").replaceChildren(...(matches.length ? matches.map((match) => this.#match(match)) : [h("li", { class: "sub" }, "No matches yet. Ask a stored question in other words: the two are compared, and listed here.")]));
  }

  #drawScopes(scopes, shown) {
    const select = byId("semantic-scope");
    select.closest("label").hidden = scopes.length < 2;
    select.replaceChildren(...scopes.map(({ scope }) => h("option", { value: scope, selected: scope === shown.scope }, scope || "all callers")));
    if (shown && scopes.length > 1) this.#scope = shown.scope;
  }

  #match(match) {
    const [name, title] = KINDS[match.kind] ?? [match.kind, ""];
    const isWrong = match.verdict === "different" || match.verdict === "undecided";
    const verdict = match.rung === "feedback" ? "marked as wrong" : VERDICTS[match.verdict] ?? (match.kind === "served" ? "" : "not judged");
    const question = (label, words, marks, key) => h("div", {}, h("span", { class: "note" }, label), h("p", {}, words == null ? h("code", {}, key.slice(0, 16)) : marked(words, marks)));
    return h("li", { data: { id: match.id } },
      h("div", { class: "line" }, h("span", { class: `outcome ${match.kind === "served" ? "similar" : ""}`, title }, name),
        h("span", { class: "note", title: day(match.time) }, clock(match.time)), match.scope && h("span", { class: "note" }, match.scope),
        h("span", { class: "note" }, `similarity ${match.similarity.toFixed(3)}`), h("span", { class: "note", title: "Estimated probability that the stored answer is wrong" }, `risk ${match.risk < 1 ? rate(match.risk) : "100 %"}`),
        verdict && h("span", { class: isWrong ? "verdict wrong" : match.verdict ? "verdict" : "note" }, verdict),
        !isWrong && h("button", { type: "button", class: "operator", on: { click: () => this.#mark(match) } }, "These are not the same")),
      h("div", { class: "pairs" }, question("Asked", match.question, match.marks, match.key), question("Stored", match.matched_question, match.matched_marks, match.matched_key)));
  }

  async #mark(match) {
    const quoted = (words) => words != null && h("p", { class: "sub quote" }, words);
    const confirmed = await confirm("Are these two questions not the same?", [quoted(match.question), quoted(match.matched_question),
      text("The match gets a wrong label, which cannot be taken back. Too many of them end the certificate, and the tier serves nothing until it is certified again.")], "Not the same");
    if (!confirmed) return;
    try {
      await api.change("POST", "/semantic/feedback", { match: match.id, verdict: "different" });
      toast("Marked as wrong");
    } catch (error) {
      toast(error.message, "bad");
    }
    await this.refresh().catch(() => {}); // the next poll shows it
  }
}

/** What is served, what is certified, and what is missing. */
function sentences({ problem, error }, scope) {
  const lines = [];
  if (problem) lines.push(h("p", { class: "sub problem" }, `The tier does not work: ${problem}.`));
  if (!scope) return [...lines, text("No tenant uses the tier. Set semantic for all callers, or for a tenant.")];
  const { all, state, bound, alarms } = scope, allowed = rate(scope.error ?? error), judged = labels(all);
  if (all.served) lines.push(text(h("b", { class: "saved" }, count(all.served)), ` of ${count(all.requests)} requests without an exact hit were answered by similarity`, all.priced ? `, which saved ${usd(all.usd_saved)}` : "", "."));
  if (state === "serving") lines.push(text("Serving. It is certified that at most ", h("b", { class: "saved" }, rate(bound)), ` of its answers are wrong; ${allowed} are allowed.`));
  else if (bound != null) lines.push(text(`Certified: at most ${rate(bound)} of its answers would be wrong. Nothing is served, because the mode is shadow. To serve them, set semantic = "on".`));
  else lines.push(text(`In the shadow: ${all.served ? "nothing is served now" : "nothing is served yet"}, because no level is certified for an error of ${allowed}. ${judged ? `${counted(judged, "match was", "matches were")} judged, ${count(wrong(all))} of them wrong.` : "No match was judged yet."}`));
  lines.push(text(scope.next_step));
  if (alarms) lines.push(h("p", { class: "sub problem" }, `Wrong labels have ended the certificate ${times(alarms)}.`));
  return lines;
}

function table(titles, rows) {
  return h("table", { class: "plain" },
    h("thead", {}, h("tr", {}, titles.map(([name, title]) => h("th", { scope: "col", title }, name)))), h("tbody", {}, rows));
}

function levelTable({ levels, needed, mode }) {
  const state = (level) => (level.serves ? (mode === "on" ? "served" : "certified") : "not certified");
  return table([["Risk up to", "Matches by their estimated probability of a wrong answer. A level contains the ones above it."], ["Labels", "Matches that were judged"], ["Wrong"],
    ["Evidence", "100 %: enough to certify the allowed error"], ["Error at most", "The least error that these labels certify"], [""]], levels.map((level) => h("tr", { class: level.serves ? "serves" : "" },
    h("th", { scope: "row" }, rate(level.threshold)), h("td", {}, count(level.labels)), h("td", {}, count(level.wrong)),
    h("td", { title: `e-value ${digits(level.e_value)} of ${digits(needed)}` }, percent(Math.min(1, Math.max(0, Math.log(level.e_value) / Math.log(needed))))),
    h("td", {}, rate(level.bound)), h("td", { class: "state" }, state(level)))));
}

function otherTable({ others, error }) {
  return table([["Allowed error", "The setting semantic_error"], ["Questions served", "Share of the recent questions without an exact hit"], [""]], others.map((other) => h("tr", { class: other.certified ? "serves" : "" },
    h("th", { scope: "row" }, rate(other.error)), h("td", {}, other.certified ? percent(other.share) : "–"),
    h("td", { class: "state" }, `${other.certified ? "certified" : "not certified"}${other.error === error ? ", the setting" : ""}`))));
}

function facts({ embedding, questions, limit, judge, since }, { all }) {
  const checked = (source) => `${count(labels(all, source))}, ${count(wrong(all, source))} wrong`;
  const listed = (test, names) => {
    const found = Object.entries(all.reasons).filter(([name]) => test(name)).sort((a, b) => b[1] - a[1]).slice(0, 3);
    return found.length ? ` (${found.map(([name, number]) => `${names[name] ?? name} ${count(number)}`).join(", ")})` : "";
  };
  return [h("h3", {}, since ? `Since ${day(since)}, ${minute(since)}` : "Requests"), h("dl", { class: "facts" },
    fact("Matches judged in the shadow", checked("shadow")), fact("Audits of what is served", checked("audit")),
    labels(all, "feedback") > 0 && fact("Marked as wrong by people", count(labels(all, "feedback"))),
    fact("Never matched", `${count(all.excluded)} of ${count(all.requests)} requests${listed((name) => !NOT_EXCLUDED.includes(name) && !(name in FAILURES), REASONS)}`),
    all.failed > 0 && fact("Lookups that failed", `${count(all.failed)}${listed((name) => name in FAILURES, FAILURES)}`),
    fact("Requests wait for the search", all.requests ? (all.seconds ? `${time(all.seconds / all.requests)} on average` : "no, nothing is served") : "–"),
    fact("Judge", judge ? `${judge}, ${usd(all.judge_usd)}` : "no model: answers are compared by their words"),
    fact("Questions in the index", `${count(questions)} of ${count(limit)}`), fact("Embedding model", embedding || "–"))];
}

/** The words of a question, those that the other does not have marked. */
function marked(words, marks) {
  const parts = [];
  let at = 0;
  for (const [start, end] of marks) {
    parts.push(words.slice(at, start), h("mark", {}, words.slice(start, end)));
    at = end;
  }
  return [...parts, words.slice(at)];
}

/** How to see questions. */
function hint(content) {
  if (content) return [];
  return api.session.role === "operator"
    ? ["Questions are hidden. To see them, start the proxy with ", h("code", {}, "--set show_content=true"), " or set ", h("code", {}, "show_content = true"), " in the settings file."]
    : ["Only operators see questions, if ", h("code", {}, "show_content"), " is on."];
}
