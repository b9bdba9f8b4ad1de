"""How several proxies share a cache of one capacity: three designs, simulated with the policy code of the live cache.

    own      every proxy has its own cache of 1/n of the capacity and sees its own requests only
    hashed   keys are hashed to n deciders, each with 1/n of the capacity
    one      one decider for a store that all proxies read; it learns of requests late

The parts of `own` and `hashed` do not affect each other, so each is a plain replay of its own requests. Requests are
spread over proxies, and keys over deciders, at random, with a seed.

One decider. Time is counted in requests of all proxies, and one request is finished before the next one.

    request k     It is a hit if its answer is in the store: admitted by the decider, or in the nursery. Otherwise it is
                  a miss, which is paid for.
    hit of k      The decider counts it right after request k + hits_late: arrive.
    miss of k     The decider counts and decides it right after request k + settles_late: arrive, settle. The decision
                  takes effect at once. If the key was admitted meanwhile, the request is counted and nothing decided.
    same moment   The report of the older request comes first.

The nursery is a part of the capacity in which the answer of a miss is readable until it is decided. The decider divides
only the rest. A newcomer displaces the oldest answers; one that is larger than the nursery never enters it. The proxy
that paid for such an answer keeps it in memory until it is decided. Until then its key misses, and is paid for, again.

Reports have constant lateness, so the queue of reports is the trace itself. With lateness 0 and without a nursery, the
calls of the policy are those of a plain replay. The number of proxies does not matter.

    Invariant: size of admitted answers + size of the nursery's answers ≤ capacity.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from knapcache.errors import InvalidInput
from knapcache.kernel import Records, borrowed, kernel
from knapcache.lab.replay import replay
from knapcache.lab.trace import Floats, Ints, Trace
from knapcache.policy import registry
from knapcache.policy.registry import Spec

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class ClusterCell:
    """One simulation. `shared` is the reference: one cache whose policy sees every request at once."""

    trace: str
    policy: str
    capacity: int
    capacity_text: str
    design: Literal["shared", "own", "hashed", "one"]
    proxies: int | None = None
    late: tuple[int, int] = (0, 0)
    """Requests until the decider knows of a hit, and of a paid answer."""
    nursery: float = 0.0
    """Share of the capacity for undecided answers, in %."""
    repeat: int = 0
    seed: int = 0


def miss_cost(traces: Mapping[str, Trace], cell: ClusterCell) -> float:
    """Return the cost of the misses in one simulation."""
    trace, spec = traces[cell.trace], registry.find(cell.policy)
    if cell.design == "one":
        nursery = int(cell.nursery * cell.capacity / 100)
        hits, _ = replay_late(spec, cell.capacity, trace, *cell.late, nursery=nursery, seed=cell.seed)
        return float(trace.costs[~hits].sum())
    count = cell.proxies or 1
    draw = np.random.default_rng([cell.seed, int(cell.design == "hashed"), cell.repeat])
    if cell.design == "hashed":
        parts = draw.integers(count, size=trace.ids)[trace.keys]
    else:
        parts = draw.integers(count, size=len(trace))
    return float(trace.costs[~replay_parts(spec, cell.capacity, trace, parts, count, seed=cell.seed)].sum())


def replay_parts(spec: Spec, capacity: int, trace: Trace, parts: Ints, count: int, *, seed: int = 0) -> Flags:
    """Return the hits if each of `count` parts has its share of the capacity. `parts` has the part of each request."""
    if capacity < count:
        raise InvalidInput(f"a capacity of {capacity} cannot be divided among {count} proxies")
    hits = np.zeros(len(trace), np.bool_)
    for part in range(count):
        mine = parts == part
        if mine.any():
            requests = Trace(trace.keys[mine], trace.sizes[mine], trace.costs[mine], trace.ids)
            share = capacity // count + (part < capacity % count)  # the first ones get what is left over
            policy = spec.build_for(share, requests, seed=seed)
            hits[mine] = replay(policy, requests).hits
            policy.check()
    return hits


@functools.cache
def late_loop(arrive: Callable[..., Any], settle: Callable[..., Any]) -> Callable[..., Any]:
    """Return the compiled loop around a policy's kernels."""

    @kernel
    def loop(
        head: Records,
        rows: Records,
        keys: Ints,
        sizes: Ints,
        costs: Floats,
        hits: Flags,
        in_nursery: Flags,
        nursery_of: Ints,
        hits_late: int,
        settles_late: int,
        nursery: int,
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
                if in_nursery[q]:
                    in_nursery[q], nursery_of[keys[q]] = False, 0
                    nursery_used -= sizes[q]
                if not rows[keys[q]].resident:
                    settle(head, rows, keys[q], sizes[q], costs[q])
                    peak = max(peak, head[0].used + nursery_used)
        return peak

    return loop


def replay_late(
    spec: Spec, capacity: int, trace: Trace, hits_late: int, settles_late: int, *, nursery: int = 0, seed: int = 0
) -> tuple[Flags, int]:
    """Return the hits and the largest total size with one decider. `nursery` is in units of the capacity."""
    policy = spec.build_for(capacity - nursery, trace, seed=seed)
    loop = late_loop(type(policy).arrive_kernel, type(policy).settle_kernel)
    hits, in_nursery = np.zeros(len(trace), np.bool_), np.zeros(len(trace), np.bool_)
    columns = (trace.keys, trace.sizes, trace.costs, hits, in_nursery, np.zeros(trace.ids, np.int64))
    peak = loop(policy.head, policy.rows, *columns, hits_late, settles_late, nursery)
    policy.check()
    return hits, int(peak)
