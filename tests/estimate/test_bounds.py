"""The paper's two estimators: by hand, against its own sums, and properties that hold for all numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache.estimate.bounds import arrival_bound, arrival_log, cost_bound, cost_log

T, N = 20_000, 100
# δ = 1/T, so 8TN/δ = 8·N·T² = 3.2·10¹¹ and 16TN/δ = 6.4·10¹¹; the logarithms by hand from ln 2 and ln 10:
# ln(2⁵·10¹⁰) = 5·ln 2 + 10·ln 10 = 26.49158680 and ln(2⁶·10¹⁰) = 27.18473398.
L1, L2 = 26.49158680, 27.18473398

gammas = st.floats(0.0, 1.0)
logs = st.floats(0.1, 100.0)


@st.composite
def counts(draw: st.DrawFn) -> tuple[int, int]:
    """Arrivals and rounds."""
    t = draw(st.integers(1, 10**6))
    return draw(st.integers(0, t)), t


def test_the_logarithms_by_hand() -> None:
    assert cost_log(T, N) == pytest.approx(L1, abs=1e-7)
    assert arrival_log(T, N) == pytest.approx(L2, abs=1e-7)
    assert round(5 * arrival_log(T, N), 1) == 135.9


@pytest.mark.parametrize(
    ("paid", "misses", "spread", "log", "gamma", "floor", "expected"),
    [
        # mean 6/4 = 1.5, radius 1·√(8/(2·4)) = 1
        (6.0, 4, 1.0, 8.0, 1.0, 0.0, 0.5),
        (6.0, 4, 1.0, 8.0, 0.25, 0.0, 1.25),
        # mean 30/9, radius 3·√(18/18) = 3
        (30.0, 9, 3.0, 18.0, 1.0, 0.0, 1.0 / 3.0),
        # The paper's setting, c1 = 1, c2 = 2, 50 misses of mean 1.7: √(26.4915868/100) = 0.51470
        (85.0, 50, 1.0, L1, 1.0, 0.0, 1.7 - 0.51470),
        # Below the floor: the paper's 0, and c1 (E6). Mean 1.5, radius √(26.49/2) = 3.64
        (1.5, 1, 1.0, L1, 1.0, 0.0, 0.0),
        (1.5, 1, 1.0, L1, 1.0, 1.0, 1.0),
        # No misses: the floor, and no division by zero
        (0.0, 0, 1.0, L1, 1.0, 0.7, 0.7),
    ],
)
def test_cost_bound_by_hand(
    paid: float, misses: int, spread: float, log: float, gamma: float, floor: float, expected: float
) -> None:
    assert cost_bound(paid, misses, spread, log, gamma, floor) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("arrivals", "t", "log", "gamma", "expected"),
    [
        # f = 1/2, V = 1/4, √(3·0.25·3/100) = 0.15, 5·3/100 = 0.15
        (50, 100, 3.0, 1.0, 0.2),
        (50, 100, 3.0, 0.5, 0.35),
        # f = 1/5, V = 4/25, √(3·0.16·12/400) = 0.12, 5·12/400 = 0.15: below zero at γ = 1
        (80, 400, 12.0, 1.0, 0.0),
        (80, 400, 12.0, 0.1, 0.173),
        # f = 1 has no variance: 1 − 5·2/50
        (50, 50, 2.0, 1.0, 0.8),
        (0, 50, 2.0, 1.0, 0.0),
        (0, 0, 2.0, 1.0, 0.0),
    ],
)
def test_arrival_bound_by_hand(arrivals: int, t: int, log: float, gamma: float, expected: float) -> None:
    assert arrival_bound(arrivals, t, log, gamma) == pytest.approx(expected, abs=1e-12)


@given(counts=counts().filter(lambda c: c[1] <= 300), log=logs)
def test_the_variance_is_the_papers_sum_of_squares(counts: tuple[int, int], log: float) -> None:
    """V_t(q) = 1/t·Σ_s (I{q_s = q} − T_q/t)², summed in exact fractions over the rounds."""
    arrivals, t = counts
    f = Fraction(arrivals, t)
    indicators = [1] * arrivals + [0] * (t - arrivals)
    variance = sum((x - f) ** 2 for x in indicators) / t
    expected = float(f) - math.sqrt(3 * float(variance) * log / t) - 5 * log / t
    assert arrival_bound(arrivals, t, log, 1.0) == pytest.approx(max(0.0, expected), abs=1e-9)


@given(counts=counts(), log=logs, paid=st.floats(0.0, 1e6), misses=st.integers(1, 10**6), spread=st.floats(0.0, 1e3))
def test_without_radii_estimates_are_means(
    counts: tuple[int, int], log: float, paid: float, misses: int, spread: float
) -> None:
    arrivals, t = counts
    assert arrival_bound(arrivals, t, log, 0.0) == arrivals / t
    assert cost_bound(paid, misses, spread, log, 0.0, 0.0) == paid / misses


@given(counts=counts(), log=logs, one=gammas, other=gammas)
def test_a_larger_gamma_never_raises_an_estimate(counts: tuple[int, int], log: float, one: float, other: float) -> None:
    arrivals, t = counts
    bold, careful = min(one, other), max(one, other)
    estimate = arrival_bound(arrivals, t, log, careful)
    assert 0.0 <= estimate <= arrival_bound(arrivals, t, log, bold) <= arrivals / t
    assert cost_bound(2.0 * t, t, 1.0, log, careful, 0.0) <= cost_bound(2.0 * t, t, 1.0, log, bold, 0.0) <= 2.0


@given(mean=st.floats(0.0, 100.0), misses=st.integers(1, 10**5), more=st.integers(1, 1000), log=logs, gamma=gammas)
def test_with_the_same_mean_more_misses_never_lower_the_cost(
    mean: float, misses: int, more: int, log: float, gamma: float
) -> None:
    few, many = (cost_bound(mean * n, n, 1.0, log, gamma, 0.0) for n in (misses, misses + more))
    assert few <= many + 1e-9
    assert many <= mean + 1e-9


@given(paid=st.floats(0.0, 1e4), misses=st.integers(0, 10**4), log=logs, gamma=gammas, floor=st.floats(0.0, 10.0))
def test_a_floor_only_lifts_what_lies_below_it(
    paid: float, misses: int, log: float, gamma: float, floor: float
) -> None:
    plain = cost_bound(paid, misses, 1.0, log, gamma, 0.0)
    assert cost_bound(paid, misses, 1.0, log, gamma, floor) == max(plain, floor)


def test_a_query_needs_about_290_arrivals_before_the_papers_estimate_leaves_zero() -> None:
    """E7. With n arrivals among t ≫ n: n > √(3·n·L2) + 5·L2, a quadratic in √n."""
    root = (math.sqrt(3 * L2) + math.sqrt(3 * L2 + 20 * L2)) / 2
    by_formula = root**2
    smallest = next(n for n in range(T) if arrival_bound(n, T, arrival_log(T, N), 1.0) > 0.0)
    assert 285 <= smallest <= 295
    assert smallest == pytest.approx(by_formula, rel=0.01)  # the formula leaves out 1 − f, which is 0.985 here
    # Under uniform arrivals every query has about T/N = 200: none of them ever leaves zero.
    assert arrival_bound(T // N, T, arrival_log(T, N), 1.0) == 0.0
