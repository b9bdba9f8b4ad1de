"""Designs that divide the requests: every part has a decider of its own, with a share of the capacity.

A part is a proxy with its own cache, or a decider to which keys are hashed. Parts do not affect each other, so each is
a plain replay of its own requests. Statistics are instant: the decider sees every request of its part.
"""

from __future__ import annotations

import numpy as np

from knapcache.policy.registry import Spec
from knapcache.sim.replay import replay
from knapcache.sim.sharing.outcome import SharingOutcome, shares
from knapcache.sim.trace import Ints, Trace


def replay_parts(spec: Spec, capacity: int, trace: Trace, parts: Ints, count: int, *, seed: int = 0) -> SharingOutcome:
    """Replay each of `count` parts in its share of the capacity. `parts` has the part of each request."""
    hits = np.zeros(len(trace), np.bool_)
    peak = 0
    for part, share in enumerate(shares(capacity, count)):
        mine = parts == part
        if not mine.any():
            continue
        requests = Trace(trace.keys[mine], trace.sizes[mine], trace.costs[mine], trace.ids)
        policy = spec.build_for(share, requests, seed=seed)
        run = replay(policy, requests)
        policy.check()
        hits[mine] = run.hits
        peak += run.peak
    return SharingOutcome(hits, peak)
