"""Hazards and the Gittins index against direct computation, and on traffic whose rates are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache.estimate import hazard
from knapcache.estimate.hazard import AGE_EDGE, AGES, GAP_CLASSES
from knapcache.kernel import Records
from knapcache.policy.adaptive.policy import Adaptive


def state(ids: int = 1) -> tuple[Records, Records]:
    policy = Adaptive(1000, ids)
    return policy.head, policy.rows


def hazards(head: Records, c: int) -> list[float]:
    found = np.empty(AGES)
    hazard.hazards_of(head, c, found)
    return found.tolist()


def exposure(head: Records, c: int) -> list[float]:
    """Exposure by age, from the ends."""
    ends, ages = head["ends"][0, c], head["end_ages"][0, c]
    return [(AGE_EDGE[b + 1] - AGE_EDGE[b]) * ends[b + 1 :].sum() + ages[b] for b in range(AGES)]


def best_rate(rates: list[float], start: int) -> float:
    """The greatest P(return before s) / E[time until the return or s], over all ends s after bucket `start`."""
    best = survival = probability = time = 0.0
    survival = 1.0
    for b in range(start, AGES):
        width = AGE_EDGE[b + 1] - AGE_EDGE[b]
        returns = -math.expm1(-rates[b] * width)
        probability += survival * returns
        time += survival * returns / rates[b]
        survival *= 1.0 - returns
        best = max(best, probability / time)
    return best


@given(
    st.lists(st.tuples(st.integers(0, AGES - 2), st.integers(1, 50)), max_size=40),
    st.integers(0, hazard.CLASS_COUNT - 1),
)
def test_the_index_is_the_best_rate_over_all_times_to_give_up(returns: list[tuple[int, int]], c: int) -> None:
    head, _ = state()
    for b, times in returns:
        age = 1 + math.ceil(AGE_EDGE[b])
        for _ in range(times):
            hazard.expose(head, c, 0, age)
            hazard.count_return_at(head, c, age)
    hazard.compute_index(head, c)
    rates = hazards(head, c)
    for b in range(AGES):
        assert head["index"][0, c, b] == pytest.approx(best_rate(rates, b), rel=1e-9)


@given(st.integers(0, hazard.CLASS_COUNT - 1), st.sampled_from([0.0, 0.5, 1.0, 2.0]))
def test_negative_exposures_count_as_none(c: int, times: float) -> None:
    """Rounding errors make them, and snapshots may have them."""
    head, _ = state()
    expected = hazards(head, c)
    gap = c % GAP_CLASSES if c >= GAP_CLASSES else 0
    for b in range(AGES):
        r = hazard.RELATIVE_BUCKET[b] + AGES - 2 * gap
        prior = hazard.LATER_RETURN[1] * (1.0 + hazard.RELATIVE_EDGE[r])
        head["end_ages_by_count"][0, :, r] = -times * prior
        head["end_ages"][0, c, b] = -times * hazard.PRIOR_RETURNS / expected[b]
    assert hazards(head, c) == expected
    hazard.compute_index(head, c)
    assert np.isfinite(head["index"][0, c]).all()


def test_every_age_is_in_its_bucket() -> None:
    for age in (*range(3000), 2**19, 2**20 - 1, 2**20, 2**40):
        b = hazard.age_bucket(age)
        assert AGE_EDGE[b] <= age < AGE_EDGE[b + 1]


@given(st.integers(0, 2**19), st.integers(1, 2**19), st.integers(0, hazard.CLASS_COUNT - 1))
def test_exposure_is_divided_among_the_ages(a: int, b: int, c: int) -> None:
    head, _ = state()
    start, end = min(a, b), max(a, b)
    hazard.expose(head, c, start, end)
    expected = [max(0.0, min(end, AGE_EDGE[k + 1]) - max(start, AGE_EDGE[k])) for k in range(AGES)]
    assert np.allclose(exposure(head, c), expected)
    count, gap = divmod(c, GAP_CLASSES)
    unit = 2.0**gap if count else 1.0
    for row in (count, hazard.ALL_COUNTS) if count else (count,):
        ends, ages = head["ends_by_count"][0, row], head["end_ages_by_count"][0, row]
        widths = np.diff(hazard.RELATIVE_EDGE)
        relative = [widths[r] * ends[r + 1 :].sum() + ages[r] for r in range(hazard.RELATIVE_AGES)]
        edges = hazard.RELATIVE_EDGE
        expected = [
            max(0.0, min(end / unit, edges[r + 1]) - max(start / unit, edges[r])) for r in range(hazard.RELATIVE_AGES)
        ]
        assert np.allclose(relative, expected)


def test_equal_relative_ages_of_classes_with_different_gaps_share_a_total() -> None:
    head, _ = state()
    for gap in (2, 7):
        hazard.count_return_at(head, 3 * GAP_CLASSES + gap, 1 + 5 * 2**gap)
    assert sorted(head["returns_by_count"][0, 3].tolist())[-2:] == [0.0, 2.0]


def test_a_query_is_classified_by_its_size_then_by_count_and_gap() -> None:
    policy = Adaptive(10**9, 1)
    times = [1, 9, 17, 25]
    for t in range(1, 26):
        if t not in times:
            policy.head["t"] += 1
            continue
        if not policy.arrive(0):
            policy.settle(0, 300, 1.0)
        expected = int(math.log2(300)) if t == 1 else round(math.log2(1 + times.index(t))) * GAP_CLASSES + 3
        assert hazard.class_of(policy.rows, 0) == expected
    assert policy.rows["gap"][0] == pytest.approx(3.0)


def test_the_totals_are_halved_after_many_returns() -> None:
    head, _ = state()
    c = 2 * GAP_CLASSES + 4
    hazard.expose(head, c, 0, 64)
    head["returns_counted"] = hazard.MEMORY - 1.0
    hazard.count_return_at(head, c, 20)
    assert sum(exposure(head, c)) == 32.0
    assert head["returns"][0].sum() == head["returns_by_count"][0, 2].sum() == 0.5
    assert head["ends_by_count"][0, 2].sum() == head["ends_by_count"][0, hazard.ALL_COUNTS].sum() == 0.5
    assert head["returns_counted"][0] == 0.0


def learn(head: Records, c: int, gaps: list[int], end: int) -> None:
    """Count queries that return after these gaps, and one for each of them that does not until `end`."""
    for gap in gaps:
        hazard.expose(head, c, 0, gap)
        hazard.count_return_at(head, c, gap)
        if end:
            hazard.expose(head, c, 0, end)
    hazard.compute_index(head, c)


def test_the_index_of_random_returns_is_their_rate_at_every_age() -> None:
    head, _ = state()
    rng = np.random.default_rng(1)
    c = 4 * GAP_CLASSES + 6
    learn(head, c, rng.geometric(0.01, 20_000).tolist(), 0)
    index = head["index"][0, c]
    for b in range(14):  # ages 0 … 181; beyond, few have not returned
        assert index[b] == pytest.approx(0.01, rel=0.25)


def test_the_index_of_sessions_falls_when_they_pause() -> None:
    head, _ = state()
    rng = np.random.default_rng(2)
    c = 4 * GAP_CLASSES + 3
    learn(head, c, rng.geometric(0.1, 5000).tolist(), 5000)
    index = head["index"][0, c]
    assert index[0] > 0.03
    assert index[hazard.age_bucket(200)] < 1e-4


def test_the_index_of_a_cycle_rises_towards_its_end() -> None:
    head, _ = state()
    c = 4 * GAP_CLASSES + 9
    learn(head, c, [600] * 3000, 0)
    index = head["index"][0, c]
    assert index[0] == pytest.approx(1 / 600, rel=0.3)
    assert index[hazard.age_bucket(500)] > 2 * index[0]
