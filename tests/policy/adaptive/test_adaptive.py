"""Adaptive against plain models of its parts, and on the traffic it was designed for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from knapcache.errors import InvalidInput
from knapcache.estimate.costs import COSTS_HEAD, COSTS_ROW
from knapcache.estimate.discount import HALF_LIVES
from knapcache.lab.replay import replay
from knapcache.lab.trace import Floats, Ints, Trace
from knapcache.lab.traffic import answers, zipf
from knapcache.policy import registry
from knapcache.policy.adaptive.experts import (
    EXPERT_COUNT,
    GREEDY_DUAL,
    GREEDY_DUAL_SIZE,
    HAZARD,
    RECENCY,
    admits_always,
    key_of,
)
from knapcache.policy.adaptive.policy import Adaptive
from knapcache.policy.adaptive.tournament import (
    ALL_HASHES,
    CLEAR_LEAD,
    EARLY_REQUESTS,
    FILLING_WEIGHT,
    PREFERENCE,
    REFRESHES,
    SLOTS,
    WINDOWS,
    grow_loss_weight,
    leader_after,
)


def trace_of(keys: Ints, sizes: Ints, costs: Floats) -> Trace:
    return Trace(keys, sizes[keys], costs[keys], len(sizes))


@dataclass
class PlainExpert:
    """An expert by the definition in experts.py: lists and sums; only the counts are incremental."""

    expert: int
    capacity: int
    costs: Floats
    held: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Size and key."""
    recent: dict[int, tuple[float, int]] = field(default_factory=dict)
    clock: float = 0.0
    clock_at_request: dict[int, float] = field(default_factory=dict)
    loss: float = 0.0

    def request(self, t: int, i: int, size: int, return_probability: float, *, contested: bool) -> None:
        half_life = HALF_LIVES[self.expert if self.expert < GREEDY_DUAL else 0]
        before, last = self.recent.get(i, (0.0, 0))
        count = float(np.float32(np.float32(before) * 2.0 ** ((last - t) / half_life) + 1.0))
        self.recent[i] = (count, t)
        density = count * return_probability * self.costs[i] / size
        if self.expert == RECENCY:
            key: float = t
        elif self.expert == GREEDY_DUAL_SIZE:
            key = self.clock_at_request[i] + self.costs[i] / size
        elif self.expert == GREEDY_DUAL:
            key = self.clock_at_request[i] + density
        else:
            key = math.log2(density) + t / half_life
        if i in self.held:
            self.held[i] = (self.held[i][0], key)
            return
        if contested:
            self.loss += self.costs[i] * (1.0 + 1.0 / WINDOWS[0]) ** t
        victims = self.victims(size)
        if size > self.capacity or not self.admits(victims, key):
            return
        for j in victims:
            if self.expert in (GREEDY_DUAL, GREEDY_DUAL_SIZE):
                self.clock = max(self.clock, self.held[j][1])
            del self.held[j]
        self.held[i] = (size, key)

    def victims(self, size: int) -> list[int]:
        free = self.capacity - sum(s for s, _ in self.held.values())
        victims = []
        for j in sorted(self.held, key=lambda j: self.held[j][1]):
            if free >= size:
                break
            victims.append(j)
            free += self.held[j][0]
        return victims

    def admits(self, victims: list[int], key: float) -> bool:
        if admits_always(self.expert) or all(self.held[j][1] <= key for j in victims):
            return True
        if self.expert == GREEDY_DUAL:
            self.clock = max(self.clock, key)
        return False


