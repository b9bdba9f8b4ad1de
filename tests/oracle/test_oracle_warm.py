"""Warm solutions equal cold ones after any changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from knapcache.errors import CorruptState, InvalidInput
from knapcache.oracle import WarmSolver, solve
from tests.support.knapsacks import CACHE_MODES, CLASSIC, cache_like, classic


def change_some(rng: np.random.Generator, values: Any, sizes: Any, *, whole: bool) -> tuple[Any, Any, Any]:
    """Return a few items with new values and sometimes sizes; some very different, some worthless."""
    which = rng.choice(len(values), int(rng.integers(1, 12)), replace=False)
    new = values[which] * rng.choice([0.0, 0.5, 0.99, 1.01, 2.0, 30.0], len(which))
    new_sizes = sizes[which].copy()
    if rng.random() < 0.3:
        new_sizes = np.maximum(1, new_sizes + rng.integers(-3, 4, len(which)))
    return which, np.floor(new) if whole else new, new_sizes


def check_equal(warm: WarmSolver, values: Any, sizes: Any, capacity: int, *, whole: bool, **options: Any) -> None:
    found, cold = warm.solve(), solve(values, sizes, capacity, **options)
    warm.check()
    assert found.proven
    assert cold.proven
    assert found.price == cold.price
    assert sizes[found.chosen].sum() <= capacity
    assert found.value == pytest.approx(values[found.chosen].sum(), rel=1e-12)
    assert found.upper_bound >= cold.value
    assert cold.upper_bound >= found.value
    if whole:
        assert (found.value, found.upper_bound, found.gap) == (cold.value, cold.upper_bound, cold.gap)
    elif not options:
        assert found.value == pytest.approx(cold.value, rel=2e-13)


@pytest.mark.parametrize("mode", CACHE_MODES)
def test_cache_like_instances(mode: str) -> None:
    rng = np.random.default_rng(len(mode))
    cold = warm_solves = 0
    for _ in range(6):
        values, sizes, capacity = cache_like(mode, rng, int(rng.integers(1500, 6000)))
        warm = WarmSolver(values, sizes, capacity)
        for _ in range(25):
            check_equal(warm, values, sizes, capacity, whole=False)
            which, new, new_sizes = change_some(rng, values, sizes, whole=False)
            warm.change(which, new, new_sizes)
            values[which], sizes[which] = new, new_sizes
        cold, warm_solves = cold + warm.cold_solves, warm_solves + warm.warm_solves
    assert warm_solves > cold


@pytest.mark.parametrize("kind", [kind for kind in CLASSIC if kind not in {"circle", "multiple_strongly"}])
def test_integers_are_bit_exact(kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    for _ in range(3):
        values, sizes, capacity = classic(kind, rng, int(rng.integers(1100, 3000)), 100)
        warm = WarmSolver(values, sizes, capacity)
        for _ in range(20):
            check_equal(warm, values, sizes, capacity, whole=True)
            which, new, new_sizes = change_some(rng, values, sizes, whole=True)
            warm.change(which, new, new_sizes)
            values[which], sizes[which] = new, new_sizes
        assert warm.warm_solves > 0


def test_approximate() -> None:
    rng = np.random.default_rng(1)
    values, sizes, capacity = cache_like("noisy cost", rng, 5000)
    warm = WarmSolver(values, sizes, capacity, beta=1e-3)
    for _ in range(30):
        check_equal(warm, values, sizes, capacity, whole=False, beta=1e-3)
        which, new, _ = change_some(rng, values, sizes, whole=False)
        warm.change(which, new)
        values[which] = new
    assert warm.warm_solves > 20


def test_all_or_no_items_fit() -> None:
    values, sizes = np.arange(1.0, 2001.0), np.full(2000, 3)
    warm = WarmSolver(values, sizes, 3 * 1000)
    assert warm.solve().value == values[1000:].sum()
    warm.change(np.arange(1000, 1100), np.zeros(100))
    assert warm.solve().value == values[900:1000].sum() + values[1100:].sum()
    for start in range(0, 2000, 500):
        warm.change(np.arange(start, start + 500), np.zeros(500))
    assert warm.solve().value == 0.0
    warm.change([5], [2.0])
    assert warm.solve().value == 2.0
    assert WarmSolver([], [], 5).solve().value == 0.0
    assert WarmSolver([1.0], [2], 1).solve().value == 0.0


def test_many_changes_cause_a_cold_solve() -> None:
    rng = np.random.default_rng(2)
    values, sizes, capacity = cache_like("independent", rng, 3000)
    warm = WarmSolver(values, sizes, capacity)
    warm.solve()
    for _ in range(8):
        which = rng.choice(3000, 400, replace=False)
        values[which] = rng.random(400) * values.max()
        warm.change(which, values[which])
        check_equal(warm, values, sizes, capacity, whole=False)
    assert warm.cold_solves > 1


@pytest.mark.parametrize(
    ("items", "values", "sizes", "line"),
    [
        ([0, 0], [1.0, 2.0], None, "items must not contain duplicates"),
        ([5], [1.0], None, "items must be in 0 … 1, not 5 … 5"),
        ([-1], [1.0], None, "items must be in 0 … 1, not -1 … -1"),
        ([0.5], [1.0], None, "items must be a flat list of integers"),
        ([0], [-1.0], None, "values[0] is -1.0; it must be finite and at least 0"),
        ([0], [float("nan")], None, "values[0] is nan; it must be finite and at least 0"),
        ([0], [1.0], [0], "sizes[0] is 0; it must be an integer, at least 1"),
        ([0], [1.0, 2.0], [1, 2], "1 items have 2 values; the numbers must be equal"),
        ([0], [1.0], [2**62 - 1], "sizes would sum to 4611686018427387904; they must sum to less than 2**62"),
        (
            [0],
            [9e288],
            None,
            "values would sum to 1.8e+289; they must sum to less than 2**960 (about 9.7e288)",
        ),
    ],
)
def test_bad_changes_change_nothing(items: Any, values: Any, sizes: Any, line: str) -> None:
    warm = WarmSolver([3.0, 9e288], [1, 1], 1)
    with pytest.raises(InvalidInput) as raised:
        warm.change(items, values, sizes)
    assert str(raised.value) == line
    assert warm.solve().value == 9e288


def test_values_may_not_sum_to_the_limit() -> None:
    warm = WarmSolver([2.0**959, 1.0], [1, 1], 1)
    with pytest.raises(InvalidInput, match="values would sum to"):
        warm.change([1], [2.0**959])
    warm.change([1], [2.0**958])


def test_check_finds_wrong_near_values() -> None:
    warm = WarmSolver(*cache_like("independent", np.random.default_rng(3), 3000))
    warm.solve()
    warm.check()
    warm._near_values[0] += 1.0
    with pytest.raises(CorruptState, match="near values"):
        warm.check()
