"""The kernels decide as the plain implementations in tests/support (reference_*.py), request by request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knapcache.errors import InvalidInput
from knapcache.estimate.statistics import Confidence
from knapcache.lab.replay import replay
from knapcache.lab.trace import Trace
from knapcache.policy import registry
from knapcache.policy.base import Policy
from tests.support import reference_classics as plain_classics
from tests.support import reference_policies as plain

IDS = 30


def requests(seed: int, length: int = 600, *, equal: bool = False) -> list[plain.Request]:
    """Zipf traffic. Costs are continuous, so that no two densities are equal and ties do not matter."""
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
    ("name", "reference"),
    [
        ("lru", plain.lru),
        ("fifo", plain.fifo),
        ("sieve", plain.sieve),
        ("lfu", plain.lfu),
        ("lfu-da", plain.lfu_da),
        ("gds", plain.gds),
        ("gdsf", plain.gdsf),
        ("gdsf-cost", plain.gdsf_cost),
        ("gdsf-cost-history", plain.gdsf_cost_history),
        ("gdsf-cost-trial", plain.gdsf_cost_trial),
    ],
)
@given(seed=st.integers(0, 10_000), capacity=st.integers(1, 120))
@settings(max_examples=25, deadline=None)
def test_classic_policies(
    name: str, reference: Callable[[Sequence[plain.Request], int], list[bool]], seed: int, capacity: int
) -> None:
    trace = requests(seed)
    assert hits(registry.find(name).build(capacity, IDS), trace) == reference(trace, capacity)


@given(seed=st.integers(0, 10_000), capacity=st.integers(1, 25))
@settings(max_examples=25, deadline=None)
def test_arc_counts_pages_as_the_paper_does(seed: int, capacity: int) -> None:
    trace = requests(seed, equal=True)
    assert hits(registry.find("arc").build(capacity, IDS), trace) == plain.arc(trace, capacity)


@given(
    seed=st.integers(0, 10_000),
    capacity=st.integers(1, 120),
    half_life=st.sampled_from([1.5, 30.0, 4000.0]),
    beats_sum=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_horizon(seed: int, capacity: int, half_life: float, beats_sum: bool) -> None:
    trace = requests(seed, 300)
    policy = registry.find("horizon").build(capacity, IDS, half_life=half_life, beats_sum=beats_sum)
    assert hits(policy, trace) == plain.horizon(trace, capacity, half_life, beats_sum=beats_sum)


def test_a_short_horizon_is_lru() -> None:
    trace = requests(1)
    assert hits(registry.find("horizon").build(60, IDS, half_life=0.02), trace) == plain.lru(trace, 60)


@given(seed=st.integers(0, 10_000), capacity=st.integers(1, 120), precision=st.sampled_from([1, 5, 10]))
@settings(max_examples=25, deadline=None)
def test_camp(seed: int, capacity: int, precision: int) -> None:
    trace = requests(seed)
    policy = registry.find("camp").build(capacity, IDS, precision=precision)
    assert hits(policy, trace) == plain_classics.camp(trace, capacity, precision)


@given(seed=st.integers(0, 10_000), capacity=st.integers(1, 120), window=st.sampled_from([0.01, 0.2, 0.7]))
@settings(max_examples=25, deadline=None)
def test_w_tinylfu(seed: int, capacity: int, window: float) -> None:
    trace = requests(seed)
    policy = registry.find("w-tinylfu").build(capacity, IDS, window=window)
    assert hits(policy, trace) == plain_classics.w_tinylfu(trace, capacity, IDS, window)


@given(
    seed=st.integers(0, 10_000),
    capacity=st.integers(1, 120),
    samples=st.sampled_from([1, 4, 32]),
    period=st.sampled_from([100, 1000]),
)
@settings(max_examples=12, deadline=None)
def test_lhd(seed: int, capacity: int, samples: int, period: int) -> None:
    trace = requests(seed)
    policy = registry.find("lhd").build(capacity, IDS, samples=samples, period=period, seed=seed)
    assert hits(policy, trace) == plain_classics.lhd(trace, capacity, samples, period, 0.9, seed)


@given(seed=st.integers(0, 10_000), capacity=st.integers(1, 120))
@settings(max_examples=15, deadline=None)
def test_belady(seed: int, capacity: int) -> None:
    trace = requests(seed, 300)
    keys, sizes, costs = (np.array(column) for column in zip(*trace, strict=True))
    policy = registry.find("belady").build_for(capacity, Trace(keys, sizes, costs, IDS))
    assert hits(policy, trace) == plain.belady(trace, capacity)


@given(
    trace=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(0, 9).map(float)), max_size=12),
    capacity=st.integers(1, 9),
)
@settings(max_examples=80, deadline=None)
def test_belady_is_not_below_the_optimum_and_the_optimum_not_below_pfoo(
    trace: list[plain.Request], capacity: int
) -> None:
    keys, sizes, costs = (
        np.array([r[0] for r in trace], int),
        np.array([r[1] for r in trace], int),
        np.array([r[2] for r in trace], float),
    )
    best = plain.optimum(trace, capacity)
    assert registry.BOUNDS["pfoo"].miss_cost(capacity, Trace(keys, sizes, costs, IDS)) <= best + 1e-9
    policy = registry.find("belady").build_for(capacity, Trace(keys, sizes, costs, IDS))
    assert replay(policy, Trace(keys, sizes, costs, IDS)).miss_cost >= best - 1e-9


def test_pfoo_by_hand() -> None:
    """Capacity 1 over three steps: the interval of key 1 uses one step and saves 6; two thirds of key 0's fit."""
    keys, sizes, costs = np.array([0, 1, 1, 0]), np.array([1, 1, 1, 1]), np.array([1.0, 1.0, 6.0, 4.0])
    assert registry.BOUNDS["pfoo"].miss_cost(1, Trace(keys, sizes, costs, IDS)) == pytest.approx(
        12.0 - 6.0 - 4.0 * 2 / 3
    )
    assert registry.BOUNDS["pfoo"].miss_cost(2, Trace(keys, sizes, costs, IDS)) == 2.0
    assert registry.BOUNDS["pfoo"].miss_cost(2, Trace(keys, 9 * sizes, costs, IDS)) == 12.0
    with pytest.raises(InvalidInput, match="bound, not a policy"):
        registry.find("pfoo")


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


