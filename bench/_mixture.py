"""Two kinds of traffic in one cache, compared with a cache of half the capacity for each.

Agent contexts reward recency, questions reward frequency. The stream alternates between the two traces evenly, in
proportion to their lengths. Sizes are scaled so that the working sets are equal, costs so that the totals are equal. A
policy that adapts to the mixture as a whole can lose to two caches that each adapt to one part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from _results import Row

from knapcache.lab.grid import GridCell, run_cell
from knapcache.lab.trace import Trace

TRACES = ("agent_contexts", "oasst_zipf_1.0")
REQUESTS = 30_000
"""Requests taken from the beginning of each trace."""
SHARE = 0.05
"""The capacity as a share of both working sets together."""
SCALE = 10**9
"""Size of each scaled working set. Large, so that rounding sizes to integers changes nothing."""


def scaled(trace: Trace, requests: int) -> Trace:
    """Return the first requests with a working set of about SCALE and a total cost of 1."""
    first = Trace(trace.keys[:requests], trace.sizes[:requests], trace.costs[:requests], trace.ids)
    sizes = np.maximum(1, np.rint(first.sizes * (SCALE / first.working_set))).astype(np.int64)
    return Trace(first.keys, sizes, first.costs / first.total_cost, first.ids)


def mixed(one: Trace, other: Trace) -> Trace:
    """Return both traces in one, evenly interleaved."""
    position = np.concatenate([(np.arange(len(trace)) + 0.5) / len(trace) for trace in (one, other)])
    order = np.argsort(position, kind="stable")
    keys = np.concatenate([one.keys, one.ids + other.keys])
    sizes, costs = np.concatenate([one.sizes, other.sizes]), np.concatenate([one.costs, other.costs])
    return Trace(keys[order], sizes[order], costs[order], one.ids + other.ids)


def measure(traces: Mapping[str, Trace], policies: Sequence[str]) -> Row:
    """Return the cost ratio of each policy with one cache for the mixture and with two caches."""
    parts = [scaled(traces[name], REQUESTS) for name in TRACES]
    whole = mixed(*parts)
    capacity = int(SHARE * whole.working_set)
    rows = []
    for policy in policies:
        one = run_cell([whole], GridCell(policy, capacity, 0))["cost_ratio"]
        two = [run_cell([part], GridCell(policy, capacity // 2, 0))["cost_ratio"] for part in parts]
        # The totals of the parts are equal, so the ratio of both together is the mean.
        rows.append({"policy": policy, "one_cache": one, "two_caches": sum(two) / 2, "one_by_two": 2 * one / sum(two)})
    return {"traces": list(TRACES), "share": SHARE, "rows": sorted(rows, key=lambda row: float(row["one_cache"]))}


def title(record: Row) -> str:
    return f"{' and '.join(record['traces'])} in one cache, and in two of half the capacity: cost ratio"


def markdown(record: Row) -> list[str]:
    """Return the lines of the table in docs/background/policies.md."""
    fields = ("one_cache", "two_caches", "one_by_two")
    rows = [[f"`{row['policy']}`", *(f"{row[field]:.4f}" for field in fields)] for row in record["rows"]]
    return [
        "| policy | one cache | two caches | one / two |",
        "|---|---|---|---|",
        *(f"| {' | '.join(r)} |" for r in rows),
    ]
