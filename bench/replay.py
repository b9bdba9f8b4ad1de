"""Benchmark of the simulator: replay speed compared with libCacheSim, by number of keys, and in the paper's setting.

    python bench/replay.py [--out DIR] [--quick]
    python bench/replay.py --markdown bench/results/replay.json

Throughput: a million requests for Zipf keys with log-normal sizes. knapcache starts with raw 64-bit keys in memory; its
time includes numbering them, checking the trace, building the policy and replaying. libCacheSim starts with the same
requests as a memory-mapped file that was just written (_libcachesim.py). Both compute the miss ratio. CPU seconds of
one thread, minimum of several runs in turns; kernels are compiled before.

Decisions: nanoseconds per request by the number of keys that the policy remembers, after it has seen all of them, with
a tenth of them resident, and the growth from the fewest to the most keys. Memory access is part of it: 10^6 rows are 32
to 144 MB, more than the caches of a core. Two lines show its cost alone, with 64 bytes per key. `touch` increments a
field in the row of each requested key; its accesses overlap. `chase` reads the rows in a random order in which each row
gives the next one; its accesses wait for each other, as those on the way down a heap do.

Prints tables; writes replay.json and replay.png to DIR.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _libcachesim import NAMES, fastest
from _results import Row, min_seconds, options_for, print_targets, run_or_show, target, write_result

from knapcache.cli.output import print_table
from knapcache.kernel import Records, kernel, records
from knapcache.lab.figures import new_figure, style
from knapcache.lab.numbering import Keys, trace_of_keys
from knapcache.lab.replay import replay
from knapcache.lab.synthetic import Workload
from knapcache.lab.trace import Floats, Ints, Trace
from knapcache.lab.traces.oracle_general import RECORD
from knapcache.policy import registry

REQUESTS, KEYS = 1_000_000, 100_000
SHARES = (0.01, 0.1)
RUNS = 5
SLOW_WITH_MANY_KEYS = {"vsocb", "vsocb-lazy", "vsocb-apx", "berkeley", "berkeley-multi", "offline", "static"}
"""Policies that scan all keys repeatedly: minutes on such a trace."""
OPTIONS = {"s3-fifo": {"main_first": True}}  # as libCacheSim does
DECISION_POLICIES = [name for name in ("lru", "sieve", "gdsf-cost", "horizon", "adaptive") if name in registry.SPECS]
KEY_COUNTS = (10**4, 31_623, 10**5, 316_228, 10**6)
MIN_SPEEDUP = {"lru": 1.0, "sieve": 1.0, "gdsf": 5.0}
MIN_RATE = {"adaptive": 1e6}
EQUAL_MISS_RATIO, CLOSE_MISS_RATIO = ("fifo", "lru", "sieve"), {"gdsf": 0.005}


def draw_requests(keys: int, seed: int) -> tuple[Keys, Ints, Floats]:
    """Draw raw keys by Zipf's law, with log-normal sizes and costs per key."""
    rng = np.random.default_rng([seed, keys])
    weights = 1.0 / np.arange(1, keys + 1)
    order = rng.choice(keys, REQUESTS, p=weights / weights.sum())
    names = rng.integers(1, 2**63, keys, dtype=np.uint64)
    sizes = np.clip(rng.lognormal(7.3, 1.0, keys), 1, None).astype(np.int64)
    costs = rng.lognormal(0.0, 1.0, keys)
    return names[order], sizes[order], costs[order]


def replay_once(name: str, share: float, keys: Keys, sizes: Ints, costs: Floats) -> Row:
    """Run once from raw keys to the miss ratio; return CPU seconds and the miss ratio."""
    start = time.process_time()
    trace = trace_of_keys(keys, sizes, costs)
    numbered = time.process_time()
    capacity = capacity_of(keys, sizes, share)
    begin = time.process_time()
    run = replay(registry.find(name).build_for(capacity, trace, **OPTIONS.get(name, {})), trace)
    miss_ratio = 1.0 - np.count_nonzero(run.hits) / len(trace)
    end = time.process_time()
    return {"numbering": numbered - start, "replay": end - begin, "miss_ratio": miss_ratio}


def capacity_of(keys: Keys, sizes: Ints, share: float) -> int:
    """Return a share of the total size of all distinct keys."""
    _, first = np.unique(keys, return_index=True)
    return int(sizes[first].sum() * share)


