"""Problems with more items than one core: samples, partial first cores, widening, exchanges, cardinality, ties."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from knapcache.oracle import solve
from knapcache.oracle.approximate import certified_beta
from knapcache.oracle.bounds import best_exchange, cardinality_bound
from knapcache.oracle.exact import FrozenItems, SearchOptions, Workspace, select, select_in
from knapcache.oracle.groups import drop_chain_ends
from knapcache.oracle.price import break_items, compute_densities
from knapcache.oracle.sums import accurate_sum, argsort, merge_argsort, radix_argsort
from tests.support.knapsack_solvers import brute_force, check, exact_sum
from tests.support.knapsacks import CACHE_MODES, CLASSIC, KnapsackInstance, cache_like, classic
from tests.support.textbook import textbook


def solved_exactly(instance: KnapsackInstance) -> None:
    """Check a solution with integer values quickly, for many instances."""
    values, sizes, capacity = instance
    found = solve(*instance)
    assert found.value == textbook(*instance)[1] == values[found.chosen].sum()
    assert int(sizes[found.chosen].sum()) <= capacity
    assert found.upper_bound == found.value
    assert found.gap == 0.0
    assert found.proven


@pytest.mark.parametrize("kind", CLASSIC)
def test_more_items_than_one_core(kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    for _ in range(40):
        R = int(rng.choice([3, 10, 30] if kind != "similar_sizes" else [1]))
        solved_exactly(classic(kind, rng, int(rng.integers(257, 700)), R))


@pytest.mark.parametrize("mode", CACHE_MODES)
def test_larger_cache_like_instances(mode: str) -> None:
    rng = np.random.default_rng(len(mode))
    for _ in range(25):
        instance = cache_like(mode, rng, int(rng.integers(257, 700)), median_size=8)
        selection = solve(*instance)
        check(selection, instance, exact_sum(instance.values, textbook(*instance)[0]))
        assert selection.proven
        approximate = solve(*instance, beta=0.01)
        check(approximate, instance, None)
        assert approximate.proven
        assert certified_beta(approximate, instance.values) <= 0.01 * (1 + 1e-9)


def test_values_on_a_line() -> None:
    """Values a + b·S need the cardinality bound. Without it these take minutes."""
    rng = np.random.default_rng(1)
    for n in (300, 3_000, 30_000):
        for _ in range(5):
            sizes = rng.integers(1, 10_000, n)
            instance = KnapsackInstance(0.2 + 1e-3 * sizes, sizes, int(rng.uniform(0.2, 0.8) * sizes.sum()))
            chosen = np.zeros(n, np.bool_)
            proven, work = select(*instance, 0.0, 1e-13, 10**7, chosen)[3:]
            assert proven
            assert work < 10**6


@pytest.mark.parametrize("kind", ["multiple_strongly", "circle", "strongly", "almost_strongly"])
def test_hard_classes_respect_the_work_limit_and_report_a_gap(kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    unproven = 0
    for n in (200, 2_000, 10_000):
        instance = classic(kind, rng, n, 10**6)
        best = 0.0
        for work_limit in (10**3, 10**5, 2 * 10**6):
            chosen = np.zeros(n, np.bool_)
            value, upper_bound, _, proven, work = select(*instance, 0.0, 0.0, work_limit, chosen)
            assert work <= work_limit
            assert instance.sizes[chosen].sum() <= instance.capacity
            assert value == instance.values[chosen].sum() <= upper_bound
            assert proven == (value == upper_bound)
            unproven += not proven
            best = max(best, value)
            assert best <= upper_bound
    assert unproven > 0


def test_the_price_equals_that_of_a_full_sort() -> None:
    rng = np.random.default_rng(2)
    for _ in range(100):
        n = int(rng.integers(1, 1500))
        values = (rng.integers(0, 30, n) * (0.1 if rng.random() < 0.5 else rng.random(n))).astype(np.float64)
        sizes = rng.integers(1, 50, n)
        density, items = np.empty(n, np.int64), np.empty(n, np.int64)
        limit = int(rng.integers(1, 60))
        size = compute_densities(values, sizes, limit, density)
        useful = np.flatnonzero((values > 0) & (sizes <= limit))
        assert size == sizes[useful].sum()
        if size < 2:
            continue
        capacity = int(rng.integers(0, size))
        bits, count, free = break_items(density, sizes, capacity, items)
        order = useful[np.argsort(-(values / sizes)[useful], kind="stable")]
        broken = order[np.searchsorted(np.cumsum(sizes[order]), capacity, side="right")]
        price = (values / sizes)[broken]
        assert np.int64(bits).view(np.float64) == price
        assert items[:count].tolist() == [i for i in useful if (values / sizes)[i] == price]
        assert free == capacity - sizes[useful[(values / sizes)[useful] > price]].sum()


def test_sums_and_order() -> None:
    rng = np.random.default_rng(3)
    for n in (0, 1, 15, 16, 17, 1000):
        values, chosen = 10.0 ** rng.uniform(-9, 9, n), rng.random(n) < 0.5
        for wanted in (True, False):
            exact = exact_sum(values, chosen == wanted)
            assert abs(accurate_sum(values, chosen, wanted)[0] - float(exact)) <= float(exact) * 2.0**-52
        assert accurate_sum(np.floor(values) % 1000, chosen, True)[1]
        keys = rng.integers(0, 10, n).astype(float)
        assert argsort(keys).tolist() == np.argsort(keys, kind="stable").tolist()


def test_exchange_and_cardinality_against_brute_force() -> None:
    rng = np.random.default_rng(4)
    tight = 0
    for _ in range(300):
        n = int(rng.integers(2, 10))
        sizes = rng.integers(1, 20, n)
        values = (3.0 * sizes + 7.0).astype(np.float64)
        chosen = rng.random(n) < 0.5
        free = int(rng.integers(0, 10))
        first, count = np.arange(n), np.ones(n, np.int64)
        gain, removed, added = best_exchange(values, sizes, chosen, first, free)
        pairs = [
            (values[j] - values[i], i, j)
            for i in range(n)
            for j in range(n)
            if chosen[i] and not chosen[j] and sizes[j] <= free + sizes[i]
        ]
        assert gain == max((p[0] for p in pairs), default=-np.inf)
        assert not pairs or (gain, removed, added) in pairs
        best_gain = float(brute_force(values, sizes, int(sizes[chosen].sum()) + free)) - values[chosen].sum()
        bound = cardinality_bound(values, sizes, chosen, first, count, free)
        assert bound >= best_gain
        tight += bound < best_gain + 1e-9
    assert tight > 100


def test_small_first_cores_in_plain_python() -> None:
    """First cores of a few items, so that small instances go through every round."""
    program = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import numpy as np
from knapcache import kernel
assert not kernel.COMPILED
from knapcache.oracle import exact, core, solve
from tests.support.textbook import textbook
from tests.support.knapsacks import CLASSIC, classic
rng = np.random.default_rng(5)
rounds = 0
for k in range(180):
    exact.SMALL, exact.FIRST_CORE, exact.MIN_CLASSES = 2, int(rng.integers(1, 8)), int(rng.integers(1, 6))
    exact.FIRST_MAX, exact.LARGE_CORE = int(rng.integers(3, 12)), int(rng.integers(1, 12))
    exact.FIRST_WORK, core.WORD = int(rng.choice([8, 40, 1000])), int(rng.choice([2, 5, 60]))
    kind = list(CLASSIC)[k % len(CLASSIC)]
    instance = classic(kind, rng, int(rng.integers(5, 26)), 9 if kind != "similar_sizes" else 1)
    found = solve(*instance)
    assert found.value == textbook(*instance)[1] and found.gap == 0.0 and found.proven, (k, kind)
"""
    subprocess.run(
        [sys.executable, "-W", "error", "-c", program], env=os.environ | {"KNAPCACHE_COMPILE": "0"}, check=True
    )


