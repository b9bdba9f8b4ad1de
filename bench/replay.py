"""How fast policies are replayed: beside libCacheSim on a million requests, by number of keys, and in the paper's
setting.

    python bench/replay.py [--out DIR] [--quick]

Throughput: a million requests for Zipf keys with log-normal sizes. Ours starts with raw 64-bit keys in memory and
counts numbering them, checking the trace, building the policy and replaying; libCacheSim starts with the same requests
as a mapped file that was just written (see _libcachesim.py). Both give the miss ratio. CPU seconds of one thread, the
least of some runs, ours and theirs by turns; kernels are compiled before.

Decisions: nanoseconds for a request against the number of keys that the policy remembers, all of which it has seen, and
with a tenth of them resident. Memory is part of it: 10^6 rows are 32 to 88 MB, beyond the caches of a core, and a
request for a rare key waits for them whatever the policy does. The line `touch` shows that: a loop that adds one to a
field of the row of each key, and nothing else.

Prints tables; writes replay.json and replay.png into DIR.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from _libcachesim import NAMES, fastest
from _targets import Row, bar

from knapcache.cli.output import print_table
from knapcache.kernel import Records, kernel, records
from knapcache.policy import registry
from knapcache.sim.figures import new_figure, style
from knapcache.sim.numbering import Keys, trace_of_keys
from knapcache.sim.replay import replay
from knapcache.sim.synthetic import Workload
from knapcache.sim.trace import Floats, Ints, Trace
from knapcache.sim.traces.oracle_general import RECORD

REQUESTS, KEYS = 1_000_000, 100_000
SHARES = (0.01, 0.1)
RUNS = 5
# Policies that ask their Oracle about all keys, or scan all of them, again and again: minutes on such a trace.
NOT_FOR_MANY_KEYS = {"vsocb", "vsocb-lazy", "vsocb-apx", "berkeley", "berkeley-multi", "offline", "static"}
OPTIONS = {"s3-fifo": {"main_first": True}}  # as libCacheSim does
DECIDERS = [name for name in ("lru", "gdsf-cost", "horizon", "adaptive") if name in registry.SPECS]
REMEMBERED = (10**4, 31_623, 10**5, 316_228, 10**6)
RATIO_BARS = {"lru": 1.0, "sieve": 1.0, "gdsf": 5.0}
RATE_BARS = {"adaptive": 1e6}
SAME_MISSES, NEAR_MISSES = ("fifo", "lru", "sieve"), {"gdsf": 0.005}


def requests(keys: int, seed: int) -> tuple[Keys, Ints, Floats]:
    """Raw keys, sizes and costs: Zipf popularity, sizes and costs log-normal and each key's own."""
    rng = np.random.default_rng([seed, keys])
    weights = 1.0 / np.arange(1, keys + 1)
    which = rng.choice(keys, REQUESTS, p=weights / weights.sum())
    names = rng.integers(1, 2**63, keys, dtype=np.uint64)
    sizes = np.clip(rng.lognormal(7.3, 1.0, keys), 1, None).astype(np.int64)
    costs = rng.lognormal(0.0, 1.0, keys)
    return names[which], sizes[which], costs[which]


def ours(name: str, share: float, keys: Keys, sizes: Ints, costs: Floats) -> Row:
    """One run from raw keys to the miss ratio."""
    start = time.process_time()
    trace = trace_of_keys(keys, sizes, costs)
    numbered = time.process_time()
    capacity = capacity_of(keys, sizes, share)
    begin = time.process_time()
    run = replay(registry.find(name).build_for(capacity, trace, **OPTIONS.get(name, {})), trace)
    missed = 1.0 - np.count_nonzero(run.hits) / len(trace)
    end = time.process_time()
    return {"numbering": numbered - start, "replay": end - begin, "missed": missed}


def capacity_of(keys: Keys, sizes: Ints, share: float) -> int:
    """A share of all that is ever asked for."""
    _, first = np.unique(keys, return_index=True)
    return int(sizes[first].sum() * share)


