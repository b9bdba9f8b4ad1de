"""Every policy passes the contract, with every set of options."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from knapcache.errors import CorruptState, InvalidInput
from knapcache.estimate.statistics import Confidence
from knapcache.lab.replay import replay
from knapcache.lab.trace import Trace
from knapcache.policy import registry
from knapcache.policy.base import Policy
from knapcache.testing import check_policy
from knapcache.testing.policies import IDS, ModelCache, state_bytes
from tests.support.examples import examples

# `offline` replaces answers for free, which breaks the contract.
NAMES = sorted(set(registry.SPECS) - {"offline"})

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in NAMES),
    ("static", {"chosen": [k % 2 == 0 for k in range(IDS)]}),
    ("vsocb", {"confidence": Confidence(gamma=1.0, T=400, N=IDS, c1=0.1, c2=4.0)}),
    ("vsocb", {"alpha": 0.01}),
    ("vsocb-lazy", {"alpha": 3.0, "confidence": Confidence(gamma=0.3, gamma_arrival=0.0)}),
    ("vsocb-apx", {"beta": 1.0}),
    ("berkeley-multi", {"confidence": Confidence(gamma=0.0, clip=False)}),
    ("horizon", {"half_life": 3.0, "beats_sum": True}),
    ("s3-fifo", {"small": 0.5, "main_first": True}),
    ("w-tinylfu", {"window": 0.5, "protected": 0.3}),
    ("lhd", {"samples": 3, "period": 50, "decay": 0.5, "seed": 7}),
    ("hyperbolic", {"samples": 2, "seed": 7}),
    ("camp", {"precision": 1}),
    ("belady", {"following": [(k + 7) % 400 for k in range(400)], "gains": [k % 5 for k in range(400)]}),
]


def build(name: str, options: dict[str, Any]) -> Any:
    chosen = options.get("chosen")

    def policy(capacity: int, ids: int) -> Policy:
        arguments = {**options, "chosen": chosen[:ids]} if chosen else options
        return registry.find(name).build(capacity, ids, **arguments)

    return policy


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_contract(name: str, options: dict[str, Any]) -> None:
    check_policy(build(name, options), events=100)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 11))
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_contract_with_long_runs(name: str, options: dict[str, Any], seed: int) -> None:
    check_policy(build(name, options), seed=seed, events=2000)


PLAIN = """
from knapcache import kernel, testing
from knapcache.policy import registry
assert not kernel.COMPILED
names = "adaptive lru gdsf-cost vsocb-lazy berkeley-multi sieve s3-fifo arc w-tinylfu lhd hyperbolic"
for name in names.split():
    testing.check_policy(registry.find(name).build, events=EVENTS)
