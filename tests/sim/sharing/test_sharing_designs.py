"""Simulated designs against slow transcriptions of their definitions, and against a plain replay."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knapcache.errors import InvalidInput
from knapcache.policy import registry
from knapcache.policy.base import Policy
from knapcache.sim.replay import replay as plain_replay
from knapcache.sim.sharing import rebalanced
from knapcache.sim.sharing.designs import (
    DESIGNS,
    VARIANTS,
    SharingSettings,
    decider_of_key,
    find_design,
    parse_nursery,
    proxy_of_request,
)
from knapcache.sim.sharing.federated import replay_federated
from knapcache.sim.sharing.one_decider import replay_late
from knapcache.sim.sharing.outcome import shares
from knapcache.sim.synthetic import Workload
from knapcache.sim.trace import Trace

POLICIES = ("lru", "adaptive")  # each loop is compiled for every policy
_, WORKLOAD_TRACE = Workload(queries=60, rounds=3000, changes=2, one_hits=0.2).draw(np.random.default_rng(5))
INSTANT = SharingSettings(proxies=1, hits_late=0, settles_late=0, nursery=Fraction(0))


@st.composite
def small_traces(draw: st.DrawFn) -> Trace:
    """Draw traces in which a key has one cost but several sizes."""
    ids = draw(st.integers(1, 8))
    keys = draw(st.lists(st.integers(0, ids - 1), min_size=1, max_size=60))
    sizes = draw(st.lists(st.integers(1, 6), min_size=len(keys), max_size=len(keys)))
    costs = draw(st.lists(st.integers(0, 9), min_size=ids, max_size=ids))
    return Trace(np.array(keys), np.array(sizes), np.array([float(costs[i]) for i in keys]), ids)


def requests_of(trace: Trace) -> list[tuple[int, int, float]]:
    return list(zip(trace.keys.tolist(), trace.sizes.tolist(), trace.costs.tolist(), strict=True))


@dataclass
class Nursery:
    """Undecided answers in order of arrival: request number, key and size."""

    limit: int
    answers: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def used(self) -> int:
        return sum(size for _, _, size in self.answers)

    def add(self, request: int, key: int, size: int) -> None:
        if size > self.limit:
            return
        while self.used + size > self.limit:
            del self.answers[0]
        self.answers.append((request, key, size))

    def take(self, request: int) -> bool:
        """Remove the answer of a request; returns whether it was there."""
        before = len(self.answers)
        self.answers = [answer for answer in self.answers if answer[0] != request]
        return len(self.answers) < before

    def has(self, key: int) -> bool:
        return any(k == key for _, k, _ in self.answers)


def slow_late(
    policy: Policy, trace: Trace, hits_late: int, settles_late: int, nursery_limit: int, *, lost: bool, redecide: bool
) -> tuple[list[bool], int]:
    """One decider with an explicit queue of reports; returns hits and the largest total size."""
    nursery, hits, peak = Nursery(nursery_limit), [], 0
    queue: list[tuple[int, int]] = []
    requests = requests_of(trace)
    for k, (key, size, _) in enumerate(requests):
        hits.append(key in policy.residents or nursery.has(key))
        if not hits[-1]:
            nursery.add(k, key, size)
        peak = max(peak, policy.used + nursery.used)
        heapq.heappush(queue, (k + (hits_late if hits[-1] else settles_late), k))
        while queue and queue[0][0] <= k:
            _, origin = heapq.heappop(queue)
            key_then, size_then, cost_then = requests[origin]
            policy.arrive(key_then)
            if hits[origin]:
                continue
            was_there = nursery.take(origin)
            if key_then not in policy.residents or redecide:
                policy.settle(key_then, size_then, cost_then)
                if lost and not was_there:
                    policy.forget(key_then)
            peak = max(peak, policy.used + nursery.used)
    return hits, peak


@settings(max_examples=150, deadline=None)
@given(
    trace=small_traces(),
    name=st.sampled_from(POLICIES),
    capacity=st.integers(2, 20),
    lateness=st.tuples(st.integers(0, 12), st.integers(0, 12)),
    share=st.integers(0, 10),
    lost=st.booleans(),
    redecide=st.booleans(),
)
def test_one_decider_equals_its_transcription(
    trace: Trace, name: str, capacity: int, lateness: tuple[int, int], share: int, *, lost: bool, redecide: bool
) -> None:
    spec, nursery = registry.find(name), capacity * share // 20
    hits_late, settles_late = lateness
    found = replay_late(
        spec,
        capacity,
        trace,
        hits_late=hits_late,
        settles_late=settles_late,
        nursery=nursery,
        lost=lost,
        redecide=redecide,
    )
    slow = spec.build(capacity - nursery, trace.ids)
    hits, peak = slow_late(slow, trace, hits_late, settles_late, nursery, lost=lost, redecide=redecide)
    assert found.hits.tolist() == hits
    assert found.peak == peak <= capacity


def slow_federated(
    deciders: list[Policy], trace: Trace, proxies: list[int], hits_late: int, settles_late: int
) -> tuple[list[bool], int]:
    hits, peak = [], 0
    queue: list[tuple[int, int]] = []
    for k, (key, size, cost) in enumerate(requests_of(trace)):
        mine = deciders[proxies[k]]
        hits.append(any(key in decider.residents for decider in deciders))
        mine.arrive(key)
        if not hits[-1]:
            mine.settle(key, size, cost)
        peak = max(peak, sum(decider.used for decider in deciders))
        heapq.heappush(queue, (k + (hits_late if hits[-1] else settles_late), k))
        while queue and queue[0][0] <= k:
            _, origin = heapq.heappop(queue)
            for decider in deciders:
                if decider is not deciders[proxies[origin]]:
                    decider.arrive(int(trace.keys[origin]))
    return hits, peak


@settings(max_examples=100, deadline=None)
@given(
    trace=small_traces(),
    name=st.sampled_from(POLICIES),
    capacity=st.integers(4, 24),
    count=st.integers(1, 4),
    lateness=st.tuples(st.integers(0, 12), st.integers(0, 12)),
    seed=st.integers(0, 9),
)
def test_federated_deciders_equal_their_transcription(
    trace: Trace, name: str, capacity: int, count: int, lateness: tuple[int, int], seed: int
) -> None:
    spec = registry.find(name)
    proxies = np.random.default_rng(seed).integers(count, size=len(trace))
    hits_late, settles_late = lateness
    found = replay_federated(spec, capacity, trace, proxies, count, hits_late=hits_late, settles_late=settles_late)
    slow = [spec.build(share, trace.ids) for share in shares(capacity, count)]
    hits, peak = slow_federated(slow, trace, proxies.tolist(), hits_late, settles_late)
    assert found.hits.tolist() == hits
    assert found.peak == peak <= capacity


def slow_parts(deciders: list[Policy], trace: Trace, parts: list[int]) -> list[bool]:
    hits = []
    for part, (key, size, cost) in zip(parts, requests_of(trace), strict=True):
        hits.append(deciders[part].arrive(key))
        if not hits[-1]:
            deciders[part].settle(key, size, cost)
    return hits


@settings(max_examples=50, deadline=None)
@given(
    trace=small_traces(),
    name=st.sampled_from(POLICIES),
    design=st.sampled_from(["own", "hashed"]),
    capacity=st.integers(5, 24),
    count=st.integers(1, 5),
    seed=st.integers(0, 9),
)
def test_divided_designs_equal_their_transcription(
    trace: Trace, name: str, design: str, capacity: int, count: int, seed: int
) -> None:
    spec, chosen = registry.find(name), replace(INSTANT, proxies=count, seed=seed)
    found = find_design(design).simulate(spec, capacity, trace, chosen)
    parts = (proxy_of_request(trace, chosen) if design == "own" else decider_of_key(trace, chosen)[trace.keys]).tolist()
    slow = [spec.build(share, trace.ids) for share in shares(capacity, count)]
    assert found.hits.tolist() == slow_parts(slow, trace, parts)
    assert found.peak <= capacity


def slow_rebalanced(deciders: list[Policy], trace: Trace, decider_of: list[int], capacity: int) -> list[bool]:
    """The definition of `rebalanced`, one key at a time."""
    hits: list[bool] = []
    requests, density = dict.fromkeys(range(trace.ids), 0.0), dict.fromkeys(range(trace.ids), 0.0)
    last: dict[int, tuple[int, float]] = {}
    count = len(deciders)
    for k, (key, size, cost) in enumerate(requests_of(trace)):
        one = Trace(np.array([key]), np.array([size]), np.array([cost]), trace.ids)
        hits += slow_parts(deciders, one, [decider_of[key]])
        requests[key] += 1.0
        last[key] = (size, cost)
        if (k + 1) % rebalanced.REBALANCE_EVERY and k + 1 < len(trace):
            continue
        for i, (last_size, last_cost) in last.items():
            density[i] = requests[i] * last_cost / last_size
        left, above = float(capacity), [0.0] * count
        for i in sorted(last, key=lambda i: (-density[i], i)):
            if last[i][0] > left or density[i] == 0.0:
                break
            left -= last[i][0]
            above[decider_of[i]] += last[i][0]
        if count > 1:
            slow_move(deciders, [size_above + left / count for size_above in above], density)
        for i in requests:
            requests[i] *= rebalanced.DECAY
    return hits


def slow_move(deciders: list[Policy], targets: list[float], density: dict[int, float]) -> None:
    total = sum(decider.capacity for decider in deciders)
    wanted = [
        max(1, int(np.floor(decider.capacity + rebalanced.REACTION * (target - decider.capacity))))
        for decider, target in zip(deciders, targets, strict=True)
    ]
    for decider, share in zip(deciders, wanted, strict=True):
        if share < decider.capacity:
            for i in sorted(decider.residents, key=lambda i: (density[i], i)):
                if decider.used > share:
                    decider.forget(i)
            decider.resize(share)
    for decider, share in zip(deciders, wanted, strict=True):
        free = total - sum(other.capacity for other in deciders)
        if share > decider.capacity:
            decider.resize(decider.capacity + min(free, share - decider.capacity))
    deciders[0].resize(deciders[0].capacity + total - sum(decider.capacity for decider in deciders))


@settings(max_examples=60, deadline=None)
@given(
    trace=small_traces(),
    name=st.sampled_from(POLICIES),
    capacity=st.integers(5, 40),
    count=st.integers(1, 5),
    every=st.integers(1, 9),
    seed=st.integers(0, 9),
)
def test_rebalanced_deciders_equal_their_transcription(
    trace: Trace, name: str, capacity: int, count: int, every: int, seed: int
) -> None:
    spec = registry.find(name)
    decider_of = np.random.default_rng(seed).integers(count, size=trace.ids)
    slow = [spec.build(share, trace.ids) for share in shares(capacity, count)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rebalanced, "REBALANCE_EVERY", every)
        found = rebalanced.replay_rebalanced(spec, capacity, trace, decider_of, count)
        hits = slow_rebalanced(slow, trace, decider_of.tolist(), capacity)
    assert found.hits.tolist() == hits
    assert found.peak <= capacity
    assert sum(decider.capacity for decider in slow) == capacity


ALL = [*DESIGNS, *VARIANTS]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("design", [*DESIGNS, "nursery-redecide"])  # `nursery-lost` without a nursery loses everything
def test_one_proxy_without_lateness_equals_a_plain_replay(design: str, policy: str) -> None:
    spec, capacity = registry.find(policy), WORKLOAD_TRACE.working_set // 5
    plain = plain_replay(spec.build_for(capacity, WORKLOAD_TRACE, seed=0), WORKLOAD_TRACE)
    found = find_design(design).simulate(spec, capacity, WORKLOAD_TRACE, INSTANT)
    assert (found.hits == plain.hits).all()
    assert found.peak == plain.peak


@pytest.mark.parametrize("design", ["own", "hashed", "rebalanced", "federated"])
def test_one_proxy_is_never_late_for_itself(design: str) -> None:
    chosen = SharingSettings(proxies=1, hits_late=500, settles_late=50)
    spec, capacity = registry.find("lru"), WORKLOAD_TRACE.working_set // 5
    plain = plain_replay(spec.build_for(capacity, WORKLOAD_TRACE, seed=0), WORKLOAD_TRACE)
    assert (find_design(design).simulate(spec, capacity, WORKLOAD_TRACE, chosen).hits == plain.hits).all()


@pytest.mark.parametrize("design", ALL)
def test_every_design_stays_within_the_capacity(design: str) -> None:
    chosen = SharingSettings(proxies=7, hits_late=30, settles_late=20, nursery=Fraction(1, 5))
    capacity = WORKLOAD_TRACE.working_set // 8
    found = find_design(design).simulate(registry.find("adaptive"), capacity, WORKLOAD_TRACE, chosen)
    assert 0 < found.peak <= capacity
    assert 0 < found.hits.sum() < len(WORKLOAD_TRACE)


def test_an_undecided_answer_is_read_from_the_nursery() -> None:
    trace = Trace(np.zeros(6, int), np.ones(6, int), np.ones(6), 1)
    lateness: Any = {"hits_late": 0, "settles_late": 3}
    spec = registry.find("lru")
    without = replay_late(spec, 100, trace, **lateness)
    assert without.hits.tolist() == [False, False, False, False, True, True]
    assert replay_late(spec, 100, trace, nursery=2, **lateness).hits.tolist() == [False, True, True, True, True, True]


def test_displaced_answers_are_held_or_lost() -> None:
    """Keys 0 and 1 do not fit into the nursery together. Key 0 is displaced before it is decided."""
    trace = Trace(np.array([0, 1, 0, 2, 0]), np.array([2, 2, 2, 1, 2]), np.ones(5), 3)
    options: Any = {"hits_late": 0, "settles_late": 2, "nursery": 3}
    spec = registry.find("lru")
    assert replay_late(spec, 100, trace, **options).hits.tolist() == [False, False, False, False, True]
    never = replay_late(spec, 100, Trace(trace.keys, trace.sizes + 3, trace.costs, 3), lost=True, **options)
    assert not never.hits.any()  # larger than the nursery


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SharingSettings(proxies=0), "proxies must be 1 to 1000, not 0"),
        (lambda: SharingSettings(hits_late=-1), "hits_late must be at least 0 requests, not -1"),
        (lambda: SharingSettings(nursery=Fraction(1)), "nursery must be from 0 % to less than 100 %, not 100 %"),
        (lambda: SharingSettings(seed=-1), "seed must not be negative, not -1"),
        (lambda: parse_nursery("2MB"), "nursery '2MB' cannot be read; it must be a share of the capacity"),
        (lambda: find_design("hased"), "unknown design 'hased': did you mean hashed?"),
        (lambda: find_design("?"), "unknown design '?': it must be one of own, hashed"),
        (lambda: shares(3, 4), "a capacity of 3 cannot be divided among 4 proxies"),
    ],
)
def test_bad_settings(build: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        build()
    assert message in str(error.value)


def test_nursery_shares() -> None:
    assert list(map(parse_nursery, ("2%", "0", "0.5 %"))) == [Fraction(1, 50), Fraction(0), Fraction(1, 200)]
