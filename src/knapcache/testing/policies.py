"""The contract of policy/base.py as a test suite for any policy.

    check_policy(lambda capacity, ids: MyPolicy(capacity, ids))

Each check drives policies with random events and compares them with a plain model that follows their decisions. A
violation raises AssertionError with the check, the capacity and the event.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.lab.replay import replay
from knapcache.lab.trace import Trace
from knapcache.model import Decision
from knapcache.policy.base import Policy

Build = Callable[[int, int], Policy]
"""(capacity, ids) → a new policy."""

IDS = 24


class ModelCache:
    """A cache that follows a policy's decisions and asserts that they are consistent."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.held: dict[int, int] = {}
        """Sizes of the answers held, by id."""
        self.event = 0

    def arrive(self, i: int) -> bool:
        hit = self.policy.arrive(i)
        self.expect(hit == (i in self.held), f"arrive({i}) returned {hit}, expected {not hit}")
        other = (i + self.event) % self.policy.ids
        count, counts = self.policy.request_count(other), self.policy.request_counts(np.array([other]))
        self.expect(math.isclose(count, counts[0]), f"request_count({other}) is {count}, not {counts[0]}")
        self.check()
        return hit

    def settle(self, i: int, size: int, cost: float) -> Decision:
        before = set(self.held)
        decision = self.policy.settle(i, size, cost)
        admit, evicted = decision
        self.expect(len(set(evicted)) == len(evicted), f"settle({i}) evicted an id twice: {evicted}")
        self.expect(set(evicted) <= before, f"settle({i}) evicted {set(evicted) - before}, which were not resident")
        self.expect(not (admit and i in evicted), f"settle({i}) both admitted and evicted it")
        self.expect(
            not (size > self.policy.capacity and admit), f"settle({i}) admitted an answer larger than the cache"
        )
        for j in evicted:
            del self.held[j]
        if admit:
            self.held[i] = size
        self.check()
        return decision

    def forget(self, i: int) -> None:
        resident = self.policy.forget(i)
        self.expect(resident == (i in self.held), f"forget({i}) returned {resident}, expected {not resident}")
        self.held.pop(i, None)
        self.check()

    def check(self) -> None:
        """Assert that the policy's totals match what is held."""
        self.event += 1
        self.expect(self.policy.residents == set(self.held), "residents are not the ids settled and not evicted")
        self.expect(self.policy.used == sum(self.held.values()), "used is not the sum of the sizes")
        self.expect(self.policy.used <= self.policy.capacity, f"used {self.policy.used} exceeds {self.policy.capacity}")
        self.policy.check()

    def expect(self, condition: bool, message: str) -> None:
        assert condition, f"event {self.event}: {message}"


def check_policy(build: Build, *, seed: int = 0, events: int = 400) -> None:
    """Run every check below at four capacities; raise AssertionError on the first violation."""
    for check in (
        in_order,
        late_and_out_of_order,
        oversize,
        answers_of_full_size,
        changing_sizes,
        invalid_input,
        same_seed,
        arrays_are_the_state,
        same_in_the_simulator,
    ):
        for part, capacity in enumerate((1, 7, 40, 10_000)):
            rng = np.random.default_rng([seed, part])
            try:
                check(build, capacity, rng, events)
            except AssertionError as error:
                raise AssertionError(f"{check.__name__}, capacity {capacity}: {error}") from error


def in_order(build: Build, capacity: int, rng: np.random.Generator, events: int) -> None:
    """One request at a time; some answers are lost."""
    model = ModelCache(build(capacity, IDS))
    sizes = rng.integers(1, 12, IDS)
    for i in popular(rng, events):
        if not model.arrive(i):
            model.settle(i, int(sizes[i]), float(rng.exponential()))
        if rng.random() < 0.05:
            model.forget(int(rng.integers(IDS)))


def late_and_out_of_order(build: Build, capacity: int, rng: np.random.Generator, events: int) -> None:
    """Many requests in flight: settled in any order, twice for one id, or never."""
    model = ModelCache(build(capacity, IDS))
    sizes = rng.integers(1, 12, IDS)
    in_flight: list[int] = []
    for i in popular(rng, events):
        if not model.arrive(i):
            in_flight.append(i)
        while in_flight and rng.random() < 0.5:
            settled = in_flight.pop(int(rng.integers(len(in_flight))))
            if rng.random() < 0.9:
                model.settle(settled, int(sizes[settled]), float(rng.exponential()))
        if rng.random() < 0.05:
            model.forget(int(rng.integers(IDS)))


def oversize(build: Build, capacity: int, rng: np.random.Generator, events: int) -> None:
    """An answer larger than the cache is refused, and nothing is evicted for it."""
    model = ModelCache(build(capacity, IDS))
    for i in popular(rng, events):
        if model.arrive(i):
            continue
        large = rng.random() < 0.3
        decision = model.settle(i, capacity + 1 + int(rng.integers(5)) if large else 1, float(rng.exponential()))
        model.expect(not (large and decision.evicted), f"evicted {decision.evicted} for an answer that cannot fit")


