"""Shadows: whatever the batches, they decide and pay as policies that are asked one request at a time."""

from __future__ import annotations

import random

import pytest

from knapcache.cache.shadow import BATCH, Shadows
from knapcache.policy import registry

NAMES = ("lru", "gdsf-cost")


@pytest.mark.parametrize("many", [1, BATCH - 1, BATCH, 3 * BATCH + 7])
def test_as_one_by_one(many: int) -> None:
    rng = random.Random(many)
    shadows = Shadows(NAMES, 5000, 60)
    policies = {name: registry.find(name).build(5000, 60) for name in NAMES}
    spent = dict.fromkeys(("none", *NAMES), 0.0)
    for _ in range(many):
        i, size, cost = rng.randrange(60), rng.randrange(1, 900), rng.random()
        if rng.random() < 0.1:
            shadows.forget(i)
            for policy in policies.values():
                policy.forget(i)
            continue
        shadows.see(i, size, cost)
        spent["none"] += cost
        for name, policy in policies.items():
            if not policy.arrive(i):
                spent[name] += cost
                policy.settle(i, size, cost)
    assert shadows.spent() == pytest.approx(spent)
    assert shadows.spent() == shadows.spent()
    shadows.check()
    for name, policy in policies.items():
        assert shadows._policies[name].residents == policy.residents


def test_none_at_all() -> None:
    shadows = Shadows((), 10, 10)
    shadows.see(1, 1, 2.5)
    assert shadows.spent() == {"none": 2.5}
