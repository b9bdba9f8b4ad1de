// Health of the policy and its Oracle, the store and the upstreams.

import { byId, dot, fact, h, setText } from "./dom.js";
import { age, bytes, count, counted, moment, percent, time } from "./format.js";
import { allViews } from "./frame.js";

const STORE = { ok: ["good", "ok"], "half-open": ["fair", "recovering: breaker half-open"], open: ["bad", "failing: breaker open, requests go upstream"], memory: ["bad", "file cannot be opened; entries are in memory until restart"] };
const ENGINE = { ok: ["ok", "good"], "read-only": ["takes no writes: new answers are not stored", "fair"], away: ["does not answer: requests go upstream", "bad"] };
const UPSTREAM = { healthy: "good", "half-open": "fair", open: "bad" };

const facts = (list) => h("dl", { class: "facts" }, list.filter(Boolean).map(([name, value, kind]) => fact(name, kind && dot(kind), value)));
const storeState = ({ store }) => STORE[store] ?? ["fair", store];

// Whether requests go there, and why not. A failing upstream is still healthy after its first failures.
function upstreamText({ state, reason, health, open_until: until, last_failure: last }, now) {
  const why = reason ? `: ${reason}${last ? `, ${age(now - last)} ago` : ""}` : "";
  if (health === "open") return `open${why}; next probe in ${time(Math.max(0, until - now))}`;
  if (health === "half-open") return `half-open${why}; the next request is a probe`;
  return state === "failing" ? `its last request failed${why}` : "healthy";
}

// Says whether another upstream of the route has answered the requests that this one failed.
const failedText = ({ failed, failing_since: since, last_failure: last, fallback }, now) =>
  `It failed ${counted(failed, "request")}${failed > 1 ? ` in ${time(last - since)}, the last one` : ""} ${age(now - last)} ago${fallback ? `, which ${fallback} answered` : ""}; cached answers are served.`;

/** Say at the top of the page what fails. */
export function showAlerts({ health, now, version }) {
  const { engine, upstreams } = health, away = engine?.state === "away";
  const alerts = upstreams.filter((upstream) => upstream.failing_now).map((upstream) => `Upstream ${upstream.name} fails: ${upstream.reason}. ${failedText(upstream, now)}`);
  if (away) alerts.push(`The shared store does not answer, for ${age(now - engine.since)}. Requests go to the upstreams, and the numbers are those of this proxy.`);
  if (engine?.state === "read-only") alerts.push(`The shared store takes no writes, for ${age(now - engine.since)}: ${engine.reason}. It serves answers, and stores no new ones.`);
  byId("failing").hidden = !alerts.length;
  setText("failing", alerts.join(" "));
  allViews()[0].link.classList.toggle("bad", alerts.length > 0 || storeState(health)[0] === "bad");
  setText("version", `knapcache ${version}`);
}

/** Draw the card of the overview: store and upstreams. */
export function drawHealth({ health, now, started }) {
  const [kind, words] = storeState(health), { engine, upstreams } = health;
  byId("store").replaceChildren(facts([["Store", words, kind], engine && ["Store server", ...ENGINE[engine.state]], ["Uptime", age(now - started)]]));
  byId("upstreams").replaceChildren(...(upstreams.length ? upstreams.map((upstream) => h("li", { class: upstream.failing_now ? "failing" : "" },
    dot(upstream.failing_now ? "bad" : upstream.state === "failing" ? "fair" : UPSTREAM[upstream.health] ?? "fair"),
    h("b", {}, upstream.name), h("span", { class: "note" }, upstreamText(upstream, now)),
    h("span", { class: "amount" }, counted(upstream.calls, "call"), upstream.errors ? h("em", {}, `${count(upstream.errors)} failed`) : null)))
    : [h("li", { class: "note" }, "No upstreams. Add one to the settings file: [[upstreams]].")]));
}

/** Facts of the server and its policy, in two lists. */
export function serverFacts({ policy, health, storage, started, now }) {
  const calls = policy.oracle_calls, timed = calls > 0 && policy.oracle_seconds != null;
  const [kind, words] = storeState(health), breaker = health.breaker ?? {}, engine = health.engine;
  return [facts([
    ["Store", words, kind],
    engine && ["Store server", ...ENGINE[engine.state]],
    ["Owner", engine ? (health.owner ? "this proxy" : "another proxy") : (health.owner ? "this process" : "another process")],
    health.workers > 1 && ["Workers", count(health.workers)],
    breaker.opened > 0 && ["Breaker", `opened ${counted(breaker.opened, "time")}, ${counted(breaker.skipped, "read")} skipped`],
    ["Uptime", `${age(now - started)}, since ${moment(started)}`],
  ]), facts([
    ["Capacity", `${bytes(storage.capacity)} as configured, ${bytes(storage.usable)} for entries`],
    storage.disk_bytes != null && [engine ? "In the store server" : "On disk", `${bytes(storage.disk_bytes)}, with ${engine ? "the nursery" : "the log, which is allocated at start"}, and free space`],
    ["Policy", policy.ids != null && health.owner ? `${policy.name}, ${counted(policy.ids, "key")} tracked` : policy.name],
    calls > 0 && ["Oracle (knapsack solver)", `${counted(calls, "call")}${timed ? `, ${time(policy.oracle_seconds / calls)} each, ${percent(policy.oracle_seconds / Math.max(1, now - started))} of the time` : ""}`],
  ])];
}
