"""The simulator and the live cache take the same decisions on the same requests."""

from __future__ import annotations

import numpy as np
import pytest

from knapcache import Cache, Reply
from knapcache.kernel import COMPILED
from knapcache.lab.replay import replay
from knapcache.lab.trace import Trace
from knapcache.policy import registry
from knapcache.store.memory import OVERHEAD, MemoryStore
from tests.support.caches import CHAT, request_of

REQUESTS = 6000 if COMPILED else 600
CAPACITY = 200_000


def trace_of(seed: int) -> Trace:
    """Return a trace whose popular keys move; sizes and costs depend on the key, and keys are in order of
    appearance.
    """
    rng = np.random.default_rng(seed)
    raw = rng.zipf(1.2, REQUESTS) % 400 + 40 * (np.arange(REQUESTS) // (REQUESTS // 4))
    _, first, inverse = np.unique(raw, return_index=True, return_inverse=True)
    keys = np.argsort(np.argsort(first))[inverse]
    ids = int(keys.max()) + 1
    sizes = rng.integers(OVERHEAD + 400, OVERHEAD + 9000, ids)
    costs = np.round(rng.lognormal(0.0, 1.0, ids), 6)
    return Trace(keys, sizes[keys], costs[keys], ids)


@pytest.mark.parametrize("policy", ["adaptive", "lru", "gdsf-cost"])
def test_same_hits(policy: str) -> None:
    trace = trace_of(1)
    capacity = MemoryStore(CAPACITY).capacity
    run = replay(registry.find(policy).build_for(capacity, trace), trace)
    lru = replay(registry.find("lru").build_for(capacity, trace), trace)
    with Cache(CAPACITY, cost="seconds", policy=policy, shadows=("lru",)) as cache:
        hits = []
        for key, size, cost in zip(trace.keys.tolist(), trace.sizes.tolist(), trace.costs.tolist(), strict=True):
            lookup = cache._internal.lookup(CHAT, request_of(key))
            hits.append(lookup.hit is not None)
            if lookup.hit is None:
                assert lookup.request
                content = len(lookup.request.key.canonical) + len("m") + len("{}")
                cache._internal.settle(lookup, Reply(b"x" * (size - OVERHEAD - content), cost=cost))
        stats = cache.stats()
        assert hits == run.hits.tolist()
        assert 0.1 < np.mean(hits) < 0.95
        assert stats.cost_spent == pytest.approx(run.miss_cost)
        assert stats.shadows["lru"] == pytest.approx(lru.miss_cost)
        assert stats.shadows["none"] == pytest.approx(trace.costs.sum())
        assert stats.oracle_calls == run.oracle_calls
        cache.check()