def throughput(name: str, share: float, raw: tuple[Keys, Ints, Floats], path: Path, runs: int) -> Row:
    """Ours beside theirs, by turns."""
    ours(name, share, *raw)  # compiles, or loads
    power, peer = fastest(name, path, capacity_of(*raw[:2], share)) if name in NAMES else (None, None)
    mine, theirs = [], []
    for _ in range(runs):
        mine.append(ours(name, share, *raw))
        theirs += [peer()] if peer else []
    seconds = min(run["numbering"] + run["replay"] for run in mine)
    row: Row = {
        "policy": name, "capacity": f"{100 * share:g} %", "requests_per_second": REQUESTS / seconds,
        "numbering_ns": 1e9 * min(run["numbering"] for run in mine) / REQUESTS,
        "replay_ns": 1e9 * min(run["replay"] for run in mine) / REQUESTS,
        "miss_ratio": mine[0]["missed"],
    }  # fmt: skip
    if theirs:
        row |= {
            "libcachesim_requests_per_second": REQUESTS / min(t for t, _ in theirs), "speedup_over_libcachesim": 0.0,
            "libcachesim_miss_ratio": theirs[0][1], "hash_power": power,
        }  # fmt: skip
        row["speedup_over_libcachesim"] = row["requests_per_second"] / row["libcachesim_requests_per_second"]
    return row


@kernel
def touch(rows: Records, keys: Ints) -> None:
    """The least that a policy could do: write to the row of each key."""
    for k in range(len(keys)):
        rows[keys[k]].requests += 1


