"""Random sequences of calls, compared with a dict and with the exact knapsack of the answers paid for.

The policy is the paper's. Whenever it claims that the set it recommends is optimal, the set is compared with the best
one for the same values and sizes, which is found by enumeration in rational numbers. On every store.
"""

from __future__ import annotations

from contextlib import nullcontext
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, run_state_machine_as_test

from knapcache.estimate.statistics import relative_value
from tests.cache.test_against_a_dict import Machine
from tests.support.caches import admission_of, residents, store_of
from tests.support.faulty_disk import DiskFaults, stores_on
from tests.support.knapsack_solvers import brute_force, exact_optimum

TOLERANCE = Fraction(1, 10**9)
"""Of values that were summed as doubles."""


class KnapsackMachine(Machine):
    """`compared` counts comparisons with the optimum, in all runs."""

    compared: ClassVar = 0

    @initialize(policy=st.sampled_from(["vsocb", "vsocb-lazy"]))
    def begin(self, policy: str) -> None:
        super().begin(policy, 1000, {})

    @invariant()
    def recommendations_are_optimal(self) -> None:
        if not hasattr(self, "cache"):
            return
        policy: Any = admission_of(self.cache).policy
        recommended, sizes = policy.rows["recommended"], policy.rows["entry_size"]
        assert int(sizes[recommended].sum()) <= policy.capacity
        if policy.head["certified"][0]:
            seen = np.flatnonzero(policy.rows["misses"] > 0)
            values = [relative_value(policy.head, policy.rows, i) for i in seen.tolist()]
            chosen = sum((Fraction(v) for i, v in zip(seen, values, strict=True) if recommended[i]), Fraction(0))
            assert chosen >= exact_optimum(values, sizes[seen], policy.capacity) * (1 - TOLERANCE)
            type(self).compared += 1

    @invariant()
    def the_store_holds_the_residents(self) -> None:
        if hasattr(self, "cache"):
            assert {info.key for info in store_of(self.cache).scan()} == residents(self.cache)


class OnDisk(KnapsackMachine):
    path = Path("answers.db")
    capacity = 1 << 20
    times = 10


STORES: dict[str, tuple[type[KnapsackMachine], bool]] = {
    "memory": (KnapsackMachine, False),
    "sqlite": (OnDisk, False),
    "sqlite without a memory tier": (OnDisk, True),
}


def compare_with_a_knapsack(store: str, examples: int, steps: int, *, derandomize: bool = False) -> int:
    """Return how often a set was compared with the optimum."""
    machine, without_memory_tier = STORES[store]
    before = machine.compared
    with stores_on(DiskFaults()) if without_memory_tier else nullcontext():
        options = settings(max_examples=examples, stateful_step_count=steps, deadline=None, derandomize=derandomize)
        run_state_machine_as_test(machine, settings=options)
    return machine.compared - before


@pytest.mark.parametrize("store", STORES)
def test_a_cache_holds_an_exact_knapsack(store: str) -> None:
    # The same sequences in every run: in few random ones the policy may never claim that its set is optimal.
    assert compare_with_a_knapsack(store, 12 if store == "memory" else 5, 30, derandomize=True) > 0


@pytest.mark.long
@pytest.mark.parametrize("store", STORES)
def test_a_cache_holds_an_exact_knapsack_for_long(store: str) -> None:
    assert compare_with_a_knapsack(store, 150, 60) > 100


def test_the_model_is_exact() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        n, capacity = int(rng.integers(0, 9)), int(rng.integers(0, 30))
        values, sizes = rng.integers(0, 20, n) / 8, rng.integers(1, 12, n)
        assert exact_optimum(values, sizes, capacity) == brute_force(values, sizes, capacity)
