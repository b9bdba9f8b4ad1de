"""The bound on the cost of the leaders' shadows, term by term: "What is guaranteed" in docs/background/policies.md."""

from __future__ import annotations

import numpy as np
import pytest

from knapcache.lab.trace import Floats, Trace
from knapcache.policy.adaptive.experts import EXPERT_COUNT
from knapcache.policy.adaptive.policy import CHECK_EVERY, Adaptive
from knapcache.policy.adaptive.tournament import (
    ALL_HASHES,
    CLEAR_LEAD,
    EARLY_ADVANTAGE,
    EARLY_REQUESTS,
    PREFERENCE,
    WINDOWS,
)
from knapcache_experiments.worlds import draw_world

LIMIT = CLEAR_LEAD * PREFERENCE
"""1 − ε: after a check no expert's loss is below this share of the leader's."""
SEEDS = (5001, 5007, 5039)
"""Worlds whose cache is small enough to be simulated in full, and whose leader changes."""


def losses_and_leaders(policy: Adaptive, trace: Trace) -> tuple[Floats, Floats, list[int]]:
    """Return, once the cache is full: every expert's loss in the short window after each request, the weight of a loss
    then, and the leader before each request but the first.
    """
    losses, weights, leaders = [], [], []
    for i, size, cost in zip(trace.keys.tolist(), trace.sizes.tolist(), trace.costs.tolist(), strict=True):
        filling, leader = policy.head["filling"][0], int(policy.head["leader"][0])
        if not policy.arrive(i):
            policy.settle(i, size, cost)
        if not filling:
            leaders.append(leader)
        if not policy.head["filling"][0]:
            weights.append(policy.head["loss_weight"][0, 0])
            losses.append(policy.head["loss"][0, 0] / weights[-1])
    return np.array(losses), np.array(weights), leaders


@pytest.mark.parametrize("seed", SEEDS)
def test_the_leaders_pay_little_more_than_the_best_expert_and_the_changes(seed: int) -> None:
    world = draw_world(seed, requests=6000)
    policy = Adaptive.for_trace(world.capacities[0], world.trace)
    losses, weights, leaders = losses_and_leaders(policy, world.trace)
    before, after, decay = losses[:-1], losses[1:], weights[:-1] / weights[1:]
    assert len(leaders) == len(after) > 2000
    assert policy.head["hash_limit"][0] == ALL_HASHES, "every key is simulated"
    assert decay.mean() == pytest.approx(1.0 - 1.0 / WINDOWS[0], abs=0.1 / WINDOWS[0])
    costs = after - decay[:, None] * before
    assert costs.min() > -1e-9 * losses.max(), "a loss only decays, and grows by costs"
    now = np.arange(len(leaders))
    paid = costs[now, leaders].sum()
    changes = [k for k in range(1, len(leaders)) if leaders[k] != leaders[k - 1]]
    assert changes
    leads = sum(before[k, leaders[k - 1]] - before[k, leaders[k]] for k in changes)
    for m in range(EXPERT_COUNT):
        excess = (1.0 - decay) @ np.maximum(0.0, before[now, leaders] - before[:, m] / LIMIT)
        ends = before[0, m] / LIMIT + after[-1, leaders[-1]]
        bound = costs[:, m].sum() / LIMIT + leads + ends + excess
        assert paid <= bound * (1.0 + 1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_expert_leads_clearly_after_a_check(seed: int) -> None:
    world = draw_world(seed, requests=4000)
    policy = Adaptive.for_trace(world.capacities[0], world.trace)
    checks = 0
    for i, size, cost in zip(
        world.trace.keys.tolist(), world.trace.sizes.tolist(), world.trace.costs.tolist(), strict=True
    ):
        due = int(policy.head["next_check"][0])
        if not policy.arrive(i):
            policy.settle(i, size, cost)
        if int(policy.head["next_check"][0]) != due:
            checks += 1
            loss = policy.head["loss"][0, 0]
            decayed = EARLY_ADVANTAGE * np.exp(-policy.head["loss_time"][0] / EARLY_REQUESTS)
            advantage = decayed * policy.head["uncontested"][0, 0]
            # A second change within one check is not made: the best one of that moment leads.
            assert loss[int(policy.head["leader"][0])] * LIMIT <= (loss.min() + advantage) * (1.0 + 1e-12)
    assert checks > 4000 / CHECK_EVERY / 8
