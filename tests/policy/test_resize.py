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