class PlainReturnProbability:
    """The formula of return_probability.py, recounted for every request."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[int, int]] = {}
        """Requests and size class."""

    def request(self, i: int, size: int) -> float:
        n = self.seen.get(i, (0, 0))[0] + 1
        self.seen[i] = (n, int(math.log2(size)))
        if n > 1:
            return 1.0
        returned = [b for n, b in self.seen.values() if n >= 2]
        if not returned:
            return 1.0
        b = self.seen[i][1]
        r = len(returned) / len(self.seen)
        again = max(r, sum(n >= 3 for n, _ in self.seen.values()) / len(returned))
        seen = sum(c == b for _, c in self.seen.values())
        return (returned.count(b) + 20.0 * r) / (seen + 20.0) / again


@pytest.mark.parametrize("seed", range(4))
def test_every_shadow_holds_and_loses_what_its_expert_would(seed: int) -> None:
    """All experts but HAZARD, whose keys change with age: what its shadow holds is taken as given."""
    rng = np.random.default_rng(seed)
    ids, capacity = 40, 300
    sizes, costs = rng.integers(1, 60, ids), rng.uniform(0.5, 4.0, ids)
    trace = trace_of(zipf(rng, 600, ids, 0.7), sizes, costs)
    policy = Adaptive(capacity, ids)
    plain = [PlainExpert(m, 0, costs) for m in range(EXPERT_COUNT) if m != HAZARD]
    return_probability = PlainReturnProbability()
    filling = True
    for t, (i, size, cost) in enumerate(zip(trace.keys.tolist(), trace.sizes.tolist(), trace.costs, strict=True), 1):
        for expert in plain:
            expert.clock_at_request[i] = plain[GREEDY_DUAL if expert.expert != GREEDY_DUAL_SIZE else -2].clock
            expert.capacity = max(1, expert.capacity, policy.used // 2) if filling else capacity
        probability = return_probability.request(i, size)
        head = policy.head[0]
        held = head["slot_id"][np.flatnonzero(head["shadow_position"][:, HAZARD])].tolist()
        contested = i in held or any(i in expert.held for expert in plain)
        was_full = policy.used + size > capacity
        hit = policy.arrive(i)
        if not hit:
            policy.settle(i, size, float(cost))
        for expert in plain:
            expert.request(t, i, size, probability, contested=contested)
        if filling and was_full and not hit:
            filling = False
            for expert in plain:
                expert.loss *= FILLING_WEIGHT
        for expert in plain:
            slots = np.flatnonzero(head["shadow_position"][:, expert.expert])
            assert set(head["slot_id"][slots].tolist()) == set(expert.held), (t, expert.expert)
    policy.check()
    assert not filling
    # The plain model does not decay the counts of return_probability.py, hence the tolerance.
    losses = policy.head["loss"][0, 0, [expert.expert for expert in plain]]
    theirs = np.array([expert.loss for expert in plain])
    assert np.allclose(losses / losses.sum(), theirs / theirs.sum(), rtol=1e-6)


def test_all_keys_of_the_hazard_shadow_are_computed_again_within_a_turn() -> None:
    """A key is that of some time in the last n / REFRESHES requests, of n in the shadow."""
    rng = np.random.default_rng(11)
    ids = 60
    sizes, costs = answers(rng, ids, with_size=True)
    policy = Adaptive(int(sizes.sum() * 0.3), ids)
    for i in zipf(rng, 3000, ids, 0.7).tolist():
        if not policy.arrive(i):
            policy.settle(i, int(sizes[i]), float(costs[i]))
    head, now = policy.head[0], int(policy.head["t"][0])
    n = int(head["shadow_count"][HAZARD])
    assert n > 4 * REFRESHES
    for k in range(n):
        i = int(head["slot_id"][head["shadow_slot"][HAZARD, k]])
        since = max(int(policy.rows["last"][i]), now - 2 * n)
        times = range(since, now + 1)
        nearest = min(
            abs(
                key_of(policy.head, policy.rows, i, HAZARD, t)
                - head["slot_key"][head["shadow_slot"][HAZARD, k], HAZARD]
            )
            for t in times
        )
        assert nearest < 0.2, "the index itself changes a little between two computations"


def test_the_live_cache_follows_its_leader() -> None:
    """A shadow that sees every request and the live cache that follows it hold nearly the same answers."""
    rng = np.random.default_rng(5)
    sizes, costs = answers(rng, 300, with_size=True)
    trace = trace_of(zipf(rng, 20_000, 300, 0.8), sizes, costs)
    policy = Adaptive(int(sizes.sum() * 0.2), 300)
    replay(policy, trace)
    leader = int(policy.head["leader"][0])
    held = set(policy.head["slot_id"][0][np.flatnonzero(policy.head["shadow_position"][0, :, leader])].tolist())
    assert len(held & policy.residents) >= 0.85 * len(held | policy.residents)


@pytest.mark.parametrize(("keys", "slow"), [("zipf", True), ("sessions", False)])
def test_the_leader_suits_the_traffic(keys: str, slow: bool) -> None:
    rng = np.random.default_rng(6)
    if keys == "zipf":
        requested = zipf(rng, 60_000, 3000, 0.8)
    else:  # every query has four requests within about 300, and none later
        requested = np.argsort(np.repeat(np.arange(15_000) * 4.0, 4) + rng.uniform(0, 300, 60_000)) // 4
    sizes, costs = answers(rng, int(requested.max()) + 1, with_size=True)
    trace = trace_of(requested, sizes, costs)
    policy = Adaptive(int(sizes.sum() * (0.05 if slow else 0.005)), trace.ids)
    replay(policy, trace)
    leader = int(policy.head["leader"][0])
    half_life = HALF_LIVES[leader] if leader < GREEDY_DUAL else math.inf
    if slow:
        assert leader == HAZARD or (leader < GREEDY_DUAL and half_life >= 16_384)
    else:
        assert leader in (GREEDY_DUAL_SIZE, RECENCY, HAZARD) or half_life <= 1024


def test_the_sample_shrinks_so_that_slots_stay_bounded() -> None:
    rng = np.random.default_rng(7)
    sizes, costs = answers(rng, 30_000, with_size=True)
    trace = trace_of(zipf(rng, 60_000, 30_000, 0.6), sizes, costs)
    policy = Adaptive(int(sizes.sum() * 0.3), 30_000)
    replay(policy, trace)
    policy.check()
    assert policy.head["hash_limit"][0] < ALL_HASHES
    assert 1 <= policy.head["slots_used"][0] <= SLOTS


@example([(0, None), (3, None), (6, None), (0, 0), (5, None), (4, None)])
@given(st.lists(st.tuples(st.integers(0, 8), st.none() | st.integers(0, 5)), min_size=1, max_size=120))
def test_an_answer_that_is_paid_for_again_is_one_request(requests: list[tuple[int, int | None]]) -> None:
    """A resident arrives, and is settled later: its answer has expired, or the caller wants a new one."""
    once, again = Adaptive(20, 9), Adaptive(20, 9)
    renewals: list[tuple[int, int]] = []
    for t, (key, later) in enumerate(requests):
        resident = once.arrive(key)
        assert again.arrive(key) == resident
        if not resident:
            assert once.settle(key, 1 + key % 7, 1.0 + key) == again.settle(key, 1 + key % 7, 1.0 + key)
        elif later is not None:
            renewals.append((t + later, key))
        for due, renewed in renewals:
            if due == t and renewed in again.residents:
                assert again.settle(renewed, 1 + renewed % 7, 1.0 + renewed) == (True, ())
    for known, other, paid in ((once.head, again.head, COSTS_HEAD), (once.rows, again.rows, COSTS_ROW)):
        for name in set(known.dtype.names or ()) - {name for name, _ in paid} - {"evicted"}:
            assert np.array_equal(known[name], other[name]), name
    assert (again.head["returns"] >= 0.0).all()
    assert (again.head["end_ages"] >= 0.0).all()
    again.check()


def hot_and_flood(rng: np.random.Generator, hot: int, requests: int, flood: int) -> tuple[Trace, Trace, Any]:
    """A trace of hot keys; the same within a flood of keys that never return; and a mask of the hot requests."""
    sizes, costs = answers(rng, hot + flood, with_size=True)
    requested = zipf(rng, requests, hot, 0.9)
    where = np.zeros(requests + flood, bool)
    where[rng.choice(requests + flood, requests, replace=False)] = True
    keys = np.empty(len(where), np.int64)
    keys[where], keys[~where] = requested, hot + np.arange(flood)
    return trace_of(requested, sizes[:hot], costs[:hot]), trace_of(keys, sizes, costs), where


def hit_rate_loss(requests: int, flood: int, remember: int) -> float:
    """The loss of the hot keys' hit rate in a flood, with a table of `remember` ids."""
    calm, flooded, hot = hot_and_flood(np.random.default_rng(8), 5000, requests, flood)
    capacity = int(calm.working_set * 0.1)
    before = replay(Adaptive.for_trace(capacity, calm), calm).hits.mean()
    policy = Adaptive.for_trace(capacity, flooded, remember=remember)
    size = policy.rows.nbytes
    hits = replay(policy, flooded).hits
    policy.check()
    assert policy.rows.nbytes == size
    assert policy.ids == remember
    return float(before - hits[hot].mean())


