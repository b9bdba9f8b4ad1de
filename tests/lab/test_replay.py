"""The compiled loop gives the same result as a plain loop over the same policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from knapcache.errors import InvalidInput
from knapcache.lab.replay import replay
from knapcache.lab.synthetic import Workload
from knapcache.lab.trace import Trace
from knapcache.policy import registry
from knapcache.policy.base import Policy

WORKLOAD = Workload(queries=25, rounds=900, changes=2, one_hits=0.1)
QUERIES, TRACE = WORKLOAD.draw(np.random.default_rng(11))
NAMES = ["vsocb", "vsocb-lazy", "offline", "berkeley-multi", "lru", "gdsf-cost"]


def build(name: str, capacity: int = 30) -> Policy:
    return registry.find(name).build(capacity, TRACE.ids)


def naive(
    policy: Policy, trace: Trace, id_values: Any, phases: list[int]
) -> tuple[list[bool], list[float], int, float]:
    """Replay through the policy's methods; returns hits, value before each request, peak size and miss cost."""
    hits, values, peak, cost = [], [], 0, 0.0
    for k in range(len(trace)):
        phase = max(p for p in range(len(phases)) if phases[p] <= k)
        values.append(sum(id_values[phase][i] for i in policy.residents if i < len(id_values[phase])))
        hits.append(policy.arrive(int(trace.keys[k])))
        if not hits[-1]:
            policy.settle(int(trace.keys[k]), int(trace.sizes[k]), float(trace.costs[k]))
            cost += trace.costs[k]
        peak = max(peak, policy.used)
    return hits, values, peak, cost


@pytest.mark.parametrize("name", NAMES)
def test_against_a_plain_loop(name: str) -> None:
    slow, fast = build(name), build(name)
    hits, values, peak, cost = naive(slow, TRACE, QUERIES.values, WORKLOAD.phases)
    run = replay(fast, TRACE, values=QUERIES.values, phases=WORKLOAD.phases)
    assert run.hits.tolist() == hits
    assert run.resident_values == pytest.approx(np.array(values))
    assert run.peak == peak
    assert run.miss_cost == pytest.approx(cost)
    assert run.oracle_calls == slow.oracle_calls
    assert run.seconds > 0.0
    assert fast.residents == slow.residents
    fast.check()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("piece", [1, 7, 300, 900])
def test_pieces_change_nothing(name: str, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = replay(build(name), TRACE, values=QUERIES.values, phases=WORKLOAD.phases)
    monkeypatch.setattr("knapcache.lab.replay.PIECE", piece)
    steps: list[int] = []
    cut = replay(build(name), TRACE, values=QUERIES.values, phases=WORKLOAD.phases, progress=steps.append)
    assert (cut.hits == whole.hits).all()
    assert cut.resident_values is not None
    assert (cut.resident_values == whole.resident_values).all()
    assert (cut.peak, cut.oracle_calls, cut.miss_cost) == (whole.peak, whole.oracle_calls, whole.miss_cost)
    assert sum(steps) == len(TRACE)
    assert max(steps) <= piece
    assert len(steps) >= len(TRACE) / piece


def test_a_second_replay_continues_the_first() -> None:
    halves = [Trace(TRACE.keys[s], TRACE.sizes[s], TRACE.costs[s], TRACE.ids) for s in (slice(400), slice(400, None))]
    once, twice = build("vsocb"), build("vsocb")
    hits = np.concatenate([replay(twice, half).hits for half in halves])
    assert (replay(once, TRACE).hits == hits).all()


def test_without_values_there_are_no_resident_values() -> None:
    assert replay(build("lru"), TRACE).resident_values is None


def test_the_value_is_of_the_cache_before_the_request() -> None:
    """E5: the first request finds an empty cache."""
    trace = Trace(np.array([0, 0, 1, 1]), np.array([1, 1, 1, 1]), np.ones(4), 2)
    run = replay(registry.find("lru").build(1, 2), trace, values=np.array([10.0, 1.0]))
    assert run.resident_values is not None
    assert run.resident_values.tolist() == [0.0, 10.0, 10.0, 1.0]
    assert run.hits.tolist() == [False, True, False, True]
    assert (run.miss_cost, run.peak) == (2.0, 1)


def test_an_empty_trace() -> None:
    nothing = Trace(np.empty(0, int), np.empty(0, int), np.empty(0), 3)
    run = replay(registry.find("lru").build(5, 3), nothing, values=np.ones(3))
    assert (len(run.hits), run.peak, run.miss_cost) == (0, 0, 0.0)


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        (10, {}, f"the trace has {TRACE.ids} ids, the policy only 10"),
        (TRACE.ids, {"values": np.ones((2, 3))}, r"1 rows .*\(2, 3\)"),
        (TRACE.ids, {"values": np.ones((1, 3)), "phases": (0, 5)}, "2 rows"),
        (TRACE.ids, {"values": np.ones(TRACE.ids + 1)}, "at most"),
    ],
)
def test_bad_arguments(ids: int, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        replay(registry.find("lru").build(5, ids), TRACE, **options)
