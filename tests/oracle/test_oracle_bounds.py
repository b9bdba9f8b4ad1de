"""The estimates of how many items have a small reduced cost."""

from __future__ import annotations

import numpy as np
import pytest

from knapcache.oracle.bounds import OCTAVES, SAMPLE, expected_count, sample_costs, threshold_for, wider_threshold
from knapcache.oracle.groups import reduced_cost

PRICE, BOUND = 0.7, 100.0


@pytest.mark.parametrize("seed", range(3))
def test_the_sample_of_few_items_is_exact_within_a_factor_of_two(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 1000, SAMPLE)
    values = PRICE * sizes + rng.choice([-1.0, 1.0], SAMPLE) * np.exp(rng.uniform(-20.0, 6.0, SAMPLE))
    values = np.abs(values)
    values[:5] = PRICE * sizes[:5]
    density = np.where(np.arange(SAMPLE) % 7 == 0, -1, 1)
    useful = density >= 0
    costs = np.maximum([reduced_cost(w, s, PRICE) for w, s in zip(values, sizes, strict=True)], 0.0)[useful]
    below = sample_costs(values, sizes, density, PRICE, BOUND)
    assert below[0] == (costs < BOUND).sum() > SAMPLE // 2
    for threshold in BOUND * np.exp(rng.uniform(-18.0, 0.0, 200)):
        assert (costs < threshold).sum() <= expected_count(below, BOUND, threshold) <= (costs < 2.0 * threshold).sum()
    assert expected_count(below, BOUND, 2.0 * BOUND) == below[0]
    for wanted in (8, 100, 1000):
        threshold = threshold_for(below, BOUND, wanted)
        assert (costs < threshold).sum() >= wanted
        assert (costs < threshold / 2.0).sum() < wanted
        wider = wider_threshold(below, BOUND, threshold)
        assert wider >= 2.0 * threshold
        assert (costs < wider).sum() >= min(2 * wanted, below[0])
    assert threshold_for(below, BOUND, SAMPLE) == BOUND
    assert below[OCTAVES] == (costs == 0.0).sum()