def throughput(name: str, share: float, raw: tuple[Keys, Ints, Floats], path: Path, runs: int) -> Row:
    """Measure knapcache and libCacheSim in turns."""
    replay_once(name, share, *raw)  # compiles or loads the kernels
    power, peer = fastest(name, path, capacity_of(*raw[:2], share)) if name in NAMES else (None, None)
    own, peer_runs = [], []
    for _ in range(runs):
        own.append(replay_once(name, share, *raw))
        peer_runs += [peer()] if peer else []
    seconds = min(run["numbering"] + run["replay"] for run in own)
    row: Row = {
        "policy": name, "capacity": f"{100 * share:g} %", "requests_per_second": REQUESTS / seconds,
        "numbering_ns": 1e9 * min(run["numbering"] for run in own) / REQUESTS,
        "replay_ns": 1e9 * min(run["replay"] for run in own) / REQUESTS,
        "miss_ratio": own[0]["miss_ratio"],
    }  # fmt: skip
    if peer_runs:
        row |= {
            "libcachesim_requests_per_second": REQUESTS / min(t for t, _ in peer_runs), "speedup_over_libcachesim": 0.0,
            "libcachesim_miss_ratio": peer_runs[0][1], "hash_power": power,
        }  # fmt: skip
        row["speedup_over_libcachesim"] = row["requests_per_second"] / row["libcachesim_requests_per_second"]
    return row


ACCESS_ROW = [("requests", "i8"), ("following", "i8"), *((f"other_{k}", "i8") for k in range(6))]
"""64 bytes: one cache line."""


@kernel
def touch(rows: Records, keys: Ints) -> None:
    """Write to the row of each key, the minimum of any policy."""
    for k in range(len(keys)):
        rows[keys[k]].requests += 1


@kernel
def chase(rows: Records, steps: int) -> int:
    """Follow the rows from one to the next."""
    i = 0
    for _ in range(steps):
        i = rows[i].following
    return i


def accesses(keys: int, order: Ints, runs: int) -> list[Row]:
    """Measure the nanoseconds per access of `touch` and `chase`."""
    table = records(ACCESS_ROW, keys)
    cycle = np.random.default_rng(keys).permutation(keys)
    table["following"][cycle] = np.roll(cycle, -1)
    rows = []
    calls: dict[str, Callable[[], object]] = {
        "touch": lambda: touch(table, order),
        "chase": lambda: chase(table, REQUESTS),
    }
    for name, call in calls.items():
        call()  # compiles
        ns = 1e9 * min_seconds(call, runs) / REQUESTS
        rows.append({"policy": name, "keys": keys, "ns_per_request": ns, "row_bytes": table.itemsize})
    return rows


