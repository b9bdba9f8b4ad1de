"""Policies whose capacity may change."""

from __future__ import annotations

import numpy as np
import pytest

from knapcache.errors import InvalidInput
from knapcache.policy import registry


@pytest.mark.parametrize("name", [name for name, spec in registry.SPECS.items() if spec.online])
def test_resized_policies_keep_their_invariants(name: str) -> None:
    policy = registry.find(name).build(40, 30)
    policy.compiled = False
    if not policy.resizable:
        with pytest.raises(InvalidInput, match="cannot change its capacity"):
            policy.resize(50)
        return
    rng = np.random.default_rng(1)
    for _ in range(300):
        i = int(rng.integers(30))
        if not policy.arrive(i):
            policy.settle(i, 1 + i % 7, 1.0 + i % 3)
        if rng.random() < 0.2:
            capacity = int(rng.integers(5, 60))
            for resident in sorted(policy.residents):
                if policy.used > capacity:
                    policy.forget(resident)
            policy.resize(capacity)
        policy.check()
    with pytest.raises(InvalidInput, match="capacity must be at least"):
        policy.resize(policy.used - 1)


def test_the_shadows_of_adaptive_have_the_capacity_of_the_cache() -> None:
    policy = registry.find("adaptive").build(1000, 200)
    policy.compiled = False
    for i in range(95):  # fills the cache without an eviction
        policy.arrive(i)
        policy.settle(i, 10, 1.0)
    for i in range(90):
        policy.forget(i)
    policy.resize(100)
    policy.check()
    for i in range(100, 140):
        policy.arrive(i)
        policy.settle(i, 10, 1.0)
        policy.check()
    assert policy.head["shadow_capacity"][0] == 100
    policy.resize(250)
    assert policy.head["shadow_capacity"][0] == 250
