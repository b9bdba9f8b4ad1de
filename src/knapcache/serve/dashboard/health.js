// How the parts are: the policy and its Oracle, the store, and those who are asked.

import * as api from "./api.js";
import { at, h, put } from "./dom.js";
import { age, bytes, count, moment, percent, time } from "./format.js";
import { toast } from "./notes.js";

const STORE = { ok: ["good", "in order"], closed: ["good", "in order"], "half-open": ["fair", "being tried again"], open: ["bad", "failing; requests go upstream"], memory: ["bad", "could not be opened; in memory until the next start"] };
const UPSTREAM = { ok: "good", closed: "good", "half-open": "fair", open: "bad", down: "bad" };

function facts(root, list) {
  root.replaceChildren(...list.filter(Boolean).map(([name, value, kind]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, kind && h("i", { class: `dot ${kind}`, "aria-hidden": "true" }), value))));
}

export class Health {
  constructor() {
    at("snapshot").addEventListener("click", async () => {
      try {
        await api.change("POST", "/snapshot");
        toast("The policy's state is on disk");
      } catch (error) {
        toast(`No snapshot: ${error.message}`, "bad");
      }
    });
  }

  update({ policy, health, storage, version, started, now }) {
    const calls = policy.oracle_calls;
    facts(at("oracle"), [
      ["Policy", policy.name],
      calls != null && ["Oracle calls", count(calls)],
      calls > 0 && policy.oracle_seconds != null && ["Time per call", time(policy.oracle_seconds / calls)],
      policy.oracle_seconds != null && now > started && ["Share of time", percent(policy.oracle_seconds / (now - started))],
      policy.ids != null && ["Keys remembered", count(policy.ids)],
    ]);
    const [kind, words] = STORE[health.store] ?? ["fair", health.store];
    const breaker = health.breaker ?? {};
    facts(at("store"), [
      ["Store", words, kind],
      ["Owner of the file", health.owner ? "this process" : "another process"],
      health.workers > 1 && ["Workers", count(health.workers)],
      storage.disk_bytes != null && ["On disk", storage.size_limit ? `${bytes(storage.disk_bytes)} of ${bytes(storage.size_limit)}` : bytes(storage.disk_bytes)],
      breaker.opened > 0 && ["Breaker", `opened ${count(breaker.opened)} times, ${count(breaker.skipped)} reads left out`],
      ["Up for", `${age(now - started)}, since ${moment(started)}`],
    ]);
    const list = health.upstreams ?? [];
    at("upstreams").replaceChildren(...(list.length ? list.map((one) => h("li", {},
      h("i", { class: `dot ${UPSTREAM[one.state] ?? "fair"}`, "aria-hidden": "true" }),
      h("b", {}, one.name), h("span", { class: "note" }, one.state),
      h("span", { class: "much" }, `${count(one.calls)} calls`, one.errors ? h("em", {}, `${count(one.errors)} failed`) : null)))
      : [h("li", { class: "note" }, "None is set.")]));
    put("end", `knapcache ${version}`);
  }
}
