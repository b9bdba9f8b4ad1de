"""Edge cases, and changes of the input that must not change the result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import knapcache.oracle
from knapcache.oracle import exact, solve
from tests.support.knapsack_solvers import brute_force, check
from tests.support.knapsacks import CACHE_MODES, CLASSIC, KnapsackInstance, cache_like, classic


def chosen(values: list[float], sizes: list[int], capacity: int) -> list[int]:
    selection = solve(values, sizes, capacity)
    assert selection.proven
    assert selection.gap == 0.0
    return np.flatnonzero(selection.chosen).tolist()


def test_no_items() -> None:
    selection = solve([], [], 10)
    assert (selection.value, selection.upper_bound, selection.price) == (0.0, 0.0, 0.0)
    assert selection.chosen.shape == (0,)


def test_small_edge_cases() -> None:
    assert chosen([5.0], [3], 3) == [0]
    assert chosen([5.0], [4], 3) == []
    assert chosen([0.0], [1], 3) == []
    assert chosen([0.0, 0.0, 0.0], [1, 1, 1], 2) == []
    assert chosen([9.0, 1.0], [100, 1], 99) == [1]
    assert chosen([9.0, 1.0, 0.0], [100, 1, 1], 200) == [0, 1]
    assert chosen([1.0, 2.0, 3.0], [1, 2, 3], 6) == [0, 1, 2]
    assert chosen([1.0, 2.0, 3.0], [1, 2, 3], 5) == [1, 2]
    assert chosen([3.0, 5.0], [1, 2], 0) == []
    assert chosen([3.0, 5.0], [1, 2], 10**30) == [0, 1]


def test_price_is_the_break_density() -> None:
    assert solve([10.0, 6.0, 1.0], [1, 2, 1], 2).price == 3.0
    assert solve([10.0, 6.0, 1.0], [1, 2, 1], 4).price == 0.0


def test_identical_items() -> None:
    for capacity in range(0, 700, 13):
        assert solve([4.0] * 100, [7] * 100, capacity).value == 4.0 * (capacity // 7)
        assert solve([0.1] * 100, [7] * 100, capacity).chosen.sum() == capacity // 7


def test_sizes_with_a_common_divisor() -> None:
    rng = np.random.default_rng(1)
    for _ in range(80):
        values, sizes, capacity = classic("subset_sum", rng, 30, 50)
        fine = solve(values, sizes, capacity)
        coarse = solve(values, sizes * 6_000_000, capacity * 6_000_000 + int(rng.integers(0, 6_000_000)))
        assert coarse.value == fine.value
        assert coarse.gap == 0.0


def test_sizes_up_to_the_limit() -> None:
    rng = np.random.default_rng(2)
    for _ in range(100):
        sizes = rng.integers(2**50, 2**58, 10)
        instance = KnapsackInstance(rng.integers(1, 2**49, 10).astype(float), sizes, int(sizes.sum() * rng.random()))
        optimum = brute_force(*instance)
        assert check(solve(*instance), instance, optimum) == optimum


def test_values_near_two_to_the_53_are_bit_exact() -> None:
    rng = np.random.default_rng(3)
    for _ in range(80):
        sizes = rng.integers(1, 20, 10)
        instance = KnapsackInstance(rng.integers(2**48, 2**49, 10).astype(float), sizes, int(rng.integers(5, 120)))
        selection = solve(*instance)
        assert selection.value == brute_force(*instance)
        assert selection.gap == 0.0


@pytest.mark.parametrize("mode", CACHE_MODES)
def test_scaling_the_values_by_a_power_of_two_changes_nothing(mode: str) -> None:
    rng = np.random.default_rng(len(mode))
    for _ in range(40):
        values, sizes, capacity = cache_like(mode, rng, 50)
        plain = solve(values, sizes, capacity)
        for k in (-300, -31, 5, 400):
            scaled = solve(values * 2.0**k, sizes, capacity)
            assert (scaled.chosen == plain.chosen).all()
            assert scaled.value == plain.value * 2.0**k
            assert scaled.upper_bound == plain.upper_bound * 2.0**k


@pytest.mark.parametrize("kind", CLASSIC)
def test_order_worthless_items_and_more_capacity(kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    for _ in range(20):
        values, sizes, capacity = classic(kind, rng, 30, 60)
        plain = solve(values, sizes, capacity)

        order = rng.permutation(30)
        assert solve(values[order], sizes[order], capacity).value == plain.value

        place = int(rng.integers(0, 31))
        longer = solve(np.insert(values, place, 0.0), np.insert(sizes, place, 1), capacity)
        assert (np.delete(longer.chosen, place) == plain.chosen).all()

        larger = [solve(values, sizes, capacity + more).value for more in (0, 1, 5, 30, 10**6)]
        assert larger == sorted(larger)
        assert larger[0] == plain.value
        assert larger[-1] == values.sum()


def test_the_result_is_repeatable_and_read_only() -> None:
    instance = cache_like("counts", np.random.default_rng(4), 300)
    values, sizes = instance.values.copy(), instance.sizes.copy()
    first, second = solve(*instance), solve(*instance)
    assert (first.chosen == second.chosen).all()
    assert (instance.values == values).all()
    assert (instance.sizes == sizes).all()
    with pytest.raises(ValueError, match="read-only"):
        first.chosen[0] = True


def test_read_only_arrays_need_no_kernels_of_their_own() -> None:
    instance = cache_like("counts", np.random.default_rng(4), 300)
    chosen = solve(*instance).chosen
    kernels: Any = exact.select
    built = len(kernels.signatures)
    for array in (instance.values, instance.sizes):
        array.flags.writeable = False
    assert (solve(*instance).chosen == chosen).all()
    assert len(kernels.signatures) == built


def test_public_names() -> None:
    assert knapcache.oracle.__all__ == ["WarmSolver", "solve"]


def results() -> list[list[object]]:
    """Return the results for a sample of all instances as JSON values, for comparison with another process."""
    rng = np.random.default_rng(5)
    found = []
    for _ in range(4):
        instances = [classic(kind, rng, int(rng.integers(1, 25)), 40) for kind in CLASSIC]
        instances += [cache_like(mode, rng, int(rng.integers(1, 25))) for mode in CACHE_MODES]
        for instance in instances:
            for beta, work_limit in ((0.0, None), (0.1, None), (0.0, 20)):
                s = solve(*instance, beta=beta, work_limit=work_limit)
                found.append([s.chosen.tolist(), s.value, s.upper_bound, s.proven, s.price])
    return found


def test_uncompiled_kernels_give_the_same_results() -> None:
    environment = os.environ | {"KNAPCACHE_COMPILE": "0"}
    program = (
        f"import sys, json; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); "
        "from knapcache.kernel import COMPILED; assert not COMPILED; "
        "from oracle.test_oracle_properties import results; print(json.dumps(results()))"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", program],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == json.loads(json.dumps(results()))
