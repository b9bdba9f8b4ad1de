"""Run a policy over a trace.

The loop below is compiled anew for each policy, around that policy's own kernels, and all state lives in the
policy's arrays. So a long trace is run in pieces, with a word to the progress bar between two of them, and
nothing changes.
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
from knapcache.kernel import Records, borrowed, kernel
from knapcache.policy.base import Policy
from knapcache.sim.trace import Floats, Ints, Trace

PIECE = 1 << 18
"""Requests between two reports of progress."""


@functools.cache
def replay_loop(arrive: Callable[..., Any], settle: Callable[..., Any]) -> Callable[..., Any]:
    """The loop around a policy's kernels."""

    @kernel
    def loop(
        head: Records,
        rows: Records,
        keys: Ints,
        sizes: Ints,
        costs: Floats,
        worth: Floats,
        hits: npt.NDArray[np.bool_],
        value: Floats,
    ) -> int:
        """Fill `hits` and, where ids have a `worth`, the `value` of the cache before each request; returns the peak."""
        head, rows = borrowed(head), borrowed(rows)
        peak = head[0].used
        for k in range(len(keys)):
            for i in range(len(worth)):
                if rows[i].resident:
                    value[k] += worth[i]
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
    """The loop for more keys than ids: an id means a key until it is recycled, as in a live cache."""

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
        """Fill `hits`; returns the peak, and how many ids mean something. `id_of` is −1 for keys without one."""
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
    """Copy the costs of misses to the front of `missed`; returns how many. `costs[~hits]` in a fraction of the time."""
    count = 0
    for k in range(len(costs)):
        missed[count] = costs[k]
        count += int(not hits[k])
    return count


@dataclass(frozen=True, eq=False)
class ReplayResult:
    """What happened."""

    hits: npt.NDArray[np.bool_]
    value: Floats | None
    """Σ worth of the residents before each request, if worth was given."""
    peak: int
    """The most room ever used."""
    oracle_calls: int
    miss_cost: float
    seconds: float


def replay(
    policy: Policy,
    trace: Trace,
    *,
    worth: Floats | None = None,
    phases: Sequence[int] = (0,),
    progress: Callable[[int], None] | None = None,
) -> ReplayResult:
    """Let `policy` serve the requests of `trace`.

    `worth`: what a round with id i resident saves, P(i)·C*(i), a row for each of the `phases`, which begin at these
    requests.
    `progress` is called with the number of requests done since its last call.
    """
    ids = policy.ids
    if trace.ids > ids:
        if worth is None and type(policy).recycle_kernel:
            return _replay_recycling(policy, trace, progress)
        raise InvalidInput(f"the trace has {trace.ids} ids, the policy was made for {ids}")
    table = np.zeros((1, 0)) if worth is None else np.atleast_2d(np.ascontiguousarray(worth, np.float64))
    if len(table) != len(phases) or table.shape[1] > ids:
        raise InvalidInput(f"worth must have {len(phases)} rows of at most {ids} ids, not the shape {table.shape}")
    if list(phases) != sorted(set(phases)) or phases[0] != 0:
        raise InvalidInput(f"phases must begin at request 0 and rise, not {list(phases)}")
    loop = replay_loop(type(policy).arrive_kernel, type(policy).settle_kernel)
    hits = np.zeros(len(trace), np.bool_)
    value = np.zeros(len(trace) if worth is not None else 0)
    borders = sorted({*range(0, len(trace), PIECE), *(p for p in phases if p < len(trace)), len(trace)})
    peak = policy.used
    nothing = slice(0, 0)  # compiles the loop, or loads it, before the clock starts
    loop(
        policy.head,
        policy.rows,
        *(x[nothing] for x in (trace.keys, trace.sizes, trace.costs)),
        table[0],
        hits[nothing],
        value[nothing],
    )
    start = time.perf_counter()
    for a, b in itertools.pairwise(borders):
        row = table[int(np.searchsorted(phases, a, side="right")) - 1]
        piece = (trace.keys[a:b], trace.sizes[a:b], trace.costs[a:b], row, hits[a:b], value[a:b])
        peak = max(peak, loop(policy.head, policy.rows, *piece))
        if progress:
            progress(b - a)
    seconds = time.perf_counter() - start
    return _run(policy, trace, hits, value if worth is not None else None, peak, seconds)


def _replay_recycling(policy: Policy, trace: Trace, progress: Callable[[int], None] | None) -> ReplayResult:
    """`replay` with fewer ids than keys, beginning with no key known."""
    kernels = type(policy)
    loop = recycling_loop(kernels.arrive_kernel, kernels.settle_kernel, kernels.recycle_kernel)
    hits = np.zeros(len(trace), np.bool_)
    id_of, key_of = np.full(trace.ids, -1), np.full(policy.ids, -1)
    arrays = (trace.keys, trace.sizes, trace.costs, hits)
    loop(policy.head, policy.rows, *(x[:0] for x in arrays), id_of, key_of, 0)
    peak, taken = policy.used, 0
    start = time.perf_counter()
    for a in range(0, len(trace), PIECE):
        here, taken = loop(policy.head, policy.rows, *(x[a : a + PIECE] for x in arrays), id_of, key_of, taken)
        peak = max(peak, here)
        if progress:
            progress(min(PIECE, len(trace) - a))
    return _run(policy, trace, hits, None, peak, time.perf_counter() - start)


def _run(
    policy: Policy, trace: Trace, hits: npt.NDArray[np.bool_], value: Floats | None, peak: int, seconds: float
) -> ReplayResult:
    missed = np.empty(len(trace))
    miss_cost = float(missed[: take_missed(trace.costs, hits, missed)].sum())
    return ReplayResult(hits, value, int(peak), policy.oracle_calls, miss_cost, seconds)
