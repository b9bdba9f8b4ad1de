"""Another cost of a miss for a resident: how it is ranked then, and that nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest

from knapcache.policy import registry
from knapcache.policy.base import Policy

COSTS = (5.0, 4.0, 3.0, 2.0)


def filled(name: str) -> Policy:
    """Return a policy whose cache is full of answers of equal size, the most expensive first."""
    policy = registry.find(name).build(40, 10)
    for i, cost in enumerate(COSTS):
        policy.arrive(i)
        policy.settle(i, 10, cost)
    return policy


def evicted_by_newcomer(policy: Policy) -> tuple[int, ...]:
    policy.arrive(7)
    evicted = policy.settle(7, 10, 10.0).evicted
    policy.check()
    return evicted


@pytest.mark.parametrize("name", ["adaptive", "gdsf-cost", "gdsf-cost-history", "gdsf-cost-trial"])
def test_a_resident_is_ranked_by_its_new_cost(name: str) -> None:
    assert evicted_by_newcomer(filled(name)) == (3,)
    policy = filled(name)
    policy.reprice(0, 0.5)
    policy.check()
    assert policy.residents == {0, 1, 2, 3}
    assert evicted_by_newcomer(policy) == (0,)


@pytest.mark.parametrize("name", ["adaptive", "gdsf-cost"])
def test_the_first_cost_again_ranks_it_as_before(name: str) -> None:
    policy = filled(name)
    policy.reprice(0, 0.5)
    policy.reprice(0, COSTS[0])
    before = filled(name)
    assert np.array_equal(policy.rows["paid"], before.rows["paid"])
    assert policy.rows["priority"][0] == pytest.approx(before.rows["priority"][0])
    assert evicted_by_newcomer(policy) == (3,)


@pytest.mark.parametrize("name", ["lru", "gdsf", "adaptive"])
def test_a_policy_without_costs_and_an_id_that_is_not_resident_are_left_alone(name: str) -> None:
    policy, before = filled(name), filled(name)
    policy.reprice(9, 0.5)
    if name == "lru":
        policy.reprice(0, 0.5)
    assert np.array_equal(policy.rows, before.rows)
