"""Counters and estimates, with T, N and the range of costs configured or learned."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache.errors import InvalidInput
from knapcache.estimate.statistics import (
    STATISTICS_HEAD,
    STATISTICS_ROW,
    Confidence,
    arrival_estimate,
    cost_estimate,
    cost_spread,
    count_arrival,
    count_miss,
    empirical_value,
    value_estimate,
)
from knapcache.kernel import Records, records


def counted(confidence: Confidence, events: list[tuple[int, float | None]]) -> tuple[Records, Records]:
    """The arrays after arrivals of (id, cost of the miss or None for a hit)."""
    head, rows = records(STATISTICS_HEAD, 1), records(STATISTICS_ROW, 5)
    confidence.write(head)
    for i, cost in events:
        count_arrival(head, rows, i)
        if cost is not None:
            count_miss(head, rows, i, cost)
    return head, rows


# Eight rounds: 0 arrives five times and misses three times, 1 misses twice, 2 once.
EVENTS = [(0, 2.0), (1, 1.0), (0, 4.0), (0, None), (2, 5.0), (0, 3.0), (1, 1.0), (0, None)]


def test_counters() -> None:
    head, rows = counted(Confidence(), EVENTS)
    assert (head["t"][0], head["seen"][0]) == (8, 3)
    assert rows["arrivals"].tolist() == [5, 2, 1, 0, 0]
    assert rows["misses"].tolist() == [3, 2, 1, 0, 0]
    assert rows["paid"].tolist() == [9.0, 2.0, 5.0, 0.0, 0.0]


def test_known_horizon_and_range() -> None:
    """T = 1000, N = 10, costs in [1, 5], γ = 0.1, in the paper's formulas."""
    head, rows = counted(Confidence(gamma=0.1, T=1000, N=10, c1=1.0, c2=5.0), EVENTS)
    cost = 9.0 / 3 - 0.1 * 4.0 * math.sqrt(math.log(8 * 1000 * 10 * 1000) / (2 * 3))
    log = math.log(16 * 1000 * 10 * 1000)
    arrival = 5 / 8 - 0.1 * (math.sqrt(3 * (5 / 8) * (3 / 8) * log / 8) + 5 * log / 8)
    assert cost_estimate(head, rows, 0) == pytest.approx(cost)
    assert arrival_estimate(head, rows, 0) == pytest.approx(max(0.0, arrival))
    assert value_estimate(head, rows, 0) == pytest.approx(max(0.0, arrival) * cost)


def test_anytime_uses_the_rounds_and_queries_seen_so_far() -> None:
    """T is 8 rounds, N is 3 queries."""
    head, rows = counted(Confidence(gamma=0.05, c1=1.0, c2=5.0), EVENTS)
    cost = 9.0 / 3 - 0.05 * 4.0 * math.sqrt(math.log(8 * 8 * 3 * 8) / (2 * 3))
    log = math.log(16 * 8 * 3 * 8)
    arrival = 5 / 8 - 0.05 * (math.sqrt(3 * (5 / 8) * (3 / 8) * log / 8) + 5 * log / 8)
    assert arrival > 0.0
    assert cost_estimate(head, rows, 0) == pytest.approx(cost)
    assert arrival_estimate(head, rows, 0) == pytest.approx(arrival)


def test_without_a_range_the_pooled_standard_deviation_is_used() -> None:
    """Deviations from their query's mean: 2, 4, 3 give 1 + 1 + 0 and 1, 1 give 0, with 2 + 1 degrees of freedom."""
    head, rows = counted(Confidence(gamma=0.1, T=1000, N=10), EVENTS)
    sd = math.sqrt(2.0 / 3.0)
    assert cost_spread(head) == pytest.approx(2.0 * sd)
    log = math.log(8 * 1000 * 10 * 1000)
    assert cost_estimate(head, rows, 0) == pytest.approx(3.0 - 0.1 * 2.0 * sd * math.sqrt(log / (2 * 3)))
    # The least cost seen, 1, is the floor.
    assert cost_estimate(head, rows, 1) == 1.0


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0.0, 1e3)), min_size=1, max_size=60))
def test_pooled_deviation_is_the_standard_deviation_within_queries(paid: list[tuple[int, float]]) -> None:
    head, _ = counted(Confidence(), list(paid))
    costs = [[c for i, c in paid if i == q] for q in range(4)]
    squares = sum((c - statistics.fmean(own)) ** 2 for own in costs for c in own)
    freedom = sum(max(0, len(own) - 1) for own in costs)
    expected = 2.0 * math.sqrt(squares / freedom) if freedom else 0.0
    assert cost_spread(head) == pytest.approx(expected, rel=1e-6, abs=1e-5)


def test_a_configured_range_does_not_change() -> None:
    head, _ = counted(Confidence(c1=2.0, c2=3.0), EVENTS)
    assert (head["c1"][0], head["c2"][0]) == (2.0, 3.0)


def test_no_field_has_the_name_of_a_numpy_scalar_attribute() -> None:
    """In plain Python the attribute would hide the field."""
    assert [name for name, _ in STATISTICS_HEAD + STATISTICS_ROW if hasattr(np.record, name)] == []


@pytest.mark.parametrize(("clip", "least"), [(True, 1.0), (False, 0.0)])
def test_clip_is_at_c1_or_at_the_papers_zero(clip: bool, least: float) -> None:
    head, rows = counted(Confidence(T=20_000, N=100, c1=1.0, c2=5.0, clip=clip), EVENTS)
    assert [cost_estimate(head, rows, i) for i in range(3)] == [least] * 3


def test_gamma_applies_to_both_radii_unless_gamma_arrival_is_given() -> None:
    head, rows = counted(Confidence(gamma=1.0, gamma_arrival=0.0, c1=0.0, c2=5.0), EVENTS)
    assert arrival_estimate(head, rows, 0) == 5 / 8
    assert cost_estimate(head, rows, 0) < 3.0
    head, rows = counted(Confidence(gamma=1.0, c1=0.0, c2=5.0), EVENTS)
    assert arrival_estimate(head, rows, 0) == 0.0


def test_empirical_value_is_frequency_times_mean_cost() -> None:
    head, rows = counted(Confidence(), EVENTS)
    assert empirical_value(head, rows, 0) == pytest.approx(5 / 8 * 3.0)
    assert empirical_value(head, rows, 4) == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": -0.1}, "gamma must be between 0 and 1, not -0.1"),
        ({"gamma": 2.0}, "gamma must be between 0 and 1, not 2"),
        ({"gamma": math.nan}, "gamma must be between 0 and 1, not nan"),
        ({"gamma_arrival": 1.5}, "gamma_arrival must be between 0 and 1"),
        ({"T": 0}, "T must be at least 1, not 0"),
        ({"N": -3}, "N must be at least 1, not -3"),
        ({"c1": 1.0}, "given together"),
        ({"c2": 1.0}, "given together"),
        ({"c1": -1.0, "c2": 1.0}, "0 ≤ c1 ≤ c2"),
        ({"c1": 2.0, "c2": 1.0}, "c1=2.0, c2=1.0"),
        ({"c1": math.nan, "c2": 1.0}, "0 ≤ c1 ≤ c2"),
        ({"c1": 1.0, "c2": math.inf}, "finite"),
    ],
)
def test_bad_settings(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Confidence(**options)
