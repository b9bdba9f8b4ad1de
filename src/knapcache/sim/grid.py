"""A trace against policies and capacities: every pair is replayed, and makes a row.

Cells run in other processes. The trace does not travel with them: it is laid down once as arrays in a temporary
directory, and every process maps them, so that all share one copy in memory.
"""

from __future__ import annotations

import functools
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.policy import registry
from knapcache.sim.capacity import Capacity
from knapcache.sim.replay import replay
from knapcache.sim.sweep import processes, sweep
from knapcache.sim.trace import Trace

ARRAYS = ("keys", "sizes", "costs")


@dataclass(frozen=True)
class Cell:
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
    jobs: int | None = None,
) -> list[dict[str, Any]]:
    """One row for each capacity and policy, in that order.

    `capacities` are in units of the trace, as numbers or texts such as `4GB`, or `10%` of the working set. Equal seeds
    give equal rows, except for `seconds`.
    """
    given = choices(policies, capacities, seed, jobs)
    working_set = trace.working_set
    rooms = [capacity.units(working_set) for capacity in given]
    require_use(trace)
    return replay_cells([trace], [Cell(policy, room, seed) for room in rooms for policy in policies], jobs=jobs)


def replay_cells(traces: Sequence[Trace], cells: Sequence[Cell], *, jobs: int | None = None) -> list[dict[str, Any]]:
    """One row for each cell."""
    if processes(jobs, len(cells)) == 1:
        return sweep(functools.partial(run_cell, traces), cells, jobs=1, title="replay")
    with tempfile.TemporaryDirectory(prefix="knapcache-") as root:
        folders = [Path(root, str(k)) for k in range(len(traces))]
        for trace, folder in zip(traces, folders, strict=True):
            folder.mkdir()
            lay_down(trace, folder)
        return sweep(functools.partial(run_cell, folders), cells, jobs=jobs, title="replay")


def require_use(trace: Trace) -> None:
    """Refuse a trace of which nothing can be said."""
    if not len(trace):
        raise InvalidInput("the trace has no requests")
    with np.errstate(over="ignore"):
        total = trace.total_cost
    if not math.isfinite(total):
        raise InvalidInput("the costs of the trace sum to more than a number holds: use a larger unit of cost")


def choices(
    policies: Sequence[str], capacities: Sequence[Capacity | str | int], seed: int, jobs: int | None
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
    processes(jobs, 1)
    return [c if isinstance(c, Capacity) else Capacity.parse(str(c)) for c in capacities]


def run_cell(traces: Sequence[Trace] | Sequence[Path], cell: Cell) -> dict[str, Any]:
    """Replay and account."""
    where = traces[cell.trace]
    trace = where if isinstance(where, Trace) else pick_up(where)
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


def lay_down(trace: Trace, folder: Path) -> None:
    """The arrays of a trace as files."""
    for name in ARRAYS:
        np.save(folder / f"{name}.npy", getattr(trace, name))
    (folder / "ids").write_text(str(trace.ids), encoding="ascii")


@functools.lru_cache(maxsize=8)  # mapped, not read: keeping a few costs no memory
def pick_up(folder: Path) -> Trace:
    """The trace again, once a process."""
    # Copy on write, not read-only: kernels are compiled for arrays that may be written, and once is enough.
    keys, sizes, costs = (np.load(folder / f"{name}.npy", mmap_mode="c") for name in ARRAYS)
    return Trace(keys, sizes, costs, int((folder / "ids").read_text(encoding="ascii")))
