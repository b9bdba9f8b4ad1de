"""The Python form of `adaptive` agrees with its compiled form in states that short runs do not reach."""

from __future__ import annotations

import warnings

import numpy as np

from knapcache.policy.adaptive.policy import Adaptive
from knapcache.policy.adaptive.tournament import ALL_HASHES, SLOTS
from knapcache.testing.policies import state_bytes


def test_plain_kernels_halve_the_sample_and_follow_a_new_leader_like_compiled_ones() -> None:
    rng = np.random.default_rng(3)
    ids = 3 * SLOTS
    plain, compiled = Adaptive(10**9, ids), Adaptive(10**9, ids)
    compiled.head["filling"], compiled.head["shadow_capacity"] = 0, 10**9  # the shadows hold all answers
    for i in range(SLOTS - 1):  # up to the state in which the next new ids halve the sample
        compiled.arrive(i)
        compiled.settle(i, int(rng.integers(1, 50)), float(rng.exponential()))
    compiled.head["uncontested"] = 0.0  # HAZARD has no advantage
    plain.head[:], plain.rows[:] = compiled.head, compiled.rows
    plain.compiled = False
    compiled.head["next_check"] = plain.head["next_check"] = 0
    compiled.head["loss"][0, :, 5] = plain.head["loss"][0, :, 5] = -1.0  # makes expert 5 the leader
    with warnings.catch_warnings(action="error"):  # 64-bit hashes wrap around; NumPy's scalars would warn
        for step in range(40):
            i = int(rng.integers(ids)) if step % 2 else SLOTS + step
            size, cost = int(rng.integers(1, 50)), float(rng.exponential())
            outcomes = [policy.arrive(i) or policy.settle(i, size, cost) for policy in (plain, compiled)]
            assert outcomes[0] == outcomes[1]
            assert state_bytes(plain) == state_bytes(compiled)
    assert plain.head["hash_limit"][0] < ALL_HASHES
    assert plain.head["leader"][0] == 5
    plain.check()