def test_a_flood_of_keys_that_never_return_displaces_itself() -> None:
    assert hit_rate_loss(60_000, 200_000, 50_000) <= 0.01


@pytest.mark.long
def test_a_flood_of_a_million() -> None:
    assert hit_rate_loss(300_000, 1_000_000, 50_000) <= 0.01


@given(st.lists(st.integers(0, 30), max_size=200), st.integers(3, 12), st.integers(5, 60))
def test_recycling_keeps_the_totals(keys: list[int], ids: int, capacity: int) -> None:
    """With fewer ids than keys, an id means one key at a time, and evictions by recycling are reported."""
    policy = Adaptive(capacity, ids)
    id_of: dict[int, int] = {}
    held: dict[int, int] = {}
    for key in keys:
        if key not in id_of:
            if len(id_of) < ids:
                i = len(id_of)
            else:
                full = len(held) == ids
                i, evicted_answer = policy.recycle()
                lost = next(k for k, j in id_of.items() if j == i)
                del id_of[lost]
                assert evicted_answer == (lost in held) == full
                held.pop(lost, None)
            id_of[key] = i
        assert policy.arrive(id_of[key]) == (key in held)
        if key not in held:
            size = 1 + key % 7
            admitted, evicted = policy.settle(id_of[key], size, 1.0 + key)
            for j in evicted:
                del held[next(k for k, i in id_of.items() if i == j)]
            if admitted:
                held[key] = size
        policy.check()
        assert policy.used == sum(held.values())


