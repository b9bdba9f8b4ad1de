"""Keys are hashed to deciders whose shares of the capacity follow one price.

The value of a key is its discounted number of requests times its last cost, and its density is value / size. Take the
keys in order of density until the capacity is full. The density that is reached is the price of a unit of capacity, as
in a knapsack. At equal prices, every decider gets the total size of its own keys above the price. Every REBALANCE_EVERY
requests, each share moves by REACTION of the way to that size.

A decider that shrinks forgets its answers of least density until the rest fits. All that shrink do so before others
grow, so the shares never sum to more than the capacity. Statistics are instant, and requests are counted apart from the
policy, because policies count them in different ways.
"""

from __future__ import annotations

import numpy as np

from knapcache.policy.base import Policy
from knapcache.policy.registry import Spec
from knapcache.sim.replay import replay
from knapcache.sim.sharing.outcome import SharingOutcome, shares
from knapcache.sim.trace import Floats, Ints, Trace

REBALANCE_EVERY = 1000
REACTION = 0.25
DECAY = 0.95
"""Requests count this much less after each rebalancing: half as much after 13,500 requests."""


def replay_rebalanced(
    spec: Spec, capacity: int, trace: Trace, decider_of: Ints, count: int, *, seed: int = 0
) -> SharingOutcome:
    """Replay with `count` deciders. `decider_of` has the decider of each key. The policy must be resizable."""
    deciders = [spec.build_for(share, trace, seed=seed) for share in shares(capacity, count)]
    hits = np.zeros(len(trace), np.bool_)
    requests, values, sizes = np.zeros(trace.ids), np.zeros(trace.ids), np.ones(trace.ids, np.int64)
    peak = 0
    for start in range(0, len(trace), REBALANCE_EVERY):
        piece = slice(start, start + REBALANCE_EVERY)
        keys, parts, stored = trace.keys[piece], decider_of[trace.keys[piece]], 0
        for d, decider in enumerate(deciders):
            mine = start + np.flatnonzero(parts == d)
            run = replay(decider, Trace(trace.keys[mine], trace.sizes[mine], trace.costs[mine], trace.ids))
            hits[mine] = run.hits
            stored += run.peak
        peak = max(peak, stored)
        requests = DECAY * requests + np.bincount(keys, minlength=trace.ids)
        values[keys], sizes[keys] = trace.costs[piece], trace.sizes[piece]
        densities = requests * values / sizes
        targets = shares_at_one_price(densities, sizes, decider_of, capacity, count)
        if count > 1:
            rebalance(deciders, targets, densities)
    for decider in deciders:
        decider.check()
    return SharingOutcome(hits, peak)


def shares_at_one_price(densities: Floats, sizes: Ints, decider_of: Ints, capacity: int, count: int) -> Floats:
    """Return the size of each decider's keys above the price. What is left of the capacity is divided equally."""
    order = np.argsort(-densities, kind="stable")
    above = order[(np.cumsum(sizes[order], dtype=np.float64) <= capacity) & (densities[order] > 0.0)]
    taken = np.bincount(decider_of[above], weights=sizes[above], minlength=count)
    return np.asarray(taken + (capacity - taken.sum()) / count)


def rebalance(deciders: list[Policy], targets: Floats, densities: Floats) -> None:
    """Move every share by REACTION of the way to its target. Shares stay whole numbers of at least 1."""
    now = np.array([decider.capacity for decider in deciders])
    wanted = np.maximum(1, np.floor(now + REACTION * (targets - now))).astype(np.int64)
    for decider, share in zip(deciders, wanted.tolist(), strict=True):
        if share < decider.capacity:
            shrink(decider, share, densities)
    free = int(now.sum()) - sum(decider.capacity for decider in deciders)
    for decider, share in zip(deciders, wanted.tolist(), strict=True):
        growth = min(free, share - decider.capacity)
        if growth > 0:
            decider.resize(decider.capacity + growth)
            free -= growth
    deciders[0].resize(deciders[0].capacity + free)  # the remainder of rounding


def shrink(policy: Policy, capacity: int, densities: Floats) -> None:
    """Lower the capacity of a policy; it forgets its answers of least density until the rest fits."""
    residents = np.flatnonzero(policy.rows["resident"])
    for i in residents[np.argsort(densities[residents], kind="stable")].tolist():
        if policy.used <= capacity:
            break
        policy.forget(i)
    policy.resize(capacity)
