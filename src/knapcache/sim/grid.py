"""A trace against policies and capacities: every pair is replayed, and makes a row.

Cells run where an executor runs them: in the processes of this machine, or on a cluster. The trace does not travel with
them, but once to each place (executors.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.policy import registry
from knapcache.sim.capacity import Capacity
from knapcache.sim.executors import Jobs, executor
from knapcache.sim.replay import replay
from knapcache.sim.sweep import sweep
from knapcache.sim.trace import Trace


@dataclass(frozen=True)
class GridCell:
    """One replay."""

    policy: str
    capacity: int
    seed: int
    trace: int = 0
    """Which of the traces."""


def replay_grid(
    trace: Trace,
    policies: Sequence[str],
    capacities: Sequence[Capacity | str | int],
    *,
    seed: int = 0,
    jobs: Jobs = None,
) -> list[dict[str, Any]]:
    """One row for each capacity and policy, in that order.

    `capacities` are in units of the trace, as numbers or texts such as `4GB`, or `10%` of the working set. Equal seeds
    give equal rows, except for `seconds`.
    """
    given = check_arguments(policies, capacities, seed, jobs)
    working_set = trace.working_set
    rooms = [capacity.units(working_set) for capacity in given]
    require_usable(trace)
    return replay_cells([trace], [GridCell(policy, room, seed) for room in rooms for policy in policies], jobs=jobs)


def replay_cells(traces: Sequence[Trace], cells: Sequence[GridCell], *, jobs: Jobs = None) -> list[dict[str, Any]]:
    """One row for each cell."""
    # Times and names stay here: no policy sees them, and names are slow to send.
    bare = [Trace(trace.keys, trace.sizes, trace.costs, trace.ids) for trace in traces]
    return sweep(run_cell, cells, shared=(bare,), jobs=jobs, title="replay")


def require_usable(trace: Trace) -> None:
    """Refuse a trace of which nothing can be said."""
    if not len(trace):
        raise InvalidInput("the trace has no requests")
    with np.errstate(over="ignore"):
        total = trace.total_cost
    if not math.isfinite(total):
        raise InvalidInput("the costs of the trace sum to more than a number holds: use a larger unit of cost")


def check_arguments(
    policies: Sequence[str], capacities: Sequence[Capacity | str | int], seed: int, jobs: Jobs
) -> list[Capacity]:
    """Check all that can be checked without a trace, which may take long to read; the capacities."""
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
    """Replay and account."""
    trace = traces[cell.trace]
    spec = registry.find(cell.policy, bounds=True)
    if isinstance(spec, registry.Bound):
        start = time.perf_counter()
        miss_cost = spec.miss_cost(cell.capacity, trace)
        # A bound has a cost, and nothing that was run.
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
        "cost_ratio": miss_cost / total if total else None,  # of nothing there is no share
        "peak_size": peak,
        "oracle_calls": calls,
        "seconds": seconds,
    }
