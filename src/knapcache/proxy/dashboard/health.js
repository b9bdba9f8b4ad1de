// Health of the policy and its Oracle, the store and the upstreams.

import * as api from "./api.js";
import { byId, h, setText } from "./dom.js";
import { age, bytes, count, counted, moment, percent, time } from "./format.js";
import { toast } from "./dialogs.js";

const STORE = { ok: ["good", "ok"], "half-open": ["fair", "recovering: breaker half-open"], open: ["bad", "failing: breaker open, requests go upstream"], memory: ["bad", "file cannot be opened; entries are in memory until restart"] };
const ENGINE = { ok: ["ok", "good"], "read-only": ["takes no writes: new answers are not stored", "fair"], away: ["does not answer: requests go upstream", "bad"] };
const UPSTREAM = { healthy: "good", "half-open": "fair", open: "bad" };

function facts(root, list) {
  root.replaceChildren(...list.filter(Boolean).map(([name, value, kind]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, kind && h("i", { class: `dot ${kind}`, "aria-hidden": "true" }), value))));
}

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

export class Health {
  constructor() {
    byId("snapshot").addEventListener("click", async () => {
      try {
        await api.change("POST", "/snapshot");
        toast("Snapshot saved");
      } catch (error) {
        toast(`Snapshot failed: ${error.message}`, "bad");
      }
    });
  }

  update({ policy, health, storage, version, started, now }) {
    const calls = policy.oracle_calls;
    facts(byId("oracle"), [
      ["Policy", policy.name],
      calls > 0 && ["Calls of the Oracle (knapsack solver)", count(calls)],
      calls > 0 && policy.oracle_seconds != null && ["Time per call", time(policy.oracle_seconds / calls)],
      calls > 0 && policy.oracle_seconds != null && now > started && ["Share of run time", percent(policy.oracle_seconds / (now - started))],
      policy.ids != null && health.owner && ["Keys tracked", count(policy.ids)],
    ]);
    const [kind, words] = STORE[health.store] ?? ["fair", health.store];
    const breaker = health.breaker ?? {}, engine = health.engine;
    facts(byId("store"), [
      ["Store", words, kind],
      engine && ["Engine", ...ENGINE[engine.state]],
      ["Owner", engine ? (health.owner ? "this proxy" : "another proxy") : (health.owner ? "this process" : "another process")],
      health.workers > 1 && ["Workers", count(health.workers)],
      ["Capacity", `${bytes(storage.capacity)} as configured, ${bytes(storage.usable)} for entries`],
      storage.disk_bytes != null && [engine ? "In the engine" : "On disk", `${bytes(storage.disk_bytes)}, with ${engine ? "the nursery" : "the log, which is allocated at start"}, and free space`],
      breaker.opened > 0 && ["Breaker", `opened ${counted(breaker.opened, "time")}, ${counted(breaker.skipped, "read")} skipped`],
      ...health.webhooks.map(({ name, event, time: at, error }) => [`Webhook ${name}`,
        event ? `${event} ${error ? `not delivered: ${error}` : "delivered"}, ${age(now - at)} ago` : "no event yet", event && (error ? "bad" : "good")]),
      ["Uptime", `${age(now - started)}, since ${moment(started)}`],
    ]);
    const list = health.upstreams ?? [];
    byId("upstreams").replaceChildren(...(list.length ? list.map((upstream) => h("li", { class: upstream.failing_now ? "failing" : "" },
      h("i", { class: `dot ${upstream.failing_now ? "bad" : upstream.state === "failing" ? "fair" : UPSTREAM[upstream.health] ?? "fair"}`, "aria-hidden": "true" }),
      h("b", {}, upstream.name), h("span", { class: "note" }, upstreamText(upstream, now)),
      h("span", { class: "amount" }, counted(upstream.calls, "call"), upstream.errors ? h("em", {}, `${count(upstream.errors)} failed`) : null)))
      : [h("li", { class: "note" }, "No upstreams.")]));
    const failing = list.filter((upstream) => upstream.failing_now);
    const away = engine?.state === "away";
    const alerts = failing.map((upstream) => `Upstream ${upstream.name} fails: ${upstream.reason}. ${failedText(upstream, now)}`);
    if (away) alerts.push(`The shared store does not answer, for ${age(now - engine.since)}. Requests go to the upstreams, and the numbers are those of this proxy.`);
    if (engine?.state === "read-only") alerts.push(`The shared store takes no writes, for ${age(now - engine.since)}: ${engine.reason}. It serves answers, and stores no new ones.`);
    byId("failing").hidden = !alerts.length;
    setText("failing", alerts.join(" "));
    document.querySelector('.sections a[href="#health"]').classList.toggle("bad", failing.length > 0 || kind === "bad" || away);
    setText("version", `knapcache ${version}`);
  }
}
