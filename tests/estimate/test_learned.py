"""Estimates of requests, returns and costs, compared with the formulas and NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache.estimate.costs import COSTS_HEAD, COSTS_ROW, cost_of, count_cost, typical_cost
from knapcache.estimate.discount import DISCOUNT_ROW, HALF_LIVES, count_request
from knapcache.estimate.return_probability import (
    PRIOR,
    RESCALE_ABOVE,
    RETURN_HEAD,
    RETURN_ROW,
    WINDOW,
    count_return,
    count_seen,
    return_probability_of,
)
from knapcache.kernel import Records, records

ROW = [("entry_size", "i8"), *COSTS_ROW, *DISCOUNT_ROW, *RETURN_ROW]


def state(ids: int) -> tuple[Records, Records]:
    return records([*COSTS_HEAD, *RETURN_HEAD], 1), records(ROW, ids)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=60))
def test_discounted_counts_match_their_definition(gaps: list[int]) -> None:
    _, rows = state(1)
    times = np.cumsum(gaps)
    for t in times.tolist():
        count_request(rows, 0, t)
    for k, half_life in enumerate(HALF_LIVES):
        expected = (2.0 ** (-(times[-1] - times) / half_life)).sum()
        assert rows["recent"][0, k] == pytest.approx(expected, rel=1e-4)


def test_equal_costs_are_not_shrunk() -> None:
    head, rows = state(50)
    rng = np.random.default_rng(1)
    for _ in range(3):
        for i in range(50):
            count_cost(head, rows, i, int(rng.integers(1, 100)), float(10 ** (i % 3)))
    assert head["shrinkage"][0] == 0.0
    assert cost_of(head, rows, 1) == 10.0


def test_noisy_costs_are_shrunk_to_the_typical_cost_of_their_size() -> None:
    """Costs are 1 + size/10 times a log-normal factor, so one miss is a poor estimate."""
    head, rows = state(2000)
    rng = np.random.default_rng(2)
    sizes = rng.integers(1, 200, 2000)
    truth = 1 + sizes / 10
    paid = truth[:, None] * rng.lognormal(-0.5, 1.0, (2000, 2))
    for k in range(2):
        for i in range(2000):
            count_cost(head, rows, i, int(sizes[i]), float(paid[i, k]))
    ours = np.array([cost_of(head, rows, i) for i in range(2000)])
    assert np.abs(ours - truth).mean() < 0.25 * np.abs(paid.mean(1) - truth).mean()


def test_typical_cost_is_least_squares() -> None:
    head, rows = state(300)
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 1000, 300)
    costs = 3 + 0.02 * sizes + rng.uniform(0, 5, 300)
    for i in range(300):
        count_cost(head, rows, i, int(sizes[i]), float(costs[i]))
    slope, offset = np.polyfit(sizes, costs, 1)
    assert typical_cost(head, 500) == pytest.approx(offset + 500 * slope, rel=1e-6)


@pytest.mark.parametrize("size", [1, 7, 2**40])
def test_typical_cost_with_equal_sizes_is_the_mean(size: int) -> None:
    head, rows = state(20)
    for i in range(20):
        count_cost(head, rows, i, size, 1.0 + i)
    assert typical_cost(head, size) == pytest.approx(10.5)


def test_zero_costs_give_a_zero_estimate() -> None:
    head, rows = state(3)
    for i in (0, 1, 0, 2):
        count_cost(head, rows, i, 5, 0.0)
    assert cost_of(head, rows, 0) == 0.0


def test_sizes_that_never_return_have_a_low_return_probability() -> None:
    head, rows = state(2001)
    for i in range(2000):
        count_return(head, rows, i)
        count_seen(head, rows, i, 100 if i % 2 else 5000)
        count_cost(head, rows, i, 100 if i % 2 else 5000, 1.0)
        if i % 4 == 1:  # half of the small ones return, and half of those return again
            count_return(head, rows, i)
        if i % 8 == 1:
            count_return(head, rows, i)
    probability = {}
    for size in (100, 5000):
        rows[2000:] = np.zeros(1, rows.dtype)
        count_return(head, rows, 2000)
        count_seen(head, rows, 2000, size)
        probability[size] = return_probability_of(head, rows, 2000)
    assert probability[100] == pytest.approx(1.0, abs=0.05)
    assert probability[5000] < 0.05
    count_return(head, rows, 2000)
    assert return_probability_of(head, rows, 2000) == 1.0


def test_counts_of_returns_decay_with_the_queries_and_are_rescaled() -> None:
    head, rows = state(3001)
    head["query_weight"] = 0.99 * RESCALE_ABOVE
    rng = np.random.default_rng(4)
    seen, returned, returned_twice = np.zeros(8), np.zeros(8), 0.0
    for i in range(3000):
        size_class = int(rng.integers(8))
        count_return(head, rows, i)
        count_seen(head, rows, i, 2**size_class)
        count_cost(head, rows, i, 2**size_class, 1.0)
        decay = WINDOW / (WINDOW + 1.0)
        seen, returned, returned_twice = seen * decay, returned * decay, returned_twice * decay
        seen[size_class] += 1.0
        if rng.random() < 0.1 * size_class:
            count_return(head, rows, i)
            returned[size_class] += 1.0
            if rng.random() < 0.5:
                count_return(head, rows, i)
                returned_twice += 1.0
    assert head["query_weight"][0] < 2.0
    share = returned.sum() / seen.sum()
    for size_class in range(8):
        rows["requests"][3000], rows["size_class"][3000] = 1, size_class
        expected = (returned[size_class] + PRIOR * share) / (seen[size_class] + PRIOR)
        expected /= max(share, returned_twice / returned.sum())
        assert return_probability_of(head, rows, 3000) == pytest.approx(expected, rel=1e-9)