def test_a_popular_id_is_not_recycled() -> None:
    policy = Adaptive(10, 50)
    for i in range(50):
        for _ in range(1 + 30 * (i == 7)):
            if not policy.arrive(i):
                policy.settle(i, 10, 1.0)
    recycled = set()
    for _ in range(40):
        i, _ = policy.recycle()
        recycled.add(i)
        policy.arrive(i)
        policy.settle(i, 10, 1.0)
    assert 7 not in recycled


def test_recycling_is_refused_by_policies_that_need_every_id() -> None:
    with pytest.raises(InvalidInput, match="LRU cannot recycle ids"):
        registry.find("lru").build(5, 5).recycle()
    with pytest.raises(InvalidInput, match="remember must be at least 1"):
        Adaptive.for_trace(5, trace_of(np.zeros(1, np.int64), np.ones(1, np.int64), np.ones(1)), remember=0)


def test_a_newcomer_must_beat_each_of_its_victims() -> None:
    policy = Adaptive(10, 4)
    policy.head["leader"], policy.head["next_check"] = 0, 1 << 60  # a horizon
    for i, (size, cost) in enumerate([(3, 3.0), (7, 14.0)]):
        policy.arrive(i)
        assert policy.settle(i, size, cost).admit
    policy.arrive(2)
    assert policy.settle(2, 8, 12.0) == (False, ()), "1.5 per size is above the first victim's and below the second's"
    policy.check()
    policy.arrive(3)
    assert policy.settle(3, 9, 27.0) == (True, (0, 1))
    policy.check()


@pytest.mark.parametrize(
    ("short", "long", "expected"),
    [
        ([10.0, 9.95], [10.0, 9.95], 1),  # slightly better for long, and not worse now
        ([10.0, 10.0], [10.0, 9.95], 1),
        ([10.0, 10.01], [10.0, 9.95], 0),  # better for long, but worse now
        ([10.0, 9.95], [10.0, 9.995], 0),  # not better by enough
        ([10.0, 9.8], [10.0, 20.0], 1),  # clearly better now
        ([10.0, 9.95], [10.0, 10.0], 0),
        ([10.0, 10.0], [10.0, 10.0], 0),
    ],
)
def test_the_leader_changes_for_a_clear_lead_or_a_lasting_one(
    short: list[float], long: list[float], expected: int
) -> None:
    for leader in (0, RECENCY):
        other = 1 if leader == 0 else 0
        policy = registry.find("adaptive").build(1000, 4)
        loss = policy.head["loss"][0]
        loss[:] = 1e9
        loss[0, [leader, other]], loss[1, [leader, other]] = short, long
        assert leader_after(policy.head, leader) == (other if expected else leader)


def test_hazard_leads_unless_another_expert_loses_clearly_less() -> None:
    policy = registry.find("adaptive").build(1000, 4)
    loss = policy.head["loss"][0]
    loss[:] = 10.0
    assert leader_after(policy.head, 0) == HAZARD
    loss[0, 0], loss[1, 0] = 10.0 * CLEAR_LEAD * PREFERENCE, 10.0 * PREFERENCE
    assert leader_after(policy.head, HAZARD) == HAZARD
    loss[0, 0] *= 0.999
    assert leader_after(policy.head, HAZARD) == 0


def test_hazard_has_an_advantage_at_the_beginning() -> None:
    """Few requests are contested then: a lead that is small compared with all costs does not count."""
    head = registry.find("adaptive").build(1000, 4).head
    head["loss"] = 10.0
    head["loss"][0, :, 0] = 5.0
    assert leader_after(head, HAZARD) == 0
    head["uncontested"] = 1000.0
    assert leader_after(head, HAZARD) == HAZARD
    head["loss_time"] = 10 * EARLY_REQUESTS
    assert leader_after(head, HAZARD) == 0


def test_the_windows_of_sampled_shadows_are_longer() -> None:
    """With a rate of 1/100 the loss of a request counts 1/e after 500,000 requests instead of 10,000."""
    weights = []
    for limit in (ALL_HASHES, ALL_HASHES // 100):
        head = registry.find("adaptive").build(1000, 4).head
        head["hash_limit"] = limit
        for now in range(1000, 100_001, 1000):
            grow_loss_weight(head, now)
        weights.append(np.log(head["loss_weight"][0]))
    assert weights[0] == pytest.approx([10.0, 2.5], rel=0.06)
    assert weights[1] == pytest.approx([0.2, 0.05], rel=0.01)
