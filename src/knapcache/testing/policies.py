"""The contract of policy/contract.py as a test-suite that every policy passes.

    check_policy(lambda capacity, ids: MyPolicy(capacity, ids))

Each check drives policies with random events and compares them with a plain model that only does what the
decisions say. A policy that breaks the contract raises AssertionError, saying in which check, at which event.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.model import Decision
from knapcache.policy.base import Policy
from knapcache.sim.replay import replay
from knapcache.sim.trace import Trace

Build = Callable[[int, int], Policy]
"""capacity, ids → a fresh policy."""

IDS = 24


class Model:
    """A cache that obeys its policy's decisions, and notices when they make no sense."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.held: dict[int, int] = {}
        """Sizes of the answers held, by id."""
        self.event = 0

    def arrive(self, i: int) -> bool:
        """A request; returns hit."""
        hit = self.policy.arrive(i)
        self.expect(hit == (i in self.held), f"arrive({i}) says resident={hit}, which is not so")
        self.audit()
        return hit

    def settle(self, i: int, size: int, cost: float) -> Decision:
        """An answer comes home."""
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
        self.audit()
        return decision

    def forget(self, i: int) -> None:
        """An answer is lost."""
        known = self.policy.forget(i)
        self.expect(known == (i in self.held), f"forget({i}) says it was resident={known}, which is not so")
        self.held.pop(i, None)
        self.audit()

    def audit(self) -> None:
        """The policy's books agree with what is held."""
        self.event += 1
        self.expect(self.policy.residents == set(self.held), "residents are not what was settled and not evicted")
        self.expect(self.policy.used == sum(self.held.values()), "used is not the sum of the sizes")
        self.expect(self.policy.used <= self.policy.capacity, f"used {self.policy.used} exceeds {self.policy.capacity}")
        self.policy.check()

    def expect(self, true: bool, otherwise: str) -> None:
        """Assert, saying when."""
        assert true, f"event {self.event}: {otherwise}"


def check_policy(build: Build, *, seed: int = 0, events: int = 400) -> None:
    """Run every check below; raises AssertionError on the first breach."""
    for check in (
        in_order,
        late_and_out_of_order,
        oversize,
        one_unit,
        changing_sizes,
        bad_input,
        same_seed,
        only_arrays,
        same_as_loop,
    ):
        for part, capacity in enumerate((1, 7, 40, 10_000)):
            rng = np.random.default_rng([seed, part])
            try:
                check(build, capacity, rng, events)
            except AssertionError as error:
                raise AssertionError(f"{check.__name__}, capacity {capacity}: {error}") from error


def in_order(build: Build, capacity: int, rng: np.random.Generator, events: int) -> None:
    """A request at a time; now and then an answer is lost."""
    model = Model(build(capacity, IDS))
    sizes = rng.integers(1, 12, IDS)
    for i in popular(rng, events):
        if not model.arrive(i):
            model.settle(i, int(sizes[i]), float(rng.exponential()))
        if rng.random() < 0.05:
            model.forget(int(rng.integers(IDS)))


def late_and_out_of_order(build: Build, capacity: int, rng: np.random.Generator, events: int) -> None:
    """Many requests under way at once: settled in any order, twice for one id, or never."""
    model = Model(build(capacity, IDS))
    sizes = rng.integers(1, 12, IDS)
    flying: list[int] = []
    for i in popular(rng, events):
        if not model.arrive(i):
            flying.append(i)
        while flying and rng.random() < 0.5:
            home = flying.pop(int(rng.integers(len(flying))))
            if rng.random() < 0.9:
                model.settle(home, int(sizes[home]), float(rng.exponential()))
        if rng.random() < 0.05:
            model.forget(int(rng.integers(IDS)))


def oversize(build: Build, capacity: int, rng: np.random.Generator, events: int) -> None:
    """An answer larger than the cache is refused, and nobody else has to go for it."""
    model = Model(build(capacity, IDS))
    for i in popular(rng, events):
        if model.arrive(i):
            continue
        large = rng.random() < 0.3
        decision = model.settle(i, capacity + 1 + int(rng.integers(5)) if large else 1, float(rng.exponential()))
        model.expect(not (large and decision.evicted), f"{decision.evicted} had to go for an answer that cannot fit")


