"""Replay: run a policy over a trace.

The loop is compiled separately for each policy, around the policy's own kernels. All state is in the policy's arrays,
so a long trace can be replayed in pieces, with a progress report after each, and the same result.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from knapcache.errors import InvalidInput
from knapcache.kernel import Records, borrowed, kernel, prefetch
from knapcache.lab.trace import Floats, Ints, Trace
from knapcache.policy.base import Policy

PIECE = 1 << 18
"""Requests between two progress reports."""
AHEAD = 16
"""The row of a request is loaded into the core's caches this many requests before its turn."""


@functools.cache
def replay_loop(arrive: Callable[..., Any], settle: Callable[..., Any]) -> Callable[..., Any]:
    """Return the compiled loop around a policy's kernels."""

    @kernel
    def loop(
        head: Records,
        rows: Records,
        keys: Ints,
        sizes: Ints,
        costs: Floats,
        values: Floats,
        hits: npt.NDArray[np.bool_],
        resident_values: Floats,
    ) -> int:
        """Fill `hits`, and `resident_values` with the total value of the residents before each request; returns the
        peak size.
        """
        head, rows = borrowed(head), borrowed(rows)
        peak = head[0].used
        for k in range(len(keys)):
            if k + AHEAD < len(keys):
                prefetch(rows, keys[k + AHEAD])
            for i in range(len(values)):
                if rows[i].resident:
                    resident_values[k] += values[i]
            hits[k] = arrive(head, rows, keys[k])
            if not hits[k]:
                settle(head, rows, keys[k], sizes[k], costs[k])
            peak = max(peak, head[0].used)
        return peak  # type: ignore[no-any-return]

    return loop


@functools.cache
def recycling_loop(
    arrive: Callable[..., Any], settle: Callable[..., Any], recycle: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the loop for more keys than ids: an id belongs to a key until it is recycled, as in a live cache."""

    @kernel
    def loop(
        head: Records,
        rows: Records,
        keys: Ints,
        sizes: Ints,
        costs: Floats,
        hits: npt.NDArray[np.bool_],
        id_of: Ints,
        key_of: Ints,
        taken: int,
    ) -> tuple[int, int]:
        """Fill `hits`; returns the peak size and the number of ids in use. `id_of` is −1 for keys without an id."""
        head, rows = borrowed(head), borrowed(rows)
        peak = head[0].used
        for k in range(len(keys)):
            i = id_of[keys[k]]
            if i < 0:
                if taken < len(key_of):
                    i = taken
                    taken += 1
                else:
                    i = recycle(head, rows)
                    id_of[key_of[i]] = -1
                id_of[keys[k]] = i
                key_of[i] = keys[k]
            hits[k] = arrive(head, rows, i)
            if not hits[k]:
                settle(head, rows, i, sizes[k], costs[k])
            peak = max(peak, head[0].used)
        return peak, taken

    return loop


@kernel
def take_missed(costs: Floats, hits: npt.NDArray[np.bool_], missed: Floats) -> int:
    """Copy the costs of misses to the front of `missed`; returns their number. Much faster than `costs[~hits]`."""
    count = 0
    for k in range(len(costs)):
        missed[count] = costs[k]
        count += int(not hits[k])
    return count


@dataclass(frozen=True, eq=False)
class ReplayResult:
    hits: npt.NDArray[np.bool_]
    resident_values: Floats | None
    """Total value of the residents before each request; None if `values` was not given."""
    peak: int
    """Largest total size of the residents."""
    oracle_calls: int
    miss_cost: float
    seconds: float


def replay(
    policy: Policy,
    trace: Trace,
    *,
    values: Floats | None = None,
    phases: Sequence[int] = (0,),
    progress: Callable[[int], None] | None = None,
) -> ReplayResult:
    """Replay the requests of `trace` with `policy`.

    `values` holds P(i)·C*(i) of each id i, the expected cost that one round saves if i is resident: one row for each of
    the `phases`, which begin at these requests.
    `progress` is called with the number of requests replayed since its last call.
    """
    ids, state = policy.ids, (policy.head, policy.rows)
    recycling = trace.ids > ids
    if recycling and (values is not None or not type(policy).recycle_kernel):
        raise InvalidInput(f"the trace has {trace.ids} ids, the policy only {ids}")
    table = np.zeros((1, 0)) if values is None else np.atleast_2d(np.ascontiguousarray(values, np.float64))
    if len(table) != len(phases) or table.shape[1] > ids:
        raise InvalidInput(f"values must have {len(phases)} rows of at most {ids} ids, not the shape {table.shape}")
    if list(phases) != sorted(set(phases)) or phases[0] != 0:
        raise InvalidInput(f"phases must begin at request 0 and increase, not {list(phases)}")
    hits = np.zeros(len(trace), np.bool_)
    resident_values = np.zeros(len(trace) if values is not None else 0)
    id_of, key_of, taken = np.full(trace.ids if recycling else 0, -1), np.full(ids if recycling else 0, -1), 0
    kernels = type(policy)

    def run(a: int, b: int) -> int:
        """Replay the requests from a to b; returns the peak size."""
        nonlocal taken
        columns = (trace.keys[a:b], trace.sizes[a:b], trace.costs[a:b])
        if recycling:  # at the start no key has an id
            loop = recycling_loop(kernels.arrive_kernel, kernels.settle_kernel, kernels.recycle_kernel)
            peak, taken = loop(*state, *columns, hits[a:b], id_of, key_of, taken)
            return int(peak)
        loop = replay_loop(kernels.arrive_kernel, kernels.settle_kernel)
        row = table[int(np.searchsorted(phases, a, side="right")) - 1]
        return int(loop(*state, *columns, row, hits[a:b], resident_values[a:b]))

    peak = max(policy.used, run(0, 0))  # compiles or loads the loop before the timing starts
    borders = sorted({*range(0, len(trace), PIECE), *(p for p in phases if p < len(trace)), len(trace)})
    start = time.perf_counter()
    for a, b in itertools.pairwise(borders):
        peak = max(peak, run(a, b))
        if progress:
            progress(b - a)
    seconds = time.perf_counter() - start
    missed = np.empty(len(trace))
    return ReplayResult(
        hits=hits,
        resident_values=resident_values if values is not None else None,
        peak=peak,
        oracle_calls=policy.oracle_calls,
        miss_cost=float(missed[: take_missed(trace.costs, hits, missed)].sum()),
        seconds=seconds,
    )
