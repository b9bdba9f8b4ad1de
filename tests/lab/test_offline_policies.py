"""Policies that read the whole trace: the best fixed set against all subsets, and the paper's comparator."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knapcache.estimate.statistics import Confidence
from knapcache.lab.replay import replay
from knapcache.lab.synthetic import Workload
from knapcache.lab.trace import Trace
from knapcache.policy.offline.comparator import Offline
from knapcache.policy.offline.static_optimal import Static
from tests.support.examples import examples

IDS = 7


@st.composite
def tiny_traces(draw: st.DrawFn) -> tuple[Trace, list[int], int]:
    """Draw a trace, sizes by id and a capacity. Costs are integers, so sums are exact."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=IDS, max_size=IDS))
    requests = draw(st.lists(st.tuples(st.integers(0, IDS - 1), st.integers(0, 9)), min_size=1, max_size=40))
    keys, costs = np.array([k for k, _ in requests]), np.array([float(c) for _, c in requests])
    return Trace(keys, np.array(sizes)[keys], costs, IDS), sizes, draw(st.integers(1, 25))


def cost_with(held: tuple[int, ...], trace: Trace) -> float:
    """Return the miss cost if the answers of `held` are cached from their first request on."""
    cached: set[int] = set()
    total = 0.0
    for key, cost in zip(trace.keys.tolist(), trace.costs.tolist(), strict=True):
        if key not in cached:
            total += cost
            if key in held:
                cached.add(key)
    return total


@given(tiny_traces())
@settings(max_examples=examples(60, 150), deadline=None)
def test_static_pays_what_the_best_of_all_subsets_pays(drawn: tuple[Trace, list[int], int]) -> None:
    trace, sizes, capacity = drawn
    policy = Static.for_trace(capacity, trace)
    run = replay(policy, trace)
    policy.check()
    best = min(
        cost_with(held, trace)
        for n in range(IDS + 1)
        for held in combinations(range(IDS), n)
        if sum(sizes[q] for q in held) <= capacity
    )
    assert run.miss_cost == pytest.approx(best, abs=1e-9)
    assert run.peak <= capacity


@pytest.mark.parametrize("gamma", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("capacity", [1, 13, 60, 10_000])
def test_offline_calls_the_oracle_every_round_and_never_overflows(capacity: int, gamma: float) -> None:
    """Sizes are 1 … 10: at capacity 1 most answers do not fit, and these cause no Oracle call."""
    workload = Workload(queries=30, rounds=400)
    _, trace = workload.draw(np.random.default_rng(4))
    policy = Offline(capacity, trace.ids, confidence=Confidence(gamma=gamma, T=400, N=30, c1=1.0, c2=2.0))
    run = replay(policy, trace)
    policy.check()
    assert run.peak <= capacity
    assert run.oracle_calls == (trace.sizes <= capacity).sum()


def test_offline_replaces_answers_for_free() -> None:
    """Sizes 2, 1, 1 in a cache of 2: answer 1 is admitted again when 2 is requested, without a request for 1."""
    policy = Offline(2, 3)
    for i, size, cost in ((0, 2, 5.0), (1, 1, 3.0), (2, 1, 1.0)):
        policy.arrive(i)
        policy.settle(i, size, cost)
    assert policy.residents == {0}  # 5 > 3 + 1
    assert not policy.arrive(2)
    policy.settle(2, 1, 2.0)
    assert policy.residents == {1, 2}  # 5 < 3 + 2·1.5
    policy.check()
