"""Benchmark of learned eviction: LRB, 3L-Cache and GL-Cache beside the policies of knapcache.

    python bench/learned.py [--out DIR] [--traces LIST] [--capacities LIST]
    python bench/learned.py --markdown FILE

Replays the public traces ($KNAPCACHE_TRACES) and synthetic traffic. LRB, 3L-Cache and GL-Cache are those of
libCacheSim's package (Linux x86-64), set to minimise the number of misses; they ignore cost. GL-Cache trains by trace
time, which is not passed: it never trains here. LRB trains its first model after 131,072 labelled samples and is LRU
until then; 3L-Cache starts as LRU too. The public traces are too short for these two. Hence the synthetic trace, and a
policy like LRB that trains on smaller batches, with and without cost (_lrb_like.py). It needs LightGBM, which is not in
requirements.lock: `pip install lightgbm`. What is not installed is reported and left out.

Prints tables of cost ratios and miss ratios; writes learned.json to DIR. --markdown prints the tables of
docs/background/policies.md from such a file and runs nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator

import numpy as np
from _results import Row, options_for, run_or_show, write_result

from knapcache.cli.output import print_table
from knapcache.lab import traffic
from knapcache.lab.replay import replay
from knapcache.lab.trace import Trace
from knapcache.lab.traces import read_trace
from knapcache.policy import registry
from knapcache_experiments.measured import traces_directory

PUBLIC = ("oasst_zipf_0.6", "oasst_zipf_1.0", "mooncake_conversation", "adaptsize_camp", "agent_contexts")
SYNTHETIC, REQUESTS = "changes", 250_000
CAPACITIES = ("1%", "5%", "10%")
OURS = ("adaptive", "gdsf-cost", "gdsf", "lhd", "lru")
LIKE = {"LRB-like, ours": False, "LRB-like, ours, with cost": True}


def installed(package: str) -> bool:
    found = importlib.util.find_spec(package) is not None
    if not found:
        print(f"{package} is not installed: its rows are left out", file=sys.stderr)
    return found


def load(names: list[str]) -> Iterator[tuple[str, Trace]]:
    """Yield the traces whose files exist, and the synthetic trace; report the others."""
    for name in names:
        path = traces_directory() / f"{name}.csv.gz"
        if name == SYNTHETIC:
            yield name, traffic.draw(SYNTHETIC, requests=REQUESTS)
        elif path.exists():
            yield name, read_trace(path)
        else:
            print(f"{name}: skipped, {path} does not exist; set KNAPCACHE_TRACES to another directory", file=sys.stderr)


def capacity_of(trace: Trace, percent: str) -> int:
    """Return a share of the working set: the sum over the keys of their largest size."""
    largest = np.zeros(trace.ids, np.int64)
    np.maximum.at(largest, trace.keys, trace.sizes)
    return int(largest.sum() * float(percent.removesuffix("%")) / 100)


def measure(trace: Trace, capacity: int) -> Iterator[Row]:
    """Yield a row for every policy: its name, cost ratio, miss ratio and, of LRB-like ones, the models trained."""
    for name in OURS:
        yield row_of(name, trace, replay(registry.find(name).build_for(capacity, trace), trace).hits)
    if installed("libcachesim"):
        from _libcachesim import LEARNED, learned_hits

        for name in LEARNED:
            yield row_of(name, trace, learned_hits(name, trace, capacity))
    if installed("lightgbm"):
        from _lrb_like import replay_lrb_like

        for name, by_cost in LIKE.items():
            hits, models = replay_lrb_like(trace, capacity, by_cost=by_cost)
            yield row_of(name, trace, hits) | {"models": models}


def row_of(name: str, trace: Trace, hits: np.ndarray) -> Row:
    cost_ratio = float(trace.costs[~hits].sum() / trace.costs.sum())
    return {"policy": name, "cost_ratio": cost_ratio, "miss_ratio": float(1.0 - hits.mean())}


def table(rows: list[Row], trace: str, what: str) -> list[Row]:
    """Return one row per policy with a column per capacity."""
    chosen = [r for r in rows if r["trace"] == trace]
    return [
        {"policy": policy} | {r["capacity"]: r[what] for r in chosen if r["policy"] == policy}
        for policy in dict.fromkeys(r["policy"] for r in chosen)
    ]


def markdown(rows: list[Row]) -> str:
    """Return the table of the documentation: cost ratios."""
    policies = [p for p in dict.fromkeys(r["policy"] for r in rows) if p not in ("gdsf", "lhd")]
    names = [f"`{p}`" if p in OURS else p for p in policies]
    text = [f"| trace | cache | {' | '.join(names)} |", "|---" * (2 + len(policies)) + "|"]
    for trace, capacity in dict.fromkeys((r["trace"], r["capacity"]) for r in rows):
        ratios = {r["policy"]: r["cost_ratio"] for r in rows if (r["trace"], r["capacity"]) == (trace, capacity)}
        text.append(f"| {trace} | {capacity} | {' | '.join(f'{ratios[p]:.3f}' for p in policies)} |")
    return "\n".join(text)


def run(args: argparse.Namespace) -> None:
    rows: list[Row] = []
    for name, trace in load(args.traces.split(",")):
        for capacity in args.capacities.split(","):
            measured = measure(trace, capacity_of(trace, capacity))
            rows += [{"trace": name, "capacity": capacity, **row} for row in measured]
        for what in ("cost_ratio", "miss_ratio"):
            print_table(table(rows, name, what), title=f"{name}: {what.replace('_', ' ')} by capacity")
    write_result(args.out, "learned", {"requests": {SYNTHETIC: REQUESTS}, "rows": rows})


def main() -> None:
    parser = options_for(__doc__, "learned.json")
    parser.add_argument("--traces", metavar="LIST", default=",".join((*PUBLIC, SYNTHETIC)), help="traces to replay")
    parser.add_argument("--capacities", metavar="LIST", default=",".join(CAPACITIES), help="in %% of the working set")
    run_or_show(parser, run, lambda record: markdown(record["rows"]))


if __name__ == "__main__":
    main()
