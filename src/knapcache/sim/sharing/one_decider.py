"""One decider for a shared store: hits and settles are reported to it late.

All proxies read one store. Time is counted in requests, and one request is finished before the next one.

    request k     It is a hit if its answer is in the store: admitted by the decider, or in the nursery. Otherwise it is
                  a miss, which is paid for.
    hit of k      The decider counts it right after request k + hits_late: arrive.
    miss of k     The decider counts and decides it right after request k + settles_late: arrive, settle. The decision
                  takes effect in the store at once. `settles_late` covers the whole way there and back.
    same moment   The report of the older request comes first.

The nursery is a part of the capacity in which the answer of a miss is readable until it is decided. The decider divides
only the rest of the capacity. A newcomer that does not fit displaces the oldest ones. One that is larger than the whole
nursery never enters it. While its answer is not in the nursery, a key misses again and is paid for again. That is so
for every undecided answer without a nursery.

Two rules have a worse alternative, which can be simulated as well:

    held          An answer that is displaced from the nursery, or never was in it, is kept in memory by the proxy that
                  paid for it until it is decided. If it is admitted, the proxy stores it.
    lost          No proxy keeps it. The decider evicts others for it, and then learns that it is gone: forget.

    count once    If the key of a settle was admitted meanwhile, by an earlier settle, the request is counted and
                  nothing is decided. The store has an answer.
    redecide      The later answer replaces the earlier one: settle. The key may lose its place by that.

Reports have constant lateness, so the queue of reports is the trace itself: no queue is simulated. With lateness 0 and
without a nursery the calls of the policy are those of a plain replay. The number of proxies does not matter.

    Invariant: size of admitted answers + size of the nursery's answers ≤ capacity.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from knapcache.errors import InvalidInput
from knapcache.kernel import Records, borrowed, kernel
from knapcache.policy.registry import Spec
from knapcache.sim.sharing.outcome import SharingOutcome
from knapcache.sim.trace import Floats, Ints, Trace


@functools.cache
def late_loop(
    arrive: Callable[..., Any], settle: Callable[..., Any], release: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the compiled loop around a policy's kernels."""

    @kernel
    def loop(
        head: Records,
        rows: Records,
        keys: Ints,
        sizes: Ints,
        costs: Floats,
        hits: npt.NDArray[np.bool_],
        in_nursery: npt.NDArray[np.bool_],
        nursery_of: Ints,
        hits_late: int,
        settles_late: int,
        nursery: int,
        lost: bool,
        redecide: bool,
    ) -> int:
        """Fill `hits`; returns the largest total size.

        in_nursery[k] says whether the answer of request k is in the nursery, nursery_of[i] whether one of key i is.
        """
        head, rows = borrowed(head), borrowed(rows)
        peak, nursery_used, oldest = 0, 0, 0
        for k in range(len(keys)):
            i = keys[k]
            hits[k] = rows[i].resident or nursery_of[i]
            if not hits[k] and sizes[k] <= nursery:
                while nursery_used + sizes[k] > nursery:
                    if in_nursery[oldest]:
                        in_nursery[oldest], nursery_of[keys[oldest]] = False, 0
                        nursery_used -= sizes[oldest]
                    oldest += 1
                in_nursery[k], nursery_of[i] = True, 1
                nursery_used += sizes[k]
                peak = max(peak, head[0].used + nursery_used)
            for step in range(2):
                of_hit = (step == 0) == (hits_late >= settles_late)
                q = k - hits_late if of_hit else k - settles_late
                if q < 0 or hits[q] != of_hit:
                    continue
                arrive(head, rows, keys[q])
                if of_hit:
                    continue
                gone = not in_nursery[q]
                if in_nursery[q]:
                    in_nursery[q], nursery_of[keys[q]] = False, 0
                    nursery_used -= sizes[q]
                if rows[keys[q]].resident and not redecide:
                    continue
                settle(head, rows, keys[q], sizes[q], costs[q])
                if lost and gone and rows[keys[q]].resident:
                    release(head, rows, keys[q])
                peak = max(peak, head[0].used + nursery_used)
        return peak

    return loop


def replay_late(
    spec: Spec,
    capacity: int,
    trace: Trace,
    *,
    hits_late: int,
    settles_late: int,
    nursery: int = 0,
    lost: bool = False,
    redecide: bool = False,
    seed: int = 0,
) -> SharingOutcome:
    """Replay with one decider.

    hits_late, settles_late   requests until a hit, or a paid answer, is known to the decider
    nursery                   part of the capacity for undecided answers, in units
    lost, redecide            the alternative rules above
    """
    if min(hits_late, settles_late) < 0:
        raise InvalidInput(f"lateness must not be negative, not {hits_late} and {settles_late} requests")
    if not 0 <= nursery < capacity:
        raise InvalidInput(f"the nursery must be at least 0 and less than the capacity of {capacity}, not {nursery}")
    policy = spec.build_for(capacity - nursery, trace, seed=seed)
    kernels = type(policy)
    loop = late_loop(kernels.arrive_kernel, kernels.settle_kernel, kernels.release_kernel)
    hits, in_nursery = np.zeros(len(trace), np.bool_), np.zeros(len(trace), np.bool_)
    nursery_of = np.zeros(trace.ids, np.int64)
    columns = (trace.keys, trace.sizes, trace.costs, hits, in_nursery, nursery_of)
    peak = loop(policy.head, policy.rows, *columns, hits_late, settles_late, nursery, lost, redecide)
    policy.check()
    return SharingOutcome(hits, int(peak))