def decisions(keys: int, runs: int) -> list[Row]:
    """Measure the nanoseconds per request of policies that remember `keys` keys."""
    rng = np.random.default_rng([1, keys])
    weights = 1.0 / np.arange(1, keys + 1)
    sizes = np.clip(rng.lognormal(7.3, 1.0, keys), 1, None).astype(np.int64)
    costs = rng.lognormal(0.0, 1.0, keys)
    ids = rng.permutation(keys)  # popular keys are spread over memory
    order = ids[rng.choice(keys, REQUESTS, p=weights / weights.sum())]
    once = rng.permutation(keys)
    warm_up, trace = (Trace(k, sizes[k], costs[k], keys) for k in (once, order))
    capacity = int(sizes.sum() // 10)
    rows = []
    for name in DECISION_POLICIES:
        seconds = []
        for _ in range(runs):
            policy = registry.find(name).build_for(capacity, trace)
            replay(policy, warm_up)
            start = time.process_time()
            run = replay(policy, trace)
            seconds.append(time.process_time() - start)
        rows.append({"policy": name, "keys": keys, "ns_per_request": 1e9 * min(seconds) / REQUESTS})
        rows[-1] |= {"miss_ratio": 1.0 - float(run.hits.mean()), "row_bytes": policy.rows.itemsize}
        rows[-1] |= {"residents": len(policy.residents)}
    return rows + accesses(keys, order, runs)


def paper_setting(name: str, runs: int) -> Row:
    """Measure the paper's setting: 20,000 rounds, 100 queries, capacity 60."""
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


def check_targets(rows: list[Row]) -> list[Row]:
    """Return the targets at each capacity."""
    targets = []
    for r in rows:
        cell = f"{r['policy']} at {r['capacity']}"
        if r["policy"] in MIN_SPEEDUP:
            metric, speedup = f"{cell}, speed / libCacheSim", r["speedup_over_libcachesim"]
            targets.append(target(metric, speedup, at_least=MIN_SPEEDUP[r["policy"]], unit="×"))
        if r["policy"] in MIN_RATE:
            metric = f"{cell}, requests per second"
            targets.append(target(metric, r["requests_per_second"], at_least=MIN_RATE[r["policy"]]))
    for name in (*EQUAL_MISS_RATIO, *CLOSE_MISS_RATIO):
        gaps = [abs(r["miss_ratio"] - r["libcachesim_miss_ratio"]) for r in rows if r["policy"] == name]
        limit = 100 * CLOSE_MISS_RATIO.get(name, 0.0)
        metric = f"{name}, miss ratio difference to libCacheSim"
        targets.append(target(metric, 100 * max(gaps), at_most=limit, unit="points"))
    return targets


def markdown(record: Row) -> str:
    """Return the tables of docs/guides/lab.md."""
    lines = ["| policy | capacity | knapcache | libCacheSim | times | miss ratio |", "|---|---|---|---|---|---|"]
    for r in record["rows"]:
        rate, missed = f"{r['requests_per_second'] / 1e6:.1f}", f"{r['miss_ratio']:.4f}"
        if "speedup_over_libcachesim" in r:
            peer = f"{r['libcachesim_requests_per_second'] / 1e6:.1f} | {r['speedup_over_libcachesim']:.1f}"
            missed += f" / {r['libcachesim_miss_ratio']:.4f}"
            lines.append(f"| `{r['policy']}` | {r['capacity']} | {rate} | {peer} | {missed} |")
        elif r["policy"] in MIN_RATE:
            lines.append(f"| `{r['policy']}` | {r['capacity']} | {rate} | – | – | {missed} |")
    lines += ["", "| metric | measured | target | met |", "|---|---|---|---|"]
    lines += [
        f"| {b['metric']} | {b['measured']:.3g} | {b['target']} | {'yes' if b['met'] else 'no'} |"
        for b in record["targets"]
    ]
    counts = sorted({d["keys"] for d in record["decisions"]})
    lines += ["", f"| policy | {' | '.join(f'{n:,}' for n in counts)} | growth |", "|---" * (len(counts) + 2) + "|"]
    for policy in dict.fromkeys(d["policy"] for d in record["decisions"]):
        ns = [d["ns_per_request"] for d in record["decisions"] if d["policy"] == policy]
        lines.append(f"| `{policy}` | {' | '.join(f'{t:.0f}' for t in ns)} | {ns[-1] / ns[0]:.1f} |")
    return "\n".join(lines)


def draw(rows: list[Row], by_keys: list[Row], path: Path) -> None:
    """Plot throughput next to libCacheSim, and the cost of a decision by number of keys."""
    figure, (left, right) = new_figure(2, width=5.8)
    shown = [r for r in rows if r["capacity"] == "10 %" and (r["policy"] in NAMES or r["policy"] in DECISION_POLICIES)]
    shown.sort(key=lambda r: r["requests_per_second"])
    y = np.arange(len(shown))
    left.barh(
        y + 0.2,
        [r["requests_per_second"] / 1e6 for r in shown],
        0.4,
        color="#0072B2",
        label="knapcache, including numbering",
    )
    left.barh(
        y - 0.2,
        [r.get("libcachesim_requests_per_second", 0.0) / 1e6 for r in shown],
        0.4,
        color="#E69F00",
        label="libCacheSim",
    )
    left.set_yticks(y, [r["policy"] for r in shown])
    left.set_xlabel("million requests per second, one thread")
    left.set_title("10⁶ requests, 80,000 keys, capacity 10 %")
    left.legend(loc="lower right")
    only_memory = {"touch": (":", "touch: accesses that overlap"), "chase": ("-.", "chase: accesses that wait")}
    for name in [*DECISION_POLICIES, *only_memory]:
        points = [(r["keys"], r["ns_per_request"]) for r in by_keys if r["policy"] == name]
        pattern, label = only_memory.get(name, ("-", name))
        line_style = {"color": "#000000", "linestyle": pattern} if name in only_memory else style(name)
        right.plot(*zip(*points, strict=True), marker="o", markersize=4, label=label, **line_style)
    right.set_xscale("log")
    right.set_ylim(bottom=0)
    right.set_xlabel("keys remembered")
    right.set_ylabel("ns per request")
    right.set_title("Cost of a decision")
    right.legend()
    figure.savefig(path, dpi=140)


def run(args: argparse.Namespace) -> None:
    runs = 1 if args.quick else RUNS
    selected = {*MIN_SPEEDUP, *MIN_RATE, *EQUAL_MISS_RATIO} if args.quick else set(registry.SPECS)
    names = [
        name
        for name, spec in registry.SPECS.items()
        if spec.online and name not in SLOW_WITH_MANY_KEYS and name in selected
    ]
    raw = draw_requests(KEYS, 0)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.oracleGeneral"
        file = np.zeros(REQUESTS, RECORD)
        file["time"], file["id"], file["size"], file["next"] = np.arange(REQUESTS), raw[0], raw[1], -1
        file.tofile(path)
        for name in names:
            rows += [throughput(name, share, raw, path, runs) for share in SHARES]
            print(f"{name}: done", file=sys.stderr)
    by_keys = [row for keys in KEY_COUNTS for row in decisions(keys, min(runs, 3))]
    setting = [paper_setting(name, runs) for name in registry.SPECS if name in selected]
    targets = check_targets(rows)
    print_table(rows, title=f"{REQUESTS:,} requests, one thread")
    print_table(by_keys, title="cost of a decision by number of keys")
    print_table(setting, title="20,000 rounds, 100 queries, capacity 60")
    print_targets(targets)
    write_result(args.out, "replay", {"targets": targets, "rows": rows, "decisions": by_keys, "paper": setting})
    if args.out:
        draw(rows, by_keys, args.out / "replay.png")


def main() -> None:
    parser = options_for(__doc__, "replay.json and replay.png")
    parser.add_argument("--quick", action="store_true", help="one run of each, only policies with targets")
    run_or_show(parser, run, markdown)


if __name__ == "__main__":
    main()
