"""Benchmark of one cache on many machines: proxies on a real Valkey or Redis server.

    python bench/cluster.py [--out DIR] [--live LIST] [--scale X]
    python bench/cluster.py --markdown FILE

What the design of the sharing costs is an experiment, `knapcache experiment cluster`. The targets here:

    hits        a hit from the near cache costs the proxy's process at most 5 µs of CPU time more than one of a proxy
                with a SQLite file; a hit from the server costs at most 200 µs
    misses      p50 at most 2 ms above that with a SQLite file
    failovers   kill -9 of a primary under the load of OpenAI's SDK at three proxies, under Sentinel and in a cluster of
                3 + 3 with a node timeout of 2 s: no failed request, no wrong answer, never more than the limit, and at
                most 8 s until answers are found and stored again
    takeovers   kill -9 of the owner: another process decides within the lease of 3 s and 1 s more
    fencing     20 owners are stopped, replaced and woken: each is refused
    cuts        50 kills of a primary or of the process that writes to it: all totals are consistent
    bursts      100 times the same new request at three proxies at once: one upstream call each
    freeze      the server is stopped (SIGSTOP): one request waits 250 ms, and the others do not wait

A hit is measured with the load generator of bench/proxy.py. The baseline, a proxy with a SQLite file, runs in the same
rounds, and so does LiteLLM's proxy with its cache in Redis. Of each number of a hit the best round is reported.
Takes 6 minutes on two cores; `--scale 0.1` takes two, without LiteLLM.

Prints tables; writes cluster.json to DIR. What does not run keeps its numbers in an existing cluster.json of the same
scale. --markdown prints the tables of docs/reference/redis-store.md from such a file and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from _results import Row, options_for, run_or_show, write_result
from policies import parse_names

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the scenarios of the tests

LIVE = ("hits", "misses", "failovers", "takeovers", "fencing", "cuts", "bursts", "freeze")
"""The measurements. They need the packages of the tests, so _cluster_live.py is imported only to make or show them."""


def merged(earlier: Row, part: Row) -> Row:
    """Return measurements with those of an earlier run at the same scale that were not made again."""
    import _cluster_live

    kept = earlier if earlier.get("scale") == part["scale"] else {}
    record = {**kept, **part}
    return {**record, "targets": _cluster_live.check_targets(record)}


def run(args: argparse.Namespace) -> None:
    import _cluster_live

    names = parse_names(args.live, LIVE, LIVE)
    file = args.out / "cluster.json" if args.out else None
    earlier: Row = json.loads(file.read_text(encoding="utf-8")) if file and file.exists() else {}
    live = merged(earlier.get("live", {}), _cluster_live.measure(args.scale, names, peers=args.scale >= 1))
    _cluster_live.show(live)
    write_result(args.out, "cluster", {"numpy": np.__version__, "live": live})


def markdown(record: Row) -> str:
    """Return the tables of the documentation."""
    import _cluster_live

    return "\n".join(_cluster_live.markdown(record["live"]))


def main() -> None:
    parser = options_for(__doc__, "cluster.json")
    option = parser.add_argument
    option("--live", metavar="LIST", help=f"measurements, of {', '.join(LIVE)} (default: all)")
    option("--scale", type=float, default=1.0, metavar="X", help="multiplies the counts (default: 1)")
    run_or_show(parser, run, markdown)


if __name__ == "__main__":
    main()
