"""Federated deciders: every proxy decides, on statistics of the others that are late.

All proxies read one store. Every proxy has a decider of its own for an equal share of the capacity, in which the
answers are that it paid for. So the shares never sum to more than the capacity, and no two proxies decide on one
answer. One request is finished before the next one.

    request k     It is a hit if its answer is in any share. Otherwise it is a miss; its proxy pays for it.
    own           Its proxy counts it at once (arrive) and decides its own miss at once (settle).
    others        Every other decider counts it (arrive) right after request k + hits_late if it was a hit, and right
                  after request k + settles_late if it was a miss. The report of the older request comes first.

So each decider knows how often all proxies were asked for a key, but only the costs and sizes that it paid for itself.

    Invariant: an answer is in at most one share; holder[i] is that proxy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from knapcache.errors import CorruptState, InvalidInput
from knapcache.kernel import Records, borrowed, kernel, records
from knapcache.policy.base import Policy
from knapcache.policy.registry import Spec
from knapcache.sim.sharing.outcome import SharingOutcome, shares
from knapcache.sim.trace import Floats, Ints, Trace

NO_PROXY = -1


@functools.cache
def federated_loop(arrive: Callable[..., Any], settle: Callable[..., Any]) -> Callable[..., Any]:
    """Return the compiled loop around a policy's kernels."""

    @kernel
    def loop(
        heads: Records,
        all_rows: Records,
        keys: Ints,
        sizes: Ints,
        costs: Floats,
        proxies: Ints,
        hits: npt.NDArray[np.bool_],
        holder: Ints,
        hits_late: int,
        settles_late: int,
    ) -> int:
        """Fill `hits`; returns the largest total size. Decider p has head p and the p-th of equal parts of the rows."""
        heads, all_rows = borrowed(heads), borrowed(all_rows)
        count = len(heads)
        length = len(all_rows) // count
        peak, total = 0, 0
        for k in range(len(keys)):
            i, p = keys[k], proxies[k]
            hits[k] = holder[i] != NO_PROXY
            head, rows = heads[p : p + 1], all_rows[p * length : (p + 1) * length]
            arrive(head, rows, i)
            if not hits[k]:
                total -= head[0].used
                settle(head, rows, i, sizes[k], costs[k])
                total += head[0].used
                for v in range(head[0].evicted):
                    holder[rows[v].victim] = NO_PROXY
                if rows[i].resident:
                    holder[i] = p
                peak = max(peak, total)
            for step in range(2):
                of_hit = (step == 0) == (hits_late >= settles_late)
                q = k - hits_late if of_hit else k - settles_late
                if q < 0 or hits[q] != of_hit:
                    continue
                for d in range(count):
                    if d != proxies[q]:
                        arrive(heads[d : d + 1], all_rows[d * length : (d + 1) * length], keys[q])
        return peak

    return loop


def replay_federated(
    spec: Spec,
    capacity: int,
    trace: Trace,
    proxies: Ints,
    count: int,
    *,
    hits_late: int,
    settles_late: int,
    seed: int = 0,
) -> SharingOutcome:
    """Replay with a decider in each of `count` proxies. `proxies` has the proxy of each request."""
    if min(hits_late, settles_late) < 0:
        raise InvalidInput(f"lateness must not be negative, not {hits_late} and {settles_late} requests")
    deciders = [spec.build_for(share, trace, seed=seed) for share in shares(capacity, count)]
    heads, rows = stack(deciders)
    loop = federated_loop(type(deciders[0]).arrive_kernel, type(deciders[0]).settle_kernel)
    hits, holder = np.zeros(len(trace), np.bool_), np.full(trace.ids, NO_PROXY)
    columns = (trace.keys, trace.sizes, trace.costs, proxies, hits, holder)
    peak = loop(heads, rows, *columns, hits_late, settles_late)
    for p, decider in enumerate(deciders):
        decider.check()
        if decider.residents != frozenset(np.flatnonzero(holder == p).tolist()):
            raise CorruptState(f"the answers of decider {p} and those recorded for it differ")
    return SharingOutcome(hits, int(peak))


def stack(policies: list[Policy]) -> tuple[Records, Records]:
    """Move the states of equal policies into one array of headers and one of rows, for a compiled loop over them."""
    first, count = policies[0], len(policies)
    length = len(first.rows)
    heads, rows = records(first.head_fields, count), records(first.row_fields, count * length)
    for p, policy in enumerate(policies):
        heads[p : p + 1], rows[p * length : (p + 1) * length] = policy.head, policy.rows
        policy.head, policy.rows = heads[p : p + 1], rows[p * length : (p + 1) * length]
    return heads, rows