@pytest.mark.long
@pytest.mark.parametrize("kind", CLASSIC)
def test_very_many_instances(kind: str) -> None:
    """200,000 and more over all classes."""
    rng = np.random.default_rng([len(kind), 9])
    for k in range(17_500):
        R = int(rng.choice([3, 10, 30, 100]))
        n = int(rng.integers(257, 400)) if k % 100 == 0 else int(rng.integers(1, 41))
        instance = classic(kind, rng, n, min(R, 10) if n > 256 else R)
        if kind == "similar_sizes":  # sizes of 100·R make the reference's table large
            instance = classic(kind, rng, min(n, 20), min(R, 10))
        solved_exactly(instance)


@pytest.mark.parametrize("n", [0, 1, 2, 511, 512, 3000])
def test_both_sorts_are_correct_and_stable(n: int) -> None:
    rng = np.random.default_rng(n)
    for keys in (
        rng.normal(size=n),
        -rng.exponential(size=n) * 1e-9,
        rng.integers(0, 40, n).astype(float),
        np.zeros(n),
        np.where(rng.random(n) < 0.5, -0.0, 0.0),  # equal, though their bits differ
        rng.normal(size=n) * 10.0 ** rng.integers(-300, 300, n),
        rng.choice([np.inf, -np.inf, 5e-324, -5e-324, 0.0], n),
    ):
        expected = np.argsort(keys, kind="stable").tolist()
        assert argsort(keys).tolist() == expected
        assert merge_argsort(keys).tolist() == expected
        if n:
            assert radix_argsort(keys).tolist() == expected


