"""The exact Oracle against independent solvers."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knapcache.kernel import kernel
from knapcache.oracle import solve
from knapcache.oracle.exact import select
from knapcache.oracle.problem import Flags, Floats, Ints
from knapcache.oracle.sums import to_integers
from tests.support.examples import examples
from tests.support.knapsack_solvers import brute_force, by_milp, by_or_tools, check, exact_sum, integer_optimum
from tests.support.knapsacks import CACHE_MODES, CLASSIC, KnapsackInstance, Rng, cache_like, classic
from tests.support.textbook import textbook


@pytest.mark.parametrize("R", [3, 10, 100, 1000, 10**6])
@pytest.mark.parametrize("kind", CLASSIC)
def test_integer_values_are_solved_exactly(kind: str, R: int) -> None:
    rng = np.random.default_rng([R, len(kind)])
    for _ in range(40):
        n = int(rng.integers(1, 13 if R > 1000 else 41))
        instance = classic(kind, rng, n, R)
        optimum = brute_force(*instance) if n <= 8 else integer_optimum(instance)
        selection = solve(*instance)
        assert check(selection, instance, optimum) == optimum
        assert selection.value == optimum
        assert selection.gap == 0.0
        assert selection.proven


@pytest.mark.parametrize("kind", CLASSIC)
def test_large_cores_are_solved_exactly(kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    for _ in range(6):
        instance = classic(kind, rng, 200, 60)
        optimum = int(textbook(*instance)[1])
        assert check(solve(*instance), instance, optimum) == optimum


@pytest.mark.parametrize("mode", CACHE_MODES)
def test_cache_like_instances_are_solved(mode: str) -> None:
    rng = np.random.default_rng(len(mode))
    for _ in range(150):
        instance = cache_like(mode, rng, int(rng.integers(1, 61)))
        reachable = exact_sum(
            instance.values, textbook(*instance)[0]
        )  # the optimum, except for the textbook's rounding
        selection = solve(*instance)
        check(selection, instance, reachable)
        assert selection.proven


def uniform(rng: Rng, n: int) -> KnapsackInstance:
    return KnapsackInstance(rng.random(n), rng.integers(1, 20, n), int(rng.integers(1, 10 * n)))


def one_density(rng: Rng, n: int) -> KnapsackInstance:
    """Densities that are equal except for the last bit of the values."""
    sizes = rng.integers(1, 1000, n)
    values = sizes * rng.random()
    values = np.nextafter(values, np.where(rng.random(n) < 0.5, 0.0, 10.0 * values))
    return KnapsackInstance(values, sizes, int(rng.uniform(0.1, 0.9) * sizes.sum()))


def decimal_ties(rng: Rng, n: int) -> KnapsackInstance:
    """Sums that are equal in decimals but not in floats."""
    return KnapsackInstance(rng.integers(1, 10, n) * 0.1, rng.integers(1, 6, n), int(rng.integers(1, 3 * n + 1)))


def far_apart(rng: Rng, n: int) -> KnapsackInstance:
    """Values of very different scale: rounding errors must appear in the certificate."""
    sizes = rng.integers(1, 50, n)
    return KnapsackInstance(10.0 ** rng.uniform(-25, 25, n), sizes, int(rng.uniform(0.1, 0.9) * sizes.sum()))


def one_density_far_apart(rng: Rng, n: int) -> KnapsackInstance:
    """The same inside the core: sizes differ as much as values do, and only small items must be left out."""
    sizes = np.append((10.0 ** rng.uniform(0, 3, n)).astype(np.int64), 10**17)
    return KnapsackInstance(
        sizes * rng.uniform(1.0, 1.0 + 1e-15, n + 1), sizes, int(sizes.sum() - rng.integers(1, 500))
    )


def tight_bound(rng: Rng, n: int) -> KnapsackInstance:
    """The bound often equals the optimum, and 49·(1/49) < 1 in floats: rounded down, it would lose a whole unit."""
    values, size = rng.integers(1, 12, n), int(rng.choice([49, 98, 103, 107, 161, 187, 197]))
    sizes = values * size + rng.integers(1, 4, n) * (rng.random(n) < 0.3)  # no common divisor
    return KnapsackInstance(values.astype(float), sizes, size * int(rng.integers(1, values.sum() + 1)))


def subnormal(rng: Rng, n: int) -> KnapsackInstance:
    """Values so small that a density is subnormal or 0."""
    return KnapsackInstance(rng.integers(0, 30, n) * 5e-324, rng.integers(1, 9, n), int(rng.integers(1, 4 * n)))


@pytest.mark.parametrize("generate", [uniform, one_density, decimal_ties, far_apart, tight_bound, subnormal])
def test_rounding_against_rational_brute_force(generate: Callable[[Rng, int], KnapsackInstance]) -> None:
    rng = np.random.default_rng(len(generate.__name__))
    for _ in range(100):
        instance = generate(rng, int(rng.integers(1, 11)))
        selection = solve(*instance)
        check(selection, instance, brute_force(*instance))
        assert selection.proven


def test_a_result_with_rounding_errors_is_not_proven() -> None:
    rng = np.random.default_rng(8)
    unproven = 0
    for _ in range(100):
        instance = one_density_far_apart(rng, int(rng.integers(3, 11)))
        selection = solve(*instance)
        check(selection, instance, brute_force(*instance))
        unproven += not selection.proven
    assert unproven > 0


def test_rounding_errors_are_summed() -> None:
    rng = np.random.default_rng(9)
    for _ in range(100):
        values = 10.0 ** rng.uniform(-8, 8, 20)
        whole, exponent, error = to_integers(values, np.arange(20), np.ones(20, np.int64))
        scaled = [Fraction(v) * Fraction(2) ** exponent for v in values.tolist()]
        off = sum(abs(s - w) for s, w in zip(scaled, whole.tolist(), strict=True))
        assert off <= Fraction(error) <= off * Fraction(1001, 1000)
        assert 0 < off <= 10
        assert 2**60 <= sum(whole.tolist()) <= 2**61 + 10


ITEM = st.tuples(
    st.one_of(st.integers(0, 40).map(float), st.floats(0, 1e6), st.integers(0, 40).map(lambda k: k * 0.1)),
    st.integers(1, 25),
)


@settings(max_examples=examples(100, 400), deadline=None)
@given(items=st.lists(ITEM, max_size=12), capacity=st.integers(0, 160))
def test_any_small_instance_against_rational_brute_force(items: list[tuple[float, int]], capacity: int) -> None:
    instance = KnapsackInstance(np.array([w for w, _ in items]), np.array([s for _, s in items], np.int64), capacity)
    optimum = brute_force(*instance)
    selection = solve(*instance)
    kept = check(selection, instance, optimum)
    assert selection.proven
    if all(w == int(w) for w, _ in items):
        assert kept == optimum
        assert selection.gap == 0.0


def test_against_or_tools() -> None:
    rng = np.random.default_rng(1)
    for kind in ("uncorrelated", "weakly", "almost_strongly", "subset_sum", "multiple_strongly"):
        for _ in range(40):
            instance = classic(kind, rng, 30, 10_000)
            assert solve(*instance).value == by_or_tools(instance)


def test_against_milp() -> None:
    rng = np.random.default_rng(2)
    for mode in CACHE_MODES:
        for _ in range(8):
            instance = cache_like(mode, rng, 40)
            assert solve(*instance).value == pytest.approx(by_milp(instance), rel=1e-6)  # HiGHS works to 1e-6


def test_the_textbook_solver_is_right() -> None:
    rng = np.random.default_rng(3)
    for _ in range(80):
        instance = classic("uncorrelated", rng, int(rng.integers(1, 11)), 20)
        chosen, value = textbook(*instance)
        assert exact_sum(instance.values, chosen) == value == brute_force(*instance)
        assert instance.sizes[chosen].sum() <= instance.capacity


@pytest.mark.parametrize("kind", ["strongly", "inverse_strongly", "multiple_strongly", "circle", "even_odd"])
def test_the_bounds_of_a_truncated_search_hold(kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    proven = 0
    for _ in range(25):
        instance = classic(kind, rng, 60, 300)
        optimum = int(textbook(*instance)[1])
        for work_limit in (1, 10, 100, 1000, 10**6):
            chosen = np.zeros(60, np.bool_)
            work = select(instance.values, instance.sizes, instance.capacity, 0.0, 0.0, work_limit, chosen)[4]
            assert work <= work_limit
            selection = solve(*instance, work_limit=work_limit)
            assert (selection.chosen == chosen).all()
            kept = check(selection, instance, optimum)
            assert selection.proven == (selection.gap == 0.0)
            assert kept == optimum or not selection.proven
            proven += selection.proven
    assert 25 <= proven < 125  # otherwise the work limits above test nothing


def test_a_truncated_search_on_floats() -> None:
    rng = np.random.default_rng(4)
    unproven = 0
    for _ in range(150):
        instance = one_density(rng, 10)
        optimum = brute_force(*instance)
        for work_limit in (1, 20, 60):
            selection = solve(*instance, work_limit=work_limit, tol=0.0)
            check(selection, instance, optimum, tol=0.0)
            unproven += not selection.proven
    assert unproven > 50


def test_a_tolerance_is_met_and_saves_work() -> None:
    rng = np.random.default_rng(5)
    work = {0.0: 0, 1e-13: 0, 1e-3: 0, 1e-2: 0}
    for _ in range(100):
        instance = cache_like("noisy cost", rng, 60)
        reachable = exact_sum(instance.values, textbook(*instance)[0])
        for tol in work:
            check(solve(*instance, tol=tol), instance, reachable, tol=tol + 1e-15)
            chosen = np.zeros(60, np.bool_)
            work[tol] += select(instance.values, instance.sizes, instance.capacity, 0.0, tol, -1, chosen)[4]
    assert work[0.0] >= work[1e-13] > work[1e-3] > 2 * work[1e-2]


@kernel
def _sum_of_selects(rows: Floats, sizes: Ints, capacity: int, chosen: Flags) -> float:
    value = 0.0
    for i in range(rows.shape[0]):
        value += select(rows[i], sizes, capacity, 0.0, 1e-13, -1, chosen)[0]
    return value


def test_select_is_called_from_other_kernels() -> None:
    rng = np.random.default_rng(6)
    rows, sizes = rng.random((20, 30)), rng.integers(1, 10, 30)
    assert _sum_of_selects(rows, sizes, 40, np.zeros(30, np.bool_)) == sum(solve(row, sizes, 40).value for row in rows)


def test_a_million_byte_items_in_a_hundred_gigabytes() -> None:
    rng = np.random.default_rng(7)
    sizes = rng.integers(1, 10**6, 400_000)
    values = np.floor(rng.pareto(1.2, 400_000) * 1000) + 1
    instance = KnapsackInstance(values, sizes, 10**11)
    selection = solve(*instance, work_limit=10**7)
    assert sizes.sum() > 10**11
    assert sizes[selection.chosen].sum() <= 10**11
    assert selection.proven
    assert selection.gap == 0.0
    # Two independent bounds: the greedy set up to the price is feasible, and price·(free capacity) more is not.
    dense = values / sizes > selection.price
    assert values[dense].sum() <= selection.value
    assert selection.value <= values[dense].sum() + selection.price * (10**11 - sizes[dense].sum()) * (1 + 1e-12)


def test_a_known_case() -> None:
    assert brute_force([60.0, 100.0, 120.0], [10, 20, 30], 50) == Fraction(220)
    assert solve([60, 100, 120], [10, 20, 30], 50).chosen.tolist() == [False, True, True]
