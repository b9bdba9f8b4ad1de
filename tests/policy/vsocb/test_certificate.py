"""Skipping certified Oracle calls changes no decision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from knapcache.estimate.statistics import Confidence
from knapcache.lab.replay import replay
from knapcache.lab.trace import Trace
from knapcache.oracle import solve
from knapcache.oracle.skip import harmless, slack
from knapcache.policy.vsocb.policy import VSOCB, LazyVSOCB

IDS = 25


def random_trace(seed: int, length: int, *, ties: bool) -> Trace:
    """Zipf traffic; with `ties`, costs and sizes are small whole numbers, so that many sets are worth the same."""
    rng = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, IDS + 1) ** rng.uniform(0.3, 1.3)
    keys = rng.choice(IDS, length, p=weights / weights.sum())
    sizes = rng.integers(1, 4 if ties else 11, IDS)
    if ties:
        costs = rng.integers(1, 3, IDS)[keys].astype(float)
    else:
        costs = rng.uniform(1.0, 2.0, IDS)[keys] * rng.uniform(0.5, 1.5, length)
    size = sizes[keys]
    if rng.random() < 0.2:  # sizes change between requests
        size = size + (rng.random(length) < 0.02)
    return Trace(keys, size, costs, IDS)


CONFIDENCES: list[dict[str, Any]] = [
    {"confidence": Confidence(gamma=0.0)},
    {"confidence": Confidence(gamma=0.0, T=500, N=IDS, c1=0.1, c2=4.0)},
    {"confidence": Confidence(gamma=0.05, gamma_arrival=0.0, T=500, N=IDS, c1=0.1, c2=4.0)},
    {"confidence": Confidence(gamma=0.3, gamma_arrival=0.0)},
    {"confidence": Confidence(gamma=0.02)},
    {"confidence": Confidence(gamma=0.0), "beta": 0.1},
]


def decisions(policy: VSOCB, trace: Trace) -> tuple[list[bool], list[bool]]:
    hits = replay(policy, trace).hits.tolist()
    policy.check()
    return hits, policy.rows["recommended"].tolist()


def compare(seeds: range, length: int) -> tuple[int, int, list[int]]:
    traces, calls, skipped = 0, 0, [0] * len(CONFIDENCES)
    for seed in seeds:
        rng = np.random.default_rng([seed, 1])
        trace = random_trace(seed, length, ties=seed % 2 == 0)
        kind = LazyVSOCB if seed % 3 == 0 else VSOCB
        which = int(rng.choice(len(CONFIDENCES), p=[0.4, 0.2, 0.2, 0.1, 0.05, 0.05]))
        options = CONFIDENCES[which] | {"alpha": float(rng.choice([0.01, 0.1, 0.5]))}
        capacity = int(rng.integers(3, 90))
        skipping = kind(capacity, IDS, **options)
        calling = kind(capacity, IDS, **options, skip=False)
        assert decisions(skipping, trace) == decisions(calling, trace), seed
        assert skipping.oracle_calls + skipping.oracle_calls_skipped == calling.oracle_calls
        assert calling.oracle_calls_skipped == 0
        traces, calls, skipped[which] = (
            traces + 1,
            calls + calling.oracle_calls,
            skipped[which] + (skipping.oracle_calls_skipped),
        )
    return traces, calls, skipped


def test_skipping_and_calling_give_the_same_decisions() -> None:
    traces, calls, skipped = compare(range(1000), 200)
    assert traces == 1000
    assert sum(skipped) > calls // 5
    assert min(skipped[:3]) > 0
    assert skipped[3] > 0  # equal costs for each query: no radius, so values are static
    assert max(skipped[4:]) == 0  # values drift, or the Oracle is approximate


@pytest.mark.long
def test_skipping_and_calling_give_the_same_decisions_on_many_traces() -> None:
    compare(range(10_000, 30_000), 600)


def test_harmless_changes_do_not_alter_the_optimum() -> None:
    rng = np.random.default_rng(1)
    harmless_ones = altered = 0
    for _ in range(3000):
        n = int(rng.integers(2, 12))
        values, sizes = rng.integers(1, 30, n).astype(float), rng.integers(1, 12, n)
        capacity = int(rng.integers(1, sizes.sum() + 1))
        found = solve(values, sizes, capacity)
        G = slack(values, sizes, capacity, found.chosen, found.price)
        after = values.copy()
        fine = True
        for i in rng.choice(n, int(rng.integers(1, n + 1)), replace=False):
            after[i] = float(rng.integers(0, 40))
            fine &= harmless(bool(found.chosen[i]), values[i], after[i], sizes[i], found.price, G)
        best = solve(after, sizes, capacity).value
        if fine:
            assert after[found.chosen].sum() == best
        harmless_ones += fine
        altered += after[found.chosen].sum() < best
    assert harmless_ones > 100
    assert altered > 1000
