"""Every policy and bound by name. Adding one is a file, a line here and a row in docs/background/policies.md.

Names are a contract: scripts and result files use them. Classes are looked up when first needed, so that
listing policies compiles nothing.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, overload

from knapcache.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from knapcache.policy.base import Policy, TraceLike


@dataclass(frozen=True)
class Spec:
    """A policy's entry in the list."""

    name: str
    where: str
    """module:Class, below knapcache.policy."""
    summary: str
    paper: str
    online: bool = True
    """False for policies that no cache could run: they see the future, or replace answers for free."""
    options: dict[str, Any] = field(default_factory=dict)
    """Constructor arguments that make this policy of its class."""

    @property
    def policy_class(self) -> type[Policy]:
        """The class, imported now."""
        module, name = self.where.split(":")
        found: type[Policy] = getattr(importlib.import_module(f"knapcache.policy.{module}"), name)
        return found

    def build(self, capacity: int, ids: int, **options: Any) -> Policy:
        """A fresh policy; `options` go to its constructor, after those of the entry."""
        return self.policy_class(capacity, ids, **(self.options | options))

    def build_for(self, capacity: int, trace: TraceLike, *, seed: int | None = None, **options: Any) -> Policy:
        """A fresh policy to be run over `trace`: the way to build also those that see the future.

        `seed` goes to policies that draw random numbers; the others have no such argument.
        """
        cls = self.policy_class
        if seed is not None and "seed" in inspect.signature(cls).parameters:
            options["seed"] = seed
        return cls.for_trace(capacity, trace, **(self.options | options))


@dataclass(frozen=True)
class Bound:
    """A bound's entry: what no policy can beat, computed from the whole trace. There is nothing to run."""

    name: str
    where: str
    """module:function, below knapcache.policy."""
    summary: str
    paper: str
    online: bool = False

    def miss_cost(self, capacity: int, trace: TraceLike) -> float:
        """No cache of this capacity pays less for these requests in all."""
        module, name = self.where.split(":")
        found: Callable[..., float] = getattr(importlib.import_module(f"knapcache.policy.{module}"), name)
        return found(trace.keys, trace.sizes, trace.costs, capacity)


VSOCB_PAPER = "Yang, Xie, Lian, Chen: LLM Cache Bandit Revisited"
BERKELEY_PAPER = "Zhu et al. 2023: Towards Optimal Caching and Model Selection for Large Model Inference"
GDSF_PAPER = "Cherkasova 1998: Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy"

