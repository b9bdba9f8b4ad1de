"""How fast the simulator is, by policy: seconds for the paper's setting (20,000 rounds, 100 queries).

    python bench/simulator.py [--out DIR]

Kernels are compiled before the clock starts. Prints a table; writes simulator.json into DIR. VSOCB should take less
than 0.5 s.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from pathlib import Path

import numpy as np

from knapcache.cli.output import print_table
from knapcache.policy import registry
from knapcache.sim.replay import replay
from knapcache.sim.synthetic import Workload

CAPACITY = 60
RUNS = 7


def measure(name: str) -> dict[str, float | str]:
    """Best and median of some runs of a policy over the same requests."""
    _, trace = Workload().draw(np.random.default_rng(0))
    seconds = []
    for _ in range(RUNS):
        policy = registry.find(name).build_for(trace.keys, trace.sizes, trace.costs, CAPACITY, trace.ids)
        seconds.append(replay(policy, trace).seconds)
    return {
        "policy": name,
        "best_seconds": min(seconds),
        "median_seconds": statistics.median(seconds),
        "requests_per_second": len(trace) / min(seconds),
        "oracle_calls": policy.oracle_calls,
    }


def main() -> None:
    """Measure every policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="DIR", help="write simulator.json here")
    args = parser.parse_args()
    rows = [measure(name) for name in registry.SPECS]
    print_table(rows, title="20,000 rounds, 100 queries, capacity 60, one thread")
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        record = {"name": "simulator", "python": platform.python_version(), "machine": platform.machine(), "rows": rows}
        (args.out / "simulator.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