def one_unit(build: Build, capacity: int, rng: np.random.Generator, events: int) -> None:
    """Answers that take the whole cache: at most one is resident."""
    model = Model(build(capacity, IDS))
    for i in popular(rng, events // 4):
        if not model.arrive(i):
            model.settle(i, capacity, float(rng.exponential()))
            model.expect(len(model.held) <= 1, "two answers in room for one")


def changing_sizes(build: Build, capacity: int, rng: np.random.Generator, events: int) -> None:
    """The same request may get a longer answer next time, also while the older one is still resident."""
    model = Model(build(capacity, IDS))
    for i in popular(rng, events):
        if not model.arrive(i) or rng.random() < 0.2:
            model.settle(i, int(rng.integers(1, 12)), float(rng.exponential()))


def bad_input(build: Build, capacity: int, rng: np.random.Generator, events: int) -> None:  # noqa: ARG001 - one signature for all checks
    """A call that makes no sense raises InvalidInput and changes nothing."""
    policy = build(capacity, IDS)
    policy.arrive(0)
    policy.settle(0, 1, 1.0)
    before = frozen(policy)
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
        raise AssertionError("a call that makes no sense was accepted")
    assert frozen(policy) == before, "a refused call left a trace"


def same_seed(build: Build, capacity: int, rng: np.random.Generator, events: int) -> None:
    """Two policies built alike decide alike."""
    one, two = build(capacity, IDS), build(capacity, IDS)
    for step, (i, size, cost) in enumerate(traffic(rng, events)):
        outcome = [p.arrive(i) or p.settle(i, size, cost) for p in (one, two)]
        assert outcome[0] == outcome[1], f"event {step}: {outcome[0]} and {outcome[1]}"
    assert frozen(one) == frozen(two), "same decisions, different state"


def only_arrays(build: Build, capacity: int, rng: np.random.Generator, events: int) -> None:
    """The arrays are the whole state: copied into another policy, it goes on as if nothing had happened."""
    one, two = build(capacity, IDS), build(capacity, IDS)
    for step, (i, size, cost) in enumerate(traffic(rng, events)):
        if step == events // 2:
            two.head, two.rows = copy.deepcopy((one.head, one.rows))
        if step >= events // 2:
            outcome = [p.arrive(i) or p.settle(i, size, cost) for p in (one, two)]
            assert outcome[0] == outcome[1], f"event {step}: {outcome[0]} and {outcome[1]} after a copy"
        elif not one.arrive(i):
            one.settle(i, size, cost)


def same_as_loop(build: Build, capacity: int, rng: np.random.Generator, events: int) -> None:
    """The simulator's compiled loop and one call at a time are the same policy."""
    requests = list(traffic(rng, events))
    keys, sizes, costs = (np.array(column) for column in zip(*requests, strict=True))
    trace = Trace(keys, sizes, costs, IDS)
    one, two = build(capacity, IDS), build(capacity, IDS)
    run = replay(one, trace)
    for k, (i, size, cost) in enumerate(requests):
        hit = two.arrive(i)
        assert hit == run.hits[k], f"request {k}: the loop says hit={run.hits[k]}"
        if not hit:
            two.settle(i, size, cost)
    assert frozen(one) == frozen(two), "same hits, different state"


def popular(rng: np.random.Generator, events: int) -> Iterator[int]:
    """Ids, some far more popular than others."""
    weights = 1.0 / np.arange(1, IDS + 1)
    yield from rng.choice(IDS, events, p=weights / weights.sum()).tolist()


def traffic(rng: np.random.Generator, events: int) -> Iterator[tuple[int, int, float]]:
    """Requests with the size and cost of their answers."""
    sizes = rng.integers(1, 12, IDS)
    for i in popular(rng, events):
        yield i, int(sizes[i]), float(rng.exponential())


def frozen(policy: Policy) -> tuple[bytes, bytes]:
    """The state, for comparison."""
    return policy.head.tobytes(), policy.rows.tobytes()