SPECS = {
    spec.name: spec
    for spec in (
        Spec(
            "adaptive",
            "adaptive.policy:Adaptive",
            "The default: value per size over a horizon learned from shadow caches",
            "ours; see docs/background/policies.md",
        ),
        Spec("vsocb", "vsocb.policy:VSOCB", "The paper's bandit with an exact knapsack Oracle, repaired", VSOCB_PAPER),
        Spec(
            "vsocb-lazy",
            "vsocb.policy:LazyVSOCB",
            "The same, anytime, and keeping what the Oracle does not want until its room is needed",
            VSOCB_PAPER,
        ),
        Spec(
            "vsocb-apx",
            "vsocb.policy:VSOCB",
            "The same as vsocb with the approximate Oracle, within 5 % of the best complement",
            VSOCB_PAPER,
            options={"beta": 0.05},
        ),
        Spec(
            "berkeley",
            "vsocb.berkeley:Berkeley",
            "Swap one resident of least cost per size: the paper's baseline (B1)",
            BERKELEY_PAPER,
        ),
        Spec(
            "berkeley-multi",
            "vsocb.berkeley:BerkeleyMulti",
            "The same with as many evictions as it takes (BM)",
            BERKELEY_PAPER,
        ),
        Spec(
            "offline",
            "offline.comparator:Offline",
            "The paper's comparator: the Oracle every round, replacement for free",
            VSOCB_PAPER,
            online=False,
        ),
        Spec("lru", "classic.lru:LRU", "Evict what was not asked for the longest", "classic"),
        Spec("lfu", "classic.lfu:LFU", "Evict what was asked for least often since it came in", "classic"),
        Spec("gdsf", "classic.gdsf:GDSF", "Frequency per size with an aging clock", GDSF_PAPER),
        Spec(
            "gdsf-cost",
            "classic.gdsf:GDSF",
            "Frequency times cost per size with an aging clock",
            GDSF_PAPER,
            options={"by_cost": True, "trial": False},
        ),
        Spec(
            "gdsf-cost-history",
            "classic.gdsf:GDSF",
            "The same, counting requests from before the answer came in as well",
            GDSF_PAPER,
            options={"by_cost": True, "history": True, "trial": False},
        ),
        Spec(
            "gdsf-cost-trial",
            "classic.gdsf:GDSF",
            "The same as gdsf-cost, and the newcomer may be the one to go",
            GDSF_PAPER,
            options={"by_cost": True},
        ),
        Spec(
            "gds",
            "classic.gds:GDS",
            "Cost per size with an aging clock",
            "Cao, Irani 1997: Cost-Aware WWW Proxy Caching Algorithms",
        ),
        Spec(
            "camp",
            "classic.camp:CAMP",
            "The same with rounded ratios, in nearly constant time",
            "Ghandeharizadeh et al. 2014: CAMP: A Cost Adaptive Multi-Queue Eviction Policy for Key-Value Stores",
        ),
        Spec(
            "hyperbolic",
            "classic.hyperbolic:Hyperbolic",
            "Requests times cost, per size and time in the cache; victims are sampled",
            "Blankstein, Sen, Freedman 2017: Hyperbolic Caching: Flexible Caching for Web Applications",
        ),
        Spec(
            "lhd",
            "classic.lhd:LHD",
            "Hits to be expected, per size and time to be spent; victims are sampled",
            "Beckmann, Chen, Cidon 2018: LHD: Improving Cache Hit Rate by Maximizing Hit Density",
        ),
        Spec(
            "lfu-da",
            "classic.lfu_da:LFUDA",
            "Frequency with an aging clock",
            "Arlitt et al. 1999: Evaluating Content Management Techniques for Web Proxy Caches",
        ),
        Spec("fifo", "classic.fifo:FIFO", "Evict what came in first", "classic"),
        Spec(
            "sieve",
            "classic.sieve:Sieve",
            "FIFO with a hand that spares what was asked for since it last came by",
            "Zhang et al. 2024: SIEVE is Simpler than LRU",
        ),
        Spec(
            "s3-fifo",
            "classic.s3fifo:S3FIFO",
            "Three FIFO queues: small for newcomers, main, and ghosts",
            "Yang et al. 2023: FIFO queues are all you need for cache eviction",
        ),
        Spec(
            "arc",
            "classic.arc:ARC",
            "Two LRU queues, for recency and frequency, whose shares are learned from ghosts",
            "Megiddo, Modha 2003: ARC: A Self-Tuning, Low Overhead Replacement Cache",
        ),
        Spec(
            "w-tinylfu",
            "classic.tinylfu:WTinyLFU",
            "Window and segmented LRU, with a sketch of frequencies as the door between them",
            "Einziger, Friedman, Manes 2017: TinyLFU: A Highly Efficient Cache Admission Policy",
        ),
        Spec(
            "horizon",
            "classic.horizon:Horizon",
            "Discounted frequency times cost per size, with a fixed half-life of 4,000 requests",
            "-",
        ),
        Spec(
            "static",
            "offline.static_optimal:Static",
            "Best fixed set in hindsight, by exact knapsack over the whole trace",
            "-",
            online=False,
        ),
        Spec(
            "belady",
            "offline.belady:Belady",
            "Evict what earns least for its room until its next request, all of the future known",
            "Belady 1966: A study of replacement algorithms for a virtual-storage computer; with cost and size",
            online=False,
        ),
    )
}

BOUNDS = {
    bound.name: bound
    for bound in (
        Bound(
            "pfoo",
            "offline.pfoo:pfoo_bound",
            "No cache can pay less: the best intervals that fit on average (PFOO-L, with costs)",
            "Berger, Beckmann, Harchol-Balter 2018: Practical Bounds on Optimal Caching with Variable Object Sizes",
        ),
    )
}


@overload
def find(name: str) -> Spec: ...
@overload
def find(name: str, *, bounds: Literal[True]) -> Spec | Bound: ...
def find(name: str, *, bounds: bool = False) -> Spec | Bound:
    """The entry of a policy, or with `bounds` also of a bound; or one clear error."""
    if name in BOUNDS and bounds:
        return BOUNDS[name]
    if name in BOUNDS:
        raise InvalidInput(f"{name!r} is a bound, not a policy: it has a miss cost, and nothing to run")
    if name not in SPECS:
        near = difflib.get_close_matches(name, SPECS, 1)
        hint = f"did you mean {near[0]!r}?" if near else "`knapcache policies` lists them"
        raise InvalidInput(f"unknown policy {name!r}: {hint}")
    return SPECS[name]
