"""Benchmark of the paper's policies as live policies: time of a settle by the number of keys they remember.

    python bench/vsocb.py [--out DIR] [--quick]

Every key is requested once, so that the policy remembers all of them. Then requests follow Zipf's law, with log-normal
sizes and costs. Costs scatter by 30 % from miss to miss, so that `vsocb-lazy` has a cost radius. A settle is a miss:
the policy counts it, calls the Oracle if that is due, and decides. The time is CPU time of one thread, with the hits
in between, divided by the number of settles. The first tenth of the requests is reported apart (`first`): there
the cost radius still changes much. `scratch` is the same policy when every call solves all remembered keys. It is
measured on the first SCRATCH_REQUESTS. Kernels are compiled before.

Prints tables; writes vsocb.json to DIR.
"""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

import numpy as np
from _results import Row, options_for, print_targets, target, write_result

from knapcache.cli.output import print_table
from knapcache.lab.replay import replay
from knapcache.lab.trace import Trace
from knapcache.policy import registry

POLICIES = ("vsocb", "vsocb-lazy")
KEY_COUNTS = (10**3, 10**4, 10**5)
SHARES = (0.01, 0.1)
REQUESTS, QUICK_REQUESTS, SCRATCH_REQUESTS = 10_000, 2_000, 300
SKEW, SCATTER = 0.9, 0.3
MAX_MILLISECONDS = 1.0


def draw_trace(keys: int, requests: int) -> Trace:
    """Draw one request for each key, then `requests` by Zipf's law."""
    rng = np.random.default_rng([1, keys])
    weights = 1.0 / np.arange(1, keys + 1) ** SKEW
    order = np.concatenate([rng.permutation(keys), rng.choice(keys, requests, p=weights / weights.sum())])
    sizes = rng.lognormal(8.0, 1.0, keys).astype(np.int64) + 1
    costs = rng.lognormal(0.0, 1.0, keys)[order] * np.exp(SCATTER * rng.standard_normal(len(order)))
    return Trace(order, sizes[order], costs, keys)


def milliseconds(policy: Any, trace: Trace, start: int, end: int) -> tuple[float, int]:
    """Replay a part of the trace; returns the time per settle and the number of settles."""
    nothing, part = (
        Trace(trace.keys[s], trace.sizes[s], trace.costs[s], trace.ids) for s in (slice(0), slice(start, end))
    )
    replay(policy, nothing)  # compiles or loads the kernels
    before = time.process_time()
    settles = int((~replay(policy, part).hits).sum())
    return 1e3 * (time.process_time() - before) / max(settles, 1), settles


def measure(name: str, trace: Trace, share: float, requests: int) -> Row:
    keys, spec = trace.ids, registry.find(name)
    capacity = int(trace.sizes[:keys].sum() * share)
    policy: Any = spec.build(capacity, keys)
    milliseconds(policy, trace, 0, keys)
    first, _ = milliseconds(policy, trace, keys, keys + requests // 10)
    calls, skipped, solved = policy.oracle_calls, policy.oracle_calls_skipped, int(policy.head["all_solved"][0])
    later, settles = milliseconds(policy, trace, keys + requests // 10, keys + requests)
    scratch_policy: Any = spec.build(capacity, keys, warm=False)
    milliseconds(scratch_policy, trace, 0, keys)
    scratch, _ = milliseconds(scratch_policy, trace, keys, keys + min(requests, SCRATCH_REQUESTS))
    return {
        "policy": name,
        "keys": keys,
        "cache": share,
        "ms_per_settle": later,
        "first": first,
        "scratch": scratch,
        "settles": settles,
        "calls": policy.oracle_calls - calls,
        "skipped": policy.oracle_calls_skipped - skipped,
        "solved_all": int(policy.head["all_solved"][0]) - solved,
        "bytes_per_key": policy.rows.itemsize,
    }


def main() -> int:
    parser = options_for(__doc__, "vsocb.json")
    parser.add_argument("--quick", action="store_true", help="fewer requests: the numbers are less exact")
    args = parser.parse_args()
    requests = QUICK_REQUESTS if args.quick else REQUESTS
    rows: list[Row] = []
    for keys in KEY_COUNTS:
        trace = draw_trace(keys, requests)
        rows += [measure(name, trace, share, requests) for share, name in itertools.product(SHARES, POLICIES)]
    targets = [
        target(
            f"{name}, 10^5 keys, ms per settle",
            max(row["ms_per_settle"] for row in rows if row["policy"] == name and row["keys"] == 10**5),
            at_most=MAX_MILLISECONDS,
        )
        for name in POLICIES
    ]
    print_table(rows, title=f"{requests:,} requests after one for each key, one thread")
    print_targets(targets)
    write_result(args.out, "vsocb", {"requests": requests, "rows": rows, "targets": targets})
    return 0 if all(row["met"] for row in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
