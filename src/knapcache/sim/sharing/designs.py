"""The designs by name: how n proxies share a cache, and how each is simulated.

Every design has the same capacity in total, and decides with the same policy code as a live cache. The reference is one
cache that all proxies share, whose policy sees every request at once: a plain replay. With one proxy, and with lateness
0 and no nursery, every design gives exactly the reference.

Requests are spread over the proxies at random, with a seed. One request is finished before the next one, so nothing is
fetched twice at the same moment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from knapcache.errors import InvalidInput, suggestion
from knapcache.policy.registry import Spec, find
from knapcache.sim.replay import replay
from knapcache.sim.sharing.federated import replay_federated
from knapcache.sim.sharing.one_decider import replay_late
from knapcache.sim.sharing.outcome import SharingOutcome
from knapcache.sim.sharing.partitioned import replay_parts
from knapcache.sim.sharing.rebalanced import replay_rebalanced
from knapcache.sim.trace import Ints, Trace
from knapcache.units import parse_amount

MAX_PROXIES = 1000


@dataclass(frozen=True)
class SharingSettings:
    """Settings of a simulated cluster."""

    proxies: int = 10
    hits_late: int = 250
    """Requests until a decider in another process knows of a hit."""
    settles_late: int = 25
    """Requests until it knows of a paid answer and its decision is in the store."""
    nursery: Fraction = Fraction(2, 100)
    """Share of the capacity for undecided answers."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.proxies <= MAX_PROXIES:
            raise InvalidInput(f"proxies must be 1 to {MAX_PROXIES}, not {self.proxies}")
        for name in ("hits_late", "settles_late"):
            if getattr(self, name) < 0:
                raise InvalidInput(f"{name} must be at least 0 requests, not {getattr(self, name)}")
        if not 0 <= self.nursery < 1:
            raise InvalidInput(f"nursery must be from 0 % to less than 100 %, not {float(100 * self.nursery):g} %")
        if self.seed < 0:
            raise InvalidInput(f"seed must not be negative, not {self.seed}")


def parse_nursery(text: str) -> Fraction:
    """Return the share of a text such as `2%`, or 0."""
    found = parse_amount(text)
    if found is None or (found[1] != "%" and found[0] != 0):
        raise InvalidInput(f"nursery {text!r} cannot be read; it must be a share of the capacity, such as 2%, or 0")
    return found[0] / 100


def proxy_of_request(trace: Trace, settings: SharingSettings) -> Ints:
    """Draw the proxy that each request is sent to."""
    return np.random.default_rng([settings.seed, 0]).integers(settings.proxies, size=len(trace))


def decider_of_key(trace: Trace, settings: SharingSettings) -> Ints:
    """Draw the decider that each key is hashed to."""
    return np.random.default_rng([settings.seed, 1]).integers(settings.proxies, size=trace.ids)


def simulate_shared(spec: Spec, capacity: int, trace: Trace, settings: SharingSettings) -> SharingOutcome:
    policy = spec.build_for(capacity, trace, seed=settings.seed)
    run = replay(policy, trace)
    policy.check()
    return SharingOutcome(run.hits, run.peak)


def simulate_own(spec: Spec, capacity: int, trace: Trace, settings: SharingSettings) -> SharingOutcome:
    parts = proxy_of_request(trace, settings)
    return replay_parts(spec, capacity, trace, parts, settings.proxies, seed=settings.seed)


def simulate_hashed(spec: Spec, capacity: int, trace: Trace, settings: SharingSettings) -> SharingOutcome:
    parts = decider_of_key(trace, settings)[trace.keys]
    return replay_parts(spec, capacity, trace, parts, settings.proxies, seed=settings.seed)


def simulate_rebalanced(spec: Spec, capacity: int, trace: Trace, settings: SharingSettings) -> SharingOutcome:
    deciders = decider_of_key(trace, settings)
    return replay_rebalanced(spec, capacity, trace, deciders, settings.proxies, seed=settings.seed)


def simulate_federated(spec: Spec, capacity: int, trace: Trace, settings: SharingSettings) -> SharingOutcome:
    return replay_federated(
        spec,
        capacity,
        trace,
        proxy_of_request(trace, settings),
        settings.proxies,
        hits_late=settings.hits_late,
        settles_late=settings.settles_late,
        seed=settings.seed,
    )


def late(*, nursery: bool, lost: bool = False, redecide: bool = False) -> Callable[..., SharingOutcome]:
    """Return the simulation of one decider, with or without a nursery, and with alternative rules (one_decider.py)."""

    def simulate(spec: Spec, capacity: int, trace: Trace, settings: SharingSettings) -> SharingOutcome:
        return replay_late(
            spec,
            capacity,
            trace,
            hits_late=settings.hits_late,
            settles_late=settings.settles_late,
            nursery=int(settings.nursery * capacity) if nursery else 0,
            lost=lost,
            redecide=redecide,
            seed=settings.seed,
        )

    return simulate


@dataclass(frozen=True)
class SharingDesign:
    """How proxies share a cache."""

    name: str
    summary: str
    simulate: Callable[[Spec, int, Trace, SharingSettings], SharingOutcome]
    by_proxies: bool = True
    """Whether the number of proxies matters."""
    is_late: bool = False
    """Whether reports to a decider are late."""
    has_nursery: bool = False
    resizes: bool = False
    """Whether the capacity of a policy changes, which some policies do not support."""


REFERENCE = SharingDesign("shared", "one shared cache with instant statistics", simulate_shared, by_proxies=False)
DESIGNS = {
    design.name: design
    for design in (
        SharingDesign("own", "every proxy has its own cache of 1/n of the capacity", simulate_own),
        SharingDesign("hashed", "keys are hashed to n deciders, each with 1/n of the capacity", simulate_hashed),
        SharingDesign(
            "rebalanced", "keys are hashed to n deciders, whose shares follow prices", simulate_rebalanced, resizes=True
        ),
        SharingDesign(
            "federated",
            "every proxy decides on its own 1/n of a shared store; statistics of the others are late",
            simulate_federated,
            is_late=True,
        ),
        SharingDesign(
            "decider",
            "one decider with late reports; undecided answers cannot be read",
            late(nursery=False),
            by_proxies=False,
            is_late=True,
        ),
        SharingDesign(
            "nursery",
            "one decider with late reports; undecided answers are read from the nursery",
            late(nursery=True),
            by_proxies=False,
            is_late=True,
            has_nursery=True,
        ),
    )
}
VARIANTS = {
    design.name: design
    for design in (
        SharingDesign(
            "nursery-lost",
            "like nursery, but answers displaced from it are lost",
            late(nursery=True, lost=True),
            by_proxies=False,
            is_late=True,
            has_nursery=True,
        ),
        SharingDesign(
            "nursery-redecide",
            "like nursery, but a second answer for an admitted key is decided again",
            late(nursery=True, redecide=True),
            by_proxies=False,
            is_late=True,
            has_nursery=True,
        ),
    )
}
"""Worse rules for `nursery`. They run only if they are named."""


def find_design(name: str) -> SharingDesign:
    """Return a design by name. Raises InvalidInput if there is none."""
    known = {REFERENCE.name: REFERENCE} | DESIGNS | VARIANTS
    if name not in known:
        raise InvalidInput(f"unknown design {name!r}{suggestion(name, DESIGNS | VARIANTS)}")
    return known[name]


def find_live_policy(name: str) -> Spec:
    """Return the entry of a policy that a live cache can run. Raises InvalidInput for others."""
    spec = find(name)
    if not spec.online:
        raise InvalidInput(f"policy {name!r} knows the future or replaces answers for free; a proxy cannot run it")
    return spec
