"""Replays of a trace, or of a sample, for every combination of policy and capacity: one row each.

Cells run in local processes or on a cluster. The trace is sent once to each process, not with every cell
(executors.py).
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.lab.capacity import Capacity
from knapcache.lab.executors import Jobs, executor, sweep
from knapcache.lab.replay import replay
from knapcache.lab.sampling import Sample
from knapcache.lab.trace import Trace, TraceStats, trace_stats
from knapcache.policy import registry


@dataclass(frozen=True)
class GridCell:
    """One replay of the grid."""

    policy: str
    capacity: int
    seed: int
    trace: int = 0
    """Index of the trace."""


def replay_grid(
    source: Trace | Sample,
    policies: Sequence[str],
    capacities: Sequence[Capacity | str | int],
    *,
    seed: int = 0,
    jobs: Jobs = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Return one row for each capacity and policy, in that order. Rows of a sample are estimates for the whole log.

    Capacities are numbers in units of the trace, or texts such as `4GB`, or `10%` of the working set. Equal seeds give
    equal rows, except for `seconds`. `on_progress` is called after each replay with finished replays and all.
    """
    parsed = check_arguments(policies, capacities, seed, jobs)
    sample = source if isinstance(source, Sample) else Sample.of(source)
    units = [capacity.units(sample.stats.working_set) for capacity in parsed]
    require_usable(sample.stats)
    count = len(sample.slices)
    pairs = [(policy, unit) for unit in units for policy in policies]
    cells = [GridCell(policy, sample.scaled_capacity(unit), seed, k) for policy, unit in pairs for k in range(count)]
    rows = replay_cells(sample.slices, cells, jobs=jobs, on_progress=on_progress)
    parts = [trace_stats(piece) for piece in sample.slices]
    return [
        estimate(sample, unit, rows[k * count : (k + 1) * count], parts) | {"rate": sample.rate}
        for k, (_, unit) in enumerate(pairs)
    ]


def estimate(
    sample: Sample, capacity: int, rows: Sequence[dict[str, Any]], parts: Sequence[TraceStats]
) -> dict[str, Any]:
    """Return the row of the whole log from those of its slices, with standard errors.

    First requests always miss, and their number and cost are known for the whole log. A slice holds a share R of the
    keys. Its other misses, divided by R, estimate the other misses of the whole log.
    Rejected: the ratios of the slices. One popular key in a slice moves them a lot, although that key is nearly always
    a hit and says nothing about misses (SHARDS-adj corrects the same error).
    """
    if sample.whole:
        return rows[0] | {"hits_error": None, "cost_ratio_error": None}
    stats = sample.stats

    def scaled(values: Sequence[float]) -> tuple[float, float]:
        each = np.maximum(values, 0.0) / sample.slice_rate
        return float(each.mean()), float(each.std(ddof=1) / math.sqrt(len(each)))

    hits, hits_error = None, None
    if rows[0]["hits"] is not None:
        again = [row["requests"] - row["hits"] - part.keys for row, part in zip(rows, parts, strict=True)]
        misses, hits_error = scaled(again)
        hits = max(0, round(stats.requests - stats.keys - misses))
    again = [row["miss_cost"] - (part.total_cost - part.largest_saving) for row, part in zip(rows, parts, strict=True)]
    cost, error = scaled(again)
    miss_cost = min(stats.total_cost - stats.largest_saving + cost, stats.total_cost)
    total = stats.total_cost
    peaks = [row["peak_size"] for row in rows]
    return rows[0] | {
        "capacity": capacity,
        "requests": stats.requests,
        "hits": hits,
        "miss_cost": miss_cost,
        "total_cost": total,
        "cost_ratio": miss_cost / total if total else None,
        "peak_size": None if peaks[0] is None else round(sum(peaks) / sample.rate),
        "oracle_calls": None if peaks[0] is None else sum(row["oracle_calls"] for row in rows),
        "seconds": sum(row["seconds"] for row in rows),
        "hits_error": hits_error,
        "cost_ratio_error": error / total if total else None,
    }


def replay_cells(
    traces: Sequence[Trace],
    cells: Sequence[GridCell],
    *,
    jobs: Jobs = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Return one row for each cell. `on_progress` is called after each cell with finished cells and all cells."""
    # Times and names are not sent: policies do not use them, and names are slow to send.
    bare = [Trace(trace.keys, trace.sizes, trace.costs, trace.ids) for trace in traces]
    order = even_order(cells)
    ordered = [cells[k] for k in order]
    rows = sweep(run_cell, ordered, shared=(bare,), jobs=jobs, title="replay", on_progress=on_progress)
    found = dict(zip(order, rows, strict=True))
    return [found[k] for k in range(len(cells))]


def even_order(cells: Sequence[GridCell]) -> list[int]:
    """Return the positions of the cells in rounds, so that the time of one round predicts that of the others.

    A round has one cell of each policy, at random capacities: policies differ in speed by a factor of 100, and
    capacities by less.
    """
    by_policy: dict[str, list[int]] = {}
    for k, cell in enumerate(cells):
        by_policy.setdefault(cell.policy, []).append(k)
    shuffle = random.Random(0)
    for positions in by_policy.values():
        shuffle.shuffle(positions)
    rounds = itertools.zip_longest(*by_policy.values())
    return [k for one in rounds for k in one if k is not None]


def require_usable(stats: TraceStats) -> None:
    """Raise InvalidInput for a trace without requests, or whose total cost overflows."""
    if not stats.requests:
        raise InvalidInput("the trace has no requests")
    if not math.isfinite(stats.total_cost):
        raise InvalidInput("the costs of the trace sum to more than a float can hold: use a larger unit of cost")


def check_arguments(
    policies: Sequence[str], capacities: Sequence[Capacity | str | int], seed: int, jobs: Jobs
) -> list[Capacity]:
    """Check everything that needs no trace, because reading one may take long; returns the parsed capacities."""
    for k, name in enumerate(policies):
        registry.find(name, bounds=True)
        if name in policies[:k]:
            raise InvalidInput(f"policy {name!r} is named twice")
    if not policies or not capacities:
        raise InvalidInput("at least one policy and one capacity must be named")
    if seed < 0:
        raise InvalidInput(f"seed must not be negative, not {seed}")
    executor(jobs)
    return [c if isinstance(c, Capacity) else Capacity.parse(str(c)) for c in capacities]


def run_cell(traces: Sequence[Trace], cell: GridCell) -> dict[str, Any]:
    """Replay one cell and return its row."""
    trace = traces[cell.trace]
    spec = registry.find(cell.policy, bounds=True)
    if isinstance(spec, registry.Bound):
        start = time.perf_counter()
        miss_cost = spec.miss_cost(cell.capacity, trace)
        # A bound has a cost but no replay.
        hits, peak, calls, seconds = None, None, None, time.perf_counter() - start
    else:
        policy = spec.build_for(cell.capacity, trace, seed=cell.seed)
        run = replay(policy, trace)
        policy.check()
        hits, peak, calls, seconds = int(run.hits.sum()), run.peak, run.oracle_calls, run.seconds
        miss_cost = run.miss_cost
    total = trace.total_cost
    return {
        "policy": cell.policy,
        "capacity": cell.capacity,
        "requests": len(trace),
        "hits": hits,
        "miss_cost": miss_cost,
        "total_cost": total,
        "cost_ratio": miss_cost / total if total else None,  # undefined for a total of 0
        "peak_size": peak,
        "oracle_calls": calls,
        "seconds": seconds,
    }
