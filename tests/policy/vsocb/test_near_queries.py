"""Oracle calls on the queries near the price decide like calls on all queries; ids are recycled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from knapcache.estimate.statistics import Confidence, relative_value
from knapcache.lab.replay import replay
from knapcache.lab.trace import Trace
from knapcache.oracle import solve
from knapcache.policy.vsocb.policy import VSOCB, LazyVSOCB

IDS = 1600  # more than MIN_NEAR, so that queries are frozen
SAME_VALUE = 3e-12


def random_trace(seed: int, length: int, *, ties: bool = False, noise: float = 0.3, ids: int = IDS) -> Trace:
    """Each key once, then Zipf traffic; with `ties`, costs and sizes are small whole numbers."""
    rng = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, ids + 1) ** 0.8
    keys = np.concatenate([rng.permutation(ids), rng.choice(ids, length, p=weights / weights.sum())])
    sizes = rng.integers(1, 5, ids) if ties else rng.lognormal(6.0, 1.0, ids).astype(np.int64) + 1
    costs = (rng.integers(1, 4, ids) if ties else rng.lognormal(0.0, 1.0, ids))[keys].astype(float)
    size = sizes[keys]
    if seed % 2:  # sizes change between requests
        size = size + (rng.random(len(keys)) < 0.02)
    return Trace(keys, size, costs * np.exp(noise * rng.standard_normal(len(keys))), ids)


CASES: list[tuple[type[VSOCB], dict[str, Any], float, int]] = [
    (VSOCB, {}, 0.3, 10),
    (VSOCB, {"alpha": 0.1, "skip": False}, 0.0, 2),
    (VSOCB, {"confidence": Confidence(gamma=0.05, gamma_arrival=0.0, T=5000, N=IDS, c1=0.001, c2=20.0)}, 0.3, 10),
    (LazyVSOCB, {}, 0.3, 10),
    (LazyVSOCB, {}, 0.0, 30),
    (LazyVSOCB, {"confidence": Confidence(gamma=0.05, gamma_arrival=0.0, clip=False)}, 0.5, 3),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_warm_calls_and_calls_on_all_queries_give_the_same_decisions(case: int) -> None:
    kind, options, noise, percent = CASES[case]
    trace = random_trace(case, 1200, noise=noise)
    capacity = int(trace.sizes[:IDS].sum()) * percent // 100
    warm, full = kind(capacity, IDS, **options), kind(capacity, IDS, **options, warm=False)
    assert replay(warm, trace).hits.tolist() == replay(full, trace).hits.tolist()
    warm.check()
    full.check()
    assert warm.recommended == full.recommended
    assert warm.oracle_calls == full.oracle_calls
    assert int(full.head["all_solved"][0]) == full.oracle_calls
    assert int(warm.head["all_solved"][0]) < 0.5 * warm.oracle_calls


@pytest.mark.parametrize("kind", [VSOCB, LazyVSOCB])
@pytest.mark.parametrize("ties", [False, True])
def test_each_call_finds_a_set_worth_as_much_as_a_solution_from_scratch(kind: type[VSOCB], ties: bool) -> None:
    trace = random_trace(7, 700, ties=ties, noise=0.0 if ties else 0.3)
    policy = kind(int(trace.sizes[:IDS].sum()) // 8, IDS, skip=False)
    compared = 0
    for k in range(len(trace)):
        key, calls = int(trace.keys[k]), policy.oracle_calls
        if policy.arrive(key):
            continue
        policy.settle(key, int(trace.sizes[k]), float(trace.costs[k]))
        if k > IDS and policy.oracle_calls > calls and k % 3 == 0:
            seen = np.flatnonzero(policy.rows["misses"] > 0)
            values = np.array([relative_value(policy.head, policy.rows, i) for i in seen.tolist()])
            best = solve(values, policy.rows["entry_size"][seen], policy.capacity).value
            assert values[policy.rows["recommended"][seen]].sum() >= best * (1.0 - SAME_VALUE)
            compared += 1
    policy.check()
    assert compared > 30
    assert int(policy.head["all_solved"][0]) < 0.5 * policy.oracle_calls


def test_queries_of_value_0_are_placed_as_in_calls_on_all_queries() -> None:
    """With a least cost of 0 the lower bound of many costs is 0: such queries fill the space that is left."""
    trace = random_trace(4, 1200)
    trace = Trace(trace.keys, trace.sizes, np.where(trace.keys == trace.keys[0], 0.0, trace.costs), IDS)
    capacity = int(trace.sizes[:IDS].sum()) // 10
    warm, full = LazyVSOCB(capacity, IDS), LazyVSOCB(capacity, IDS, warm=False)
    assert replay(warm, trace).hits.tolist() == replay(full, trace).hits.tolist()
    assert warm.recommended == full.recommended
    assert int(warm.head["least_unproven"][0]) < capacity
    assert int(warm.head["all_solved"][0]) < warm.oracle_calls


@pytest.mark.parametrize("kind", [VSOCB, LazyVSOCB])
def test_recycled_ids_start_without_statistics(kind: type[VSOCB]) -> None:
    trace = random_trace(5, 6000, ids=4000)
    policy = kind.for_trace(int(trace.sizes[:4000].sum()) // 50, trace, remember=IDS)
    assert policy.ids == IDS
    hits, ids, keys = 0, dict[int, int](), list[int]()
    for key, size, cost in zip(trace.keys.tolist(), trace.sizes.tolist(), trace.costs.tolist(), strict=True):
        if key not in ids:
            if len(keys) < IDS:
                ids[key] = len(keys)
                keys.append(key)
            else:
                i = policy.recycle()[0]
                del ids[keys[i]]
                ids[key], keys[i] = i, key
        if policy.arrive(ids[key]):
            hits += 1
        else:
            policy.settle(ids[key], size, cost)
    policy.check()
    assert hits > 1000
    assert int(policy.head["forgotten"][0]) > 0
    residents, recommended = policy.residents, policy.recommended
    i, evicted = policy.recycle()
    policy.check()
    assert not evicted
    assert i not in residents | recommended
    assert [int(policy.rows[name][i]) for name in ("arrivals", "misses", "entry_size", "misses_at_call")] == [0] * 4


def test_a_table_full_of_residents_gives_up_one_of_them() -> None:
    policy = LazyVSOCB(100, 4)
    for i in range(4):
        policy.arrive(i)
        policy.settle(i, 2, 1.0)
    assert len(policy.residents) == 4
    i, evicted = policy.recycle()
    policy.check()
    assert evicted
    assert policy.residents == {0, 1, 2, 3} - {i}


def test_a_lost_answer_calls_no_oracle_while_everything_fits() -> None:
    policy = VSOCB(1000, 20)
    for _ in range(6):
        for i in range(20):
            if not policy.arrive(i):
                policy.settle(i, 3, 1.0)
            policy.forget(i)
    calls = policy.oracle_calls
    for i in range(20):
        policy.arrive(i)
        assert policy.settle(i, 3, 2.0).admit
    policy.check()
    assert policy.oracle_calls == calls
    assert policy.oracle_calls_skipped > 0
