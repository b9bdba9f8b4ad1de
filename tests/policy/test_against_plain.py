"""The kernels decide as the plain judges of plain.py do, request by request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knapcache.estimate.statistics import Confidence
from knapcache.policy import registry
from knapcache.policy.contract import Policy
from knapcache.sim.replay import replay
from knapcache.sim.trace import Trace

from . import plain

IDS = 30


def requests(seed: int, length: int = 600, *, equal: bool = False) -> list[plain.Request]:
    """Zipf traffic. Costs are continuous, so that no two densities are equal and no judge has to guess a tie."""
    rng = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, IDS + 1)
    keys = rng.choice(IDS, length, p=weights / weights.sum())
    sizes = np.ones(IDS, int) if equal else rng.integers(1, 11, IDS)
    means = rng.uniform(1.0, 2.0, IDS)
    return [(int(k), int(sizes[k]), float(means[k] * rng.uniform(0.5, 1.5))) for k in keys]


def hits(policy: Policy, trace: Sequence[plain.Request]) -> list[bool]:
    keys, sizes, costs = (np.array(column) for column in zip(*trace, strict=True))
    run = replay(policy, Trace(keys, sizes, costs, IDS))
    policy.check()
    return run.hits.tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "judge"), [("lru", plain.lru), ("lfu", plain.lfu), ("gdsf", plain.gdsf), ("gdsf-cost", plain.gdsf_cost)]
)
@given(seed=st.integers(0, 10_000), capacity=st.integers(1, 120))
@settings(max_examples=25, deadline=None)
def test_classics(
    name: str, judge: Callable[[Sequence[plain.Request], int], list[bool]], seed: int, capacity: int
) -> None:
    trace = requests(seed)
    assert hits(registry.find(name).build(capacity, IDS), trace) == judge(trace, capacity)


def confidence(gamma: float, gamma_arrival: float, T: int) -> tuple[Confidence, plain.Estimates]:
    return (
        Confidence(gamma=gamma, gamma_arrival=gamma_arrival, T=T, N=IDS, c1=0.1, c2=3.0),
        plain.Estimates(T, IDS, 0.1, 3.0, gamma, gamma_arrival),
    )


@pytest.mark.parametrize("several", [False, True])
@given(seed=st.integers(0, 10_000), capacity=st.integers(5, 120), gamma=st.sampled_from([0.0, 0.05, 0.2, 1.0]))
@settings(max_examples=25, deadline=None)
def test_berkeley(several: bool, seed: int, capacity: int, gamma: float) -> None:
    trace = requests(seed)
    ours, theirs = confidence(gamma, 0.0, len(trace))
    policy = registry.find("berkeley-multi" if several else "berkeley").build(capacity, IDS, confidence=ours)
    assert hits(policy, trace) == plain.berkeley(trace, capacity, theirs, several=several)


@given(seed=st.integers(0, 10_000), capacity=st.integers(1, 20))
@settings(max_examples=25, deadline=None)
def test_with_equal_sizes_both_berkeley_rules_are_one(seed: int, capacity: int) -> None:
    """S = 1: keep the newcomer if it is worth more than the least valuable resident, which then goes."""
    trace = requests(seed, equal=True)
    one, several = (hits(registry.find(name).build(capacity, IDS), trace) for name in ("berkeley", "berkeley-multi"))
    assert one == several


@given(
    seed=st.integers(0, 10_000),
    capacity=st.integers(5, 120),
    alpha=st.sampled_from([0.01, 0.1, 0.5, 1.0]),
    gamma=st.sampled_from([0.0, 0.01, 0.03]),
)
@settings(max_examples=60, deadline=None)
def test_vsocb(seed: int, capacity: int, alpha: float, gamma: float) -> None:
    """The repaired Algorithm 1, against sets and the textbook knapsack; γ so small that no cost is clipped to a tie."""
    trace = requests(seed)
    ours, theirs = confidence(gamma, 0.0, len(trace))
    policy = registry.find("vsocb").build(capacity, IDS, alpha=alpha, confidence=ours)
    expected, calls = plain.vsocb(trace, capacity, theirs, alpha)
    assert hits(policy, trace) == expected
    assert policy.oracle_calls + int(policy.head["calls_skipped"][0]) == calls