@pytest.mark.parametrize("several", [False, True])
@given(seed=st.integers(0, 10_000), capacity=st.integers(5, 120), gamma=st.sampled_from([0.0, 0.01, 0.1, 1.0]))
@settings(max_examples=15, deadline=None)
def test_berkeley_with_a_changing_radius(several: bool, seed: int, capacity: int, gamma: float) -> None:
    """Without configured ranges every density changes in every round, and the bounds in the heap expire."""
    trace = requests(seed, 300)
    policy = registry.find("berkeley-multi" if several else "berkeley").build(
        capacity, IDS, confidence=Confidence(gamma=gamma)
    )
    assert hits(policy, trace) == plain.berkeley(trace, capacity, plain.Anytime(gamma), several=several)


@given(seed=st.integers(0, 10_000), capacity=st.integers(1, 20))
@settings(max_examples=25, deadline=None)
def test_both_berkeley_rules_agree_on_equal_sizes(seed: int, capacity: int) -> None:
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
    """The repaired Algorithm 1 against sets and a textbook knapsack; γ is too small to clip costs to a tie."""
    trace = requests(seed)
    ours, theirs = confidence(gamma, 0.0, len(trace))
    policy = registry.find("vsocb").build(capacity, IDS, alpha=alpha, confidence=ours)
    expected, calls = plain.vsocb(trace, capacity, theirs, alpha)
    assert hits(policy, trace) == expected
    assert policy.oracle_calls + int(policy.head["calls_skipped"][0]) == calls