"""


@pytest.mark.parametrize("events", [10, pytest.param(100, marks=pytest.mark.long)])
def test_contract_in_plain_python(events: int) -> None:
    code = PLAIN.replace("EVENTS", str(events))
    subprocess.run([sys.executable, "-W", "error", "-c", code], env=os.environ | {"KNAPCACHE_COMPILE": "0"}, check=True)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(("request", "request", "request", "settle", "forget", "recycle")),
        st.integers(0, IDS - 1),
        st.integers(1, 12),
        st.floats(0, 1e6),
        st.booleans(),
    ),
    min_size=40,
    max_size=80,
)


@pytest.mark.parametrize("name", sorted(name for name, spec in registry.SPECS.items() if spec.online))
@settings(max_examples=6)
@given(capacity=st.integers(1, 60), events=EVENTS)
def test_plain_kernels_decide_like_compiled_ones(
    name: str, capacity: int, events: list[tuple[str, int, int, float, bool]]
) -> None:
    """One policy changes between the two at random moments, the other one uses compiled kernels all the time."""
    changing, steady = (registry.find(name).build(capacity, IDS) for _ in range(2))
    for event, i, size, cost, compiled in events:
        changing.compiled = compiled
        decided = [act(policy, event, i, size, cost) for policy in (changing, steady)]
        assert decided[0] == decided[1]
        assert state_bytes(changing) == state_bytes(steady)
    changing.check()


def act(policy: Policy, event: str, i: int, size: int, cost: float) -> object:
    match event:
        case "request":
            return policy.arrive(i) or policy.settle(i, size, cost)
        case "settle":
            return policy.settle(i, size, cost)
        case "recycle" if type(policy).recycle_kernel is not None:
            return policy.recycle()
        case _:
            return policy.forget(i)


class AnyEvents(RuleBasedStateMachine):
    """Events in any order."""

    model: ModelCache

    @initialize(name=st.sampled_from(NAMES), capacity=st.integers(1, 60))
    def start(self, name: str, capacity: int) -> None:
        self.model = ModelCache(build(name, {"chosen": [True] * IDS} if name == "static" else {})(capacity, IDS))

    @rule(i=st.integers(0, IDS - 1))
    def arrive(self, i: int) -> None:
        self.model.arrive(i)

    @rule(i=st.integers(0, IDS - 1), size=st.integers(1, 70), cost=st.floats(0, 1e6))
    def settle(self, i: int, size: int, cost: float) -> None:
        self.model.settle(i, size, cost)

    @rule(i=st.integers(0, IDS - 1))
    def forget(self, i: int) -> None:
        self.model.forget(i)

    @invariant()
    def check(self) -> None:
        if hasattr(self, "model"):
            self.model.check()


TestAnyEvents = AnyEvents.TestCase
TestAnyEvents.settings = settings(max_examples=examples(60, 150), stateful_step_count=60, deadline=None)


def broken_kernel(head: Any, rows: Any, i: int, size: int, cost: float) -> None:  # noqa: ARG001
    """Admits every answer without evicting."""
    head[0]["evicted"] = 0
    if not rows[i]["resident"]:
        rows[i]["resident"] = True
        rows[i]["entry_size"] = size
        head[0]["used"] += size


def test_check_policy_detects_an_overflow() -> None:
    class Overflowing(Policy):
        arrive_kernel = staticmethod(lambda head, rows, i: rows[i]["resident"])  # noqa: ARG005
        settle_kernel = staticmethod(broken_kernel)

    with pytest.raises(AssertionError, match=r"larger than the cache|exceeds"):
        check_policy(Overflowing)


@pytest.mark.parametrize("name", NAMES)
def test_check_detects_a_wrong_total(name: str) -> None:
    policy = build(name, {"chosen": [True] * IDS} if name == "static" else {})(40, IDS)
    for i in (0, 1, 0):
        if not policy.arrive(i):
            policy.settle(i, 3, 1.0)
    policy.check()
    policy.head["used"] += 1
    with pytest.raises(CorruptState, match="used"):
        policy.check()


def test_check_detects_a_hand_outside_of_the_queue() -> None:
    policy = registry.find("sieve").build(40, IDS)
    policy.settle(0, 3, 1.0)
    policy.head["hand"] = 1
    with pytest.raises(CorruptState, match="hand"):
        policy.check()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": float("nan")}, "alpha"),
        ({"beta": -1.0}, "beta"),
        ({"capacity": 0}, "capacity"),
        ({"capacity": 2**62 + 1}, "capacity"),
        ({"capacity": 1.5}, "whole number"),
        ({"ids": 0}, "ids"),
        ({"ids": 2**31 + 1}, "ids"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        registry.find("vsocb").build(**({"capacity": 10, "ids": 3} | options))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("horizon", {"half_life": 0.0}, "half_life"),
        ("horizon", {"half_life": float("inf")}, "half_life"),
        ("s3-fifo", {"small": 1.0}, "small"),
        ("w-tinylfu", {"window": 1.5}, "window"),
        ("w-tinylfu", {"protected": -0.1}, "protected"),
        ("lhd", {"samples": 0}, "samples"),
        ("lhd", {"period": 0}, "period"),
        ("lhd", {"decay": 1.1}, "decay"),
        ("hyperbolic", {"samples": 0}, "samples"),
        ("hyperbolic", {"seed": -1}, "seed"),
        ("camp", {"precision": 0}, "precision"),
        ("belady", {"following": [1]}, "following"),
    ],
)
def test_bad_options(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        registry.find(name).build(10, 3, **options)


@pytest.mark.parametrize("name", ["lhd", "hyperbolic"])
def test_a_different_seed_draws_a_different_sample(name: str) -> None:
    rng = np.random.default_rng(0)
    trace = Trace(rng.zipf(1.3, 20_000) % 1000, rng.integers(1, 20, 20_000), rng.exponential(size=20_000), 1000)
    one, same, other = (replay(registry.find(name).build(1500, 1000, seed=seed), trace).hits for seed in (1, 1, 2))
    assert (one == same).all()
    assert (one != other).any()


def test_an_unknown_policy_suggests_the_nearest_name() -> None:
    with pytest.raises(InvalidInput, match="did you mean vsocb"):
        registry.find("vsobc")
    with pytest.raises(InvalidInput, match="knapcache policies"):
        registry.find("???")


@pytest.mark.parametrize(("name", "size"), [("adaptive", 136), ("gdsf-cost", 72), ("lru", 24)])
def test_bytes_per_id_of_the_default_policy_and_its_shadows(name: str, size: int) -> None:
    assert registry.find(name).build(1, 1).rows.itemsize == size