def decisions(keys: int, runs: int) -> list[Row]:
    """Nanoseconds for a request, of policies that remember so many keys."""
    rng = np.random.default_rng([1, keys])
    weights = 1.0 / np.arange(1, keys + 1)
    sizes = np.clip(rng.lognormal(7.3, 1.0, keys), 1, None).astype(np.int64)
    costs = rng.lognormal(0.0, 1.0, keys)
    ids = rng.permutation(keys)  # popular keys stand anywhere in memory
    which = ids[rng.choice(keys, REQUESTS, p=weights / weights.sum())]
    once = rng.permutation(keys)
    known, trace = (Trace(k, sizes[k], costs[k], keys) for k in (once, which))
    capacity = int(sizes.sum() // 10)
    rows = []
    for name in DECIDERS:
        seconds = []
        for _ in range(runs):
            policy = registry.find(name).build_for(capacity, trace)
            replay(policy, known)
            start = time.process_time()
            run = replay(policy, trace)
            seconds.append(time.process_time() - start)
        rows.append({"policy": name, "keys": keys, "ns_per_request": 1e9 * min(seconds) / REQUESTS})
        rows[-1] |= {"miss_ratio": 1.0 - float(run.hits.mean()), "row_bytes": policy.rows.itemsize}
    table = records([("requests", "i8"), *((f"other_{k}", "i8") for k in range(10))], keys)
    seconds = []
    for _ in range(runs + 1):  # the first one compiles
        start = time.process_time()
        touch(table, which)
        seconds.append(time.process_time() - start)
    return [
        *rows,
        {"policy": "touch", "keys": keys, "ns_per_request": 1e9 * min(seconds[1:]) / REQUESTS, "row_bytes": 88},
    ]


def paper(name: str, runs: int) -> Row:
    """The paper's setting: 20,000 rounds, 100 queries, capacity 60."""
    _, trace = Workload().draw(np.random.default_rng(0))
    seconds = []
    for _ in range(runs + 1):
        policy = registry.find(name).build_for(60, trace)
        start = time.process_time()
        replay(policy, trace)
        seconds.append(time.process_time() - start)
    best = min(seconds[1:])
    return {
        "policy": name, "seconds": best, "requests_per_second": len(trace) / best, "oracle_calls": policy.oracle_calls
    }  # fmt: skip


def bars(beside: list[Row]) -> list[Row]:
    """What must hold, at each capacity."""
    lines = []
    for r in beside:
        what = f"{r['policy']} at {r['capacity']}"
        if r["policy"] in RATIO_BARS:
            wanted = RATIO_BARS[r["policy"]]
            lines.append(bar(f"{what}, speed / libCacheSim", r["speedup_over_libcachesim"], wanted, "×", most=False))
        if r["policy"] in RATE_BARS:
            wanted = RATE_BARS[r["policy"]]
            lines.append(bar(f"{what}, requests per second", r["requests_per_second"], wanted, "", most=False))
    for name in (*SAME_MISSES, *NEAR_MISSES):
        gaps = [abs(r["miss_ratio"] - r["libcachesim_miss_ratio"]) for r in beside if r["policy"] == name]
        wanted = 100 * NEAR_MISSES.get(name, 0.0)
        lines.append(bar(f"{name}, miss ratio difference to libCacheSim", 100 * max(gaps), wanted, "points", most=True))
    return lines


def draw(beside: list[Row], by_keys: list[Row], path: Path) -> None:
    """Throughput beside libCacheSim, and the cost of a decision by number of keys."""
    figure, (left, right) = new_figure(2, width=5.8)
    shown = [r for r in beside if r["capacity"] == "10 %" and (r["policy"] in NAMES or r["policy"] in DECIDERS)]
    shown.sort(key=lambda r: r["requests_per_second"])
    y = np.arange(len(shown))
    left.barh(
        y + 0.2,
        [r["requests_per_second"] / 1e6 for r in shown],
        0.4,
        color="#0072B2",
        label="knapcache, numbering included",
    )
    left.barh(
        y - 0.2,
        [r.get("libcachesim_requests_per_second", 0.0) / 1e6 for r in shown],
        0.4,
        color="#E69F00",
        label="libCacheSim",
    )
    left.set_yticks(y, [r["policy"] for r in shown])
    left.set_xlabel("million requests a second, one thread")
    left.set_title("10^6 requests, 80,000 keys, cache of a tenth".replace("10^6", "10⁶"))
    left.legend(loc="lower right")
    for name in [*DECIDERS, "touch"]:
        points = [(r["keys"], r["ns_per_request"]) for r in by_keys if r["policy"] == name]
        look = {"color": "#000000", "linestyle": ":"} if name == "touch" else style(name)
        label = "touch: memory alone" if name == "touch" else name
        right.plot(*zip(*points, strict=True), marker="o", markersize=4, label=label, **look)
    right.set_xscale("log")
    right.set_ylim(bottom=0)
    right.set_xlabel("keys remembered")
    right.set_ylabel("ns a request")
    right.set_title("Cost of a decision")
    right.legend()
    figure.savefig(path, dpi=140)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="DIR", help="write replay.json and replay.png here")
    parser.add_argument("--quick", action="store_true", help="one run of each, the policies with bars only")
    args = parser.parse_args()
    runs = 1 if args.quick else RUNS
    few = {*RATIO_BARS, *RATE_BARS, *SAME_MISSES} if args.quick else set(registry.SPECS)
    names = [
        name for name, spec in registry.SPECS.items() if spec.online and name not in NOT_FOR_MANY_KEYS and name in few
    ]
    raw = requests(KEYS, 0)
    beside = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.oracleGeneral"
        file = np.zeros(REQUESTS, RECORD)
        file["time"], file["id"], file["size"], file["next"] = np.arange(REQUESTS), raw[0], raw[1], -1
        file.tofile(path)
        for name in names:
            beside += [throughput(name, share, raw, path, runs) for share in SHARES]
            print(f"{name}: done", file=sys.stderr)
    by_keys = [row for keys in REMEMBERED for row in decisions(keys, min(runs, 3))]
    setting = [paper(name, runs) for name in registry.SPECS if name in few]
    lines = bars(beside)
    print_table(beside, title=f"{REQUESTS:,} requests, one thread")
    print_table(by_keys, title="a decision, by number of keys remembered")
    print_table(setting, title="20,000 rounds, 100 queries, capacity 60")
    print_table(lines, title="targets")
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        record = {
            "name": "replay", "python": platform.python_version(), "machine": platform.machine(), "targets": lines,
            "rows": beside, "decisions": by_keys, "paper": setting,
        }  # fmt: skip
        (args.out / "replay.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        draw(beside, by_keys, args.out / "replay.png")


if __name__ == "__main__":
    main()