def answers_of_full_size(build: Build, capacity: int, rng: np.random.Generator, events: int) -> None:
    """Every answer is as large as the cache: at most one is resident."""
    model = ModelCache(build(capacity, IDS))
    for i in popular(rng, events // 4):
        if not model.arrive(i):
            model.settle(i, capacity, float(rng.exponential()))
            model.expect(len(model.held) <= 1, "two answers in a cache for one")


def changing_sizes(build: Build, capacity: int, rng: np.random.Generator, events: int) -> None:
    """Answers of one request differ in size, also while an older one is resident."""
    model = ModelCache(build(capacity, IDS))
    for i in popular(rng, events):
        if not model.arrive(i) or rng.random() < 0.2:
            model.settle(i, int(rng.integers(1, 12)), float(rng.exponential()))


def invalid_input(build: Build, capacity: int, rng: np.random.Generator, events: int) -> None:  # noqa: ARG001 - one signature for all checks
    """An invalid call raises InvalidInput and changes nothing."""
    policy = build(capacity, IDS)
    policy.arrive(0)
    policy.settle(0, 1, 1.0)
    before = state_bytes(policy)
    calls: list[Callable[[], object]] = [
        *(lambda i=i: policy.arrive(i) for i in (-1, IDS, 10**12)),
        *(lambda i=i: policy.settle(i, 1, 1.0) for i in (-1, IDS)),
        *(lambda i=i: policy.forget(i) for i in (-1, IDS)),
        *(lambda s=s: policy.settle(1, s, 1.0) for s in (0, -1)),
        *(lambda c=c: policy.settle(1, 1, c) for c in (-1.0, float("nan"), float("inf"))),
        *(lambda c=c: build(c, IDS) for c in (0, -1)),
        lambda: build(capacity, 0),
    ]
    for call in calls:
        try:
            call()
        except InvalidInput:
            continue
        raise AssertionError("an invalid call was accepted")
    assert state_bytes(policy) == before, "an invalid call changed the state"


def same_seed(build: Build, capacity: int, rng: np.random.Generator, events: int) -> None:
    """Two policies with equal arguments make equal decisions."""
    one, two = build(capacity, IDS), build(capacity, IDS)
    for step, (i, size, cost) in enumerate(traffic(rng, events)):
        outcome = [p.arrive(i) or p.settle(i, size, cost) for p in (one, two)]
        assert outcome[0] == outcome[1], f"event {step}: {outcome[0]} and {outcome[1]}"
    assert state_bytes(one) == state_bytes(two), "same decisions, different state"


def arrays_are_the_state(build: Build, capacity: int, rng: np.random.Generator, events: int) -> None:
    """The arrays are the whole state: a policy that gets a copy of them makes the same decisions."""
    one, two = build(capacity, IDS), build(capacity, IDS)
    for step, (i, size, cost) in enumerate(traffic(rng, events)):
        if step == events // 2:
            two.head, two.rows = copy.deepcopy((one.head, one.rows))
        if step >= events // 2:
            outcome = [p.arrive(i) or p.settle(i, size, cost) for p in (one, two)]
            assert outcome[0] == outcome[1], f"event {step}: {outcome[0]} and {outcome[1]} after a copy"
        elif not one.arrive(i):
            one.settle(i, size, cost)


def same_in_the_simulator(build: Build, capacity: int, rng: np.random.Generator, events: int) -> None:
    """The simulator's compiled loop and single calls make the same decisions."""
    requests = list(traffic(rng, events))
    keys, sizes, costs = (np.array(column) for column in zip(*requests, strict=True))
    trace = Trace(keys, sizes, costs, IDS)
    one, two = build(capacity, IDS), build(capacity, IDS)
    run = replay(one, trace)
    for k, (i, size, cost) in enumerate(requests):
        hit = two.arrive(i)
        assert hit == run.hits[k], f"request {k}: single calls give hit={hit}, the loop {run.hits[k]}"
        if not hit:
            two.settle(i, size, cost)
    assert state_bytes(one) == state_bytes(two), "same hits, different state"


def popular(rng: np.random.Generator, events: int) -> Iterator[int]:
    """Ids with Zipf popularity."""
    weights = 1.0 / np.arange(1, IDS + 1)
    yield from rng.choice(IDS, events, p=weights / weights.sum()).tolist()


def traffic(rng: np.random.Generator, events: int) -> Iterator[tuple[int, int, float]]:
    """Requests with size and cost of their answers."""
    sizes = rng.integers(1, 12, IDS)
    for i in popular(rng, events):
        yield i, int(sizes[i]), float(rng.exponential())


def state_bytes(policy: Policy) -> tuple[bytes, bytes]:
    return policy.head.tobytes(), policy.rows.tobytes()
