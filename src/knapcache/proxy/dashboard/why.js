// Details of one request, and why it was a hit or a miss.

import * as api from "./api.js";
import { openDrawer, toast } from "./dialogs.js";
import { fact, h } from "./dom.js";
import { openEntry } from "./drawer.js";
import { bytes, clock, count, day, digits, fractionalCount, moment, time } from "./format.js";
import { shown } from "./frame.js";

/** What each outcome means, in a sentence. */
export const OUTCOMES = {
  hit: "The answer came from the cache.",
  similar: "The answer to a similar question came from the cache.",
  miss: "The answer was fetched from the upstream and paid for.",
  coalesced: "An identical request was under way. This one waited for its answer and cost nothing.",
  stale: "The stored answer was past its time to live, and was served nevertheless.",
  bypass: "The request was sent without the cache.",
  passthrough: "Not a cached endpoint: the request was passed on to the upstream.",
  failed: "The upstream failed, or the client disconnected.",
  rejected: "The proxy refused the request.",
};

/** A table of differences: field, this request, the stored one; or how they differ, if the values are not shown. */
function differences(rows) {
  return h("table", { class: "plain" },
    h("thead", {}, h("tr", {}, ["Field", "This request", "Stored request"].map((title) => h("th", { scope: "col" }, title)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, h("th", { scope: "row" }, row.field),
      row.here == null && row.there == null
        ? h("td", { colspan: 2 }, row.text)
        : [h("td", {}, row.here ?? "not set"), h("td", {}, row.there ?? "not set")]))));
}

/** What an answer was worth to the policy, beside the one that took its place. Costs are multiples: the policy compares them. */
function worth(own, rival) {
  const times = (value, base) => (base > 0 ? `${digits(Number((value / base).toPrecision(2)))} times as much` : "–");
  const rows = [["Requests", (one) => fractionalCount(one.requests)], ["Size", (one) => bytes(one.size)],
    rival && ["Cost of a miss", (one) => (one === own ? "1" : times(rival.cost, own.cost))],
    rival && ["Value per MB", (one) => (one === own ? "1" : times(rival.density, own.density))]].filter(Boolean);
  return h("table", { class: "plain" },
    h("thead", {}, h("tr", {}, h("th", {}), h("th", { scope: "col" }, "This answer"), rival && h("th", { scope: "col" }, "Stored in its place"))),
    h("tbody", {}, rows.map(([name, text]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, text(own)), rival && h("td", {}, text(rival))))));
}

let calls = 0;

/** Show a request. */
export async function openRequest(serial) {
  const call = ++calls;
  let row;
  try {
    row = await api.get(`/requests/${serial}`);
  } catch (error) {
    toast(error.status === 404 ? "Only recent requests have details: the last 1,000 of a proxy, and the last 100 of each other one" : error.message, "bad");
    return;
  }
  if (call !== calls) return;
  openDrawer([h("span", { class: `outcome ${row.outcome}` }, row.outcome), row.words || row.model || row.endpoint || "Request"], [reason(row), facts(row)],
    row.stored && h("footer", { class: "foot" }, h("button", { type: "button", on: { click: () => openEntry(row.key) } }, "Show the entry")));
}

/** The reason, and the entry that is nearest. */
function reason({ outcome, why }) {
  const { nearest } = why;
  return [
    h("section", { class: "why", data: { kind: why.kind } },
      h("h3", {}, outcome === "miss" ? "Why was this a miss?" : "Why?"),
      h("p", { class: "title" }, why.title, why.at != null && h("span", {}, moment(why.at))),
      h("p", {}, why.text)),
    why.own && worth(why.own, why.rival),
    nearest && h("section", {},
      h("h3", {}, outcome === "similar" ? "The question that was answered" : "Nearest stored request"),
      h("p", { class: "sub" }, h(nearest.stored ? "button" : "b", { type: "button", class: "link", on: nearest.stored && { click: () => openEntry(nearest.key) } },
        nearest.words || `${nearest.model || nearest.endpoint} · ${nearest.key.slice(0, 8)}`), ` stored ${moment(nearest.created)}`, nearest.tenant && ` for ${nearest.tenant}`),
      differences(nearest.differences),
      why.compared < why.entries && h("p", { class: "sub" }, `Compared with ${count(why.compared)} of ${count(why.entries)} entries, the newest first.`))];
}

function facts(row) {
  const known = row.key && (row.usd != null || row.cost > 0), value = shown.answer({ ...row, seconds: row.upstream_seconds });
  const calls = row.attempts.length > 1 ? `, calls: ${row.attempts.map((status) => status || "no response").join(", ")}` : "";
  return h("section", {}, h("h3", {}, "Request"), h("dl", { class: "facts" },
    fact("Time", `${day(row.time)}, ${clock(row.time)}`),
    fact("Outcome", OUTCOMES[row.outcome] ?? row.outcome),
    row.answer && fact("Its answer", row.answer),
    row.semantic && fact("Semantic tier", row.semantic),
    fact("Endpoint", row.endpoint || "not a cached one", row.stream && ", streamed"),
    fact("Model", row.model || "–"), fact("Tenant", row.tenant || "–"), fact("Status", String(row.status)),
    row.proxy && fact("Proxy", row.proxy),
    row.route && fact("Route", row.route),
    row.tried.length > 0 && fact("Tried before", row.tried.join("; ")),
    row.reason && row.outcome !== "rejected" && row.outcome !== "bypass" && fact("Asked by the client", row.reason),
    fact("Upstream", row.upstream ? `${row.upstream}${calls}` : "not called"),
    fact("Time taken", `${time(row.seconds)}, first byte after ${time(row.ttfb)}`),
    row.upstream_seconds > 0 && fact("Time of the upstream", `${time(row.upstream_seconds)}${row.saved ? ", when the answer was fetched" : ""}`),
    row.tokens > 0 && fact("Tokens", count(row.tokens)),
    known && fact(row.saved ? "Saved" : "Cost", `${value}${shown.simulated ? " at simulated prices" : ""}`),
    row.error && fact("Failure of the upstream", row.error),
    row.size > 0 && fact("Size of the entry", bytes(row.size)),
    fact("Key", row.key ? h("code", { class: "key" }, row.key) : "none")));
}