def test_of_equal_values_only_the_items_next_to_the_price_are_searched() -> None:
    rng = np.random.default_rng(8)
    sizes = rng.integers(1000, 30_000, 20_000)
    values = (rng.integers(1, 4, 20_000) * 0.25).astype(np.float64)
    price, threshold = 1e-4, 0.2
    chosen = values > price * sizes
    costs = np.abs(values - price * sizes)
    near = np.flatnonzero(costs < threshold)
    expected = []
    for value in np.unique(values):
        for inside in (False, True):
            chain = near[(values[near] == value) & (chosen[near] == inside)]
            chain = chain[np.argsort(costs[chain], kind="stable")]
            expected += chain[np.cumsum(costs[chain]) < threshold].tolist()
    items = near.copy()
    kept = items[: drop_chain_ends(values, sizes, chosen, price, threshold, items)].tolist()
    assert kept == sorted(expected)
    assert 0 < len(kept) < len(near) // 10


def test_a_start_changes_neither_value_nor_proof() -> None:
    rng = np.random.default_rng(9)
    nothing, options = FrozenItems(0, 0.0, 0.0, 0.0), SearchOptions(0.0, 1e-13, -1)
    work = {"none": 0, "optimum": 0, "random": 0}
    for mode in CACHE_MODES:
        values, sizes, capacity = cache_like(mode, rng, 600)
        best = np.zeros(600, np.bool_)
        value = select(values, sizes, capacity, 0.0, 1e-13, -1, best)[0]
        for name, start in (("none", best[:0]), ("optimum", best), ("random", rng.random(600) < 0.1)):
            chosen, scratch = np.zeros(600, np.bool_), np.empty((2, 600), np.int64)
            space = Workspace(values=values, sizes=sizes, chosen=chosen, density=scratch[0], items=scratch[1])
            found, upper_bound, _, proven, states, _ = select_in(space, capacity, nothing, options, start.copy())
            assert proven
            assert found == pytest.approx(value, rel=2e-13)
            assert upper_bound >= value
            assert sizes[chosen].sum() <= capacity
            work[name] += states
    assert work["optimum"] < work["none"]
