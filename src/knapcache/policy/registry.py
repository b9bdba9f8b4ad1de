"""Every policy and bound by name.

Adding a built-in policy is a file, a line in SPECS and a row in docs/background/policies.md. Names are a contract:
scripts and result files use them. Classes are imported when first used, so that listing policies compiles nothing.

Other packages add policies by entry points of the group `knapcache.policies`. The name of the entry point is the name
of the policy; its value is a `Spec`:

    [project.entry-points."knapcache.policies"]
    mru = "my_package:MRU"

    # my_package/__init__.py
    from knapcache.policy.registry import Spec

    MRU = Spec("mru", "my_package.mru:MostRecentlyUsed", "Evict the most recently used answer.", "classic")

The class extends `knapcache.policy.base.Policy`; `knapcache.testing.check_policy` tests it. Listing imports the module
of the Spec; only building the policy imports the module of the class. A plugin cannot replace a built-in policy, and
two plugins cannot share a name. A plugin that cannot be used raises InvalidInput when its name is looked up, and no
sooner.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, overload

from knapcache.errors import InvalidInput, suggestion

if TYPE_CHECKING:
    from collections.abc import Callable

    from knapcache.policy.base import Policy, TraceLike

ENTRY_POINTS = "knapcache.policies"


@dataclass(frozen=True)
class Spec:
    """A policy's entry in the registry."""

    name: str
    where: str
    """module:Class; a module that starts with a dot is relative to knapcache.policy."""
    summary: str
    """The eviction rule in one line."""
    paper: str
    online: bool = True
    """False if no cache could run the policy: it sees the future, or replaces answers for free."""
    options: dict[str, Any] = field(default_factory=dict)
    """Constructor arguments of this policy; several policies may share a class."""

    @property
    def policy_class(self) -> type[Policy]:
        """The class, imported now. Raises InvalidInput if the class of a plugin cannot be imported."""
        found: type[Policy]
        if self.where.startswith("."):
            found = _import(self.where)
            return found
        from knapcache.policy.base import Policy

        try:
            found = _import(self.where)
        except Exception as error:  # a module of another package may raise anything
            raise InvalidInput(f"policy plugin {self.name!r}: cannot import {self.where}: {_reason(error)}") from error
        if not (isinstance(found, type) and issubclass(found, Policy)):
            raise InvalidInput(f"policy plugin {self.name!r}: {self.where} is not a subclass of Policy")
        return found

    def build(self, capacity: int, ids: int, **options: Any) -> Policy:
        """Return a new policy. `options` override those of the entry."""
        return self.policy_class(capacity, ids, **(self.options | options))

    def build_for(self, capacity: int, trace: TraceLike, *, seed: int | None = None, **options: Any) -> Policy:
        """Return a new policy to be run over `trace`. Policies that see the future can only be built this way.

        `seed` is passed to policies that take one and ignored for others.
        """
        cls = self.policy_class
        if seed is not None and "seed" in inspect.signature(cls).parameters:
            options["seed"] = seed
        return cls.for_trace(capacity, trace, **(self.options | options))


@dataclass(frozen=True)
class Bound:
    """A bound's entry in the registry: a miss cost that no policy can beat, computed from the whole trace."""

    name: str
    where: str
    """module:function; a module that starts with a dot is relative to knapcache.policy."""
    summary: str
    paper: str
    online: bool = False

    def miss_cost(self, capacity: int, trace: TraceLike) -> float:
        """Return a lower bound on the total miss cost of any cache of this capacity."""
        function: Callable[..., float] = _import(self.where)
        return function(trace.keys, trace.sizes, trace.costs, capacity)


def _import(where: str) -> Any:
    module, name = where.split(":")
    return getattr(importlib.import_module(module, "knapcache.policy"), name)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


VSOCB_PAPER = "Yang, Xie, Lian, Chen: LLM Cache Bandit Revisited"
BERKELEY_PAPER = "Zhu et al. 2023: Towards Optimal Caching and Model Selection for Large Model Inference"
GDSF_PAPER = "Cherkasova 1998: Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy"

SPECS = {
    spec.name: spec
    for spec in (
        Spec(
            "adaptive",
            ".adaptive.policy:Adaptive",
            "Evict the least value per size; learn half-life and admission rule from shadow caches (the default).",
            "ours; see docs/background/policies.md",
        ),
        Spec(
            "vsocb",
            ".vsocb.policy:VSOCB",
            "Keep the knapsack Oracle's set by confidence bounds on cost and arrival (the paper, repaired).",
            VSOCB_PAPER,
        ),
        Spec(
            "vsocb-lazy",
            ".vsocb.policy:LazyVSOCB",
            "VSOCB without a horizon; evict answers outside the Oracle's set only when space is needed.",
            VSOCB_PAPER,
        ),
        Spec(
            "vsocb-apx",
            ".vsocb.policy:VSOCB",
            "VSOCB with the approximate Oracle: the value left out is at most 5 % above the minimum.",
            VSOCB_PAPER,
            options={"beta": 0.05},
        ),
        Spec(
            "berkeley",
            ".vsocb.berkeley:Berkeley",
            "Replace the least dense answer if the newcomer is denser and then fits (the paper's baseline, B1).",
            BERKELEY_PAPER,
        ),
        Spec(
            "berkeley-multi",
            ".vsocb.berkeley:BerkeleyMulti",
            "Evict answers less dense than the newcomer until it fits (BM).",
            BERKELEY_PAPER,
        ),
        Spec(
            "offline",
            ".offline.comparator:Offline",
            "Replace the whole cache by the Oracle's set every round, at no cost (the paper's comparator).",
            VSOCB_PAPER,
            online=False,
        ),
        Spec("lru", ".classic.lru:LRU", "Evict the least recently used answer.", "classic"),
        Spec("lfu", ".classic.lfu:LFU", "Evict the answer with the fewest requests since admission.", "classic"),
        Spec(
            "gdsf",
            ".classic.gdsf:GDSF",
            "Evict the least aging clock + frequency / size; the newcomer may be evicted itself.",
            GDSF_PAPER,
        ),
        Spec(
            "gdsf-cost",
            ".classic.gdsf:GDSF",
            "Evict the least aging clock + frequency · cost / size.",
            GDSF_PAPER,
            options={"by_cost": True, "trial": False},
        ),
        Spec(
            "gdsf-cost-history",
            ".classic.gdsf:GDSF",
            "Like gdsf-cost, counting requests before admission too.",
            GDSF_PAPER,
            options={"by_cost": True, "history": True, "trial": False},
        ),
        Spec(
            "gdsf-cost-trial",
            ".classic.gdsf:GDSF",
            "Like gdsf-cost; the newcomer may be evicted itself.",
            GDSF_PAPER,
            options={"by_cost": True},
        ),
        Spec(
            "gds",
            ".classic.gds:GDS",
            "Evict the least aging clock + cost / size.",
            "Cao, Irani 1997: Cost-Aware WWW Proxy Caching Algorithms",
        ),
        Spec(
            "camp",
            ".classic.camp:CAMP",
            "Like gds with rounded cost / size, in nearly constant time.",
            "Ghandeharizadeh et al. 2014: CAMP: A Cost Adaptive Multi-Queue Eviction Policy for Key-Value Stores",
        ),
        Spec(
            "hyperbolic",
            ".classic.hyperbolic:Hyperbolic",
            "Evict, from a random sample, the least requests · cost / (size · time in the cache).",
            "Blankstein, Sen, Freedman 2017: Hyperbolic Caching: Flexible Caching for Web Applications",
        ),
        Spec(
            "lhd",
            ".classic.lhd:LHD",
            "Evict, from a random sample, the fewest expected hits per size and time.",
            "Beckmann, Chen, Cidon 2018: LHD: Improving Cache Hit Rate by Maximizing Hit Density",
        ),
        Spec(
            "lfu-da",
            ".classic.lfu_da:LFUDA",
            "Evict the least aging clock + frequency.",
            "Arlitt et al. 1999: Evaluating Content Management Techniques for Web Proxy Caches",
        ),
        Spec("fifo", ".classic.fifo:FIFO", "Evict the answer that was admitted first.", "classic"),
        Spec(
            "sieve",
            ".classic.sieve:Sieve",
            "Evict in FIFO order, skipping answers hit since the hand last passed them.",
            "Zhang et al. 2024: SIEVE is Simpler than LRU",
        ),
        Spec(
            "s3-fifo",
            ".classic.s3fifo:S3FIFO",
            "Evict from three FIFO queues: small for newcomers, main, and ghosts.",
            "Yang et al. 2023: FIFO queues are all you need for cache eviction",
        ),
        Spec(
            "arc",
            ".classic.arc:ARC",
            "Evict from a recency or a frequency LRU list, balanced by hits on their ghosts.",
            "Megiddo, Modha 2003: ARC: A Self-Tuning, Low Overhead Replacement Cache",
        ),
        Spec(
            "w-tinylfu",
            ".classic.tinylfu:WTinyLFU",
            "Admit from an LRU window into a segmented LRU by estimated frequency.",
            "Einziger, Friedman, Manes 2017: TinyLFU: A Highly Efficient Cache Admission Policy",
        ),
        Spec(
            "horizon",
            ".classic.horizon:Horizon",
            "Evict the least discounted frequency · cost / size, with a half-life of 4,000 requests.",
            "-",
        ),
        Spec(
            "static",
            ".offline.static_optimal:Static",
            "Keep the best fixed set, an exact knapsack over the whole trace.",
            "-",
            online=False,
        ),
        Spec(
            "belady",
            ".offline.belady:Belady",
            "Evict the answer that saves least per size and time until its next request.",
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
            ".offline.pfoo:pfoo_bound",
            "Lower bound on any cache's miss cost: the best intervals that fit on average (PFOO-L, with costs).",
            "Berger, Beckmann, Harchol-Balter 2018: Practical Bounds on Optimal Caching with Variable Object Sizes",
        ),
    )
}


@overload
def find(name: str) -> Spec: ...
@overload
def find(name: str, *, bounds: Literal[True]) -> Spec | Bound: ...
def find(name: str, *, bounds: bool = False) -> Spec | Bound:
    """Return the entry of a policy, or with `bounds` also of a bound. Raises InvalidInput if there is none."""
    if name in _plugins():
        return _load_plugin(name)
    if name in SPECS:
        return SPECS[name]
    if name not in BOUNDS:
        hint = suggestion(name, [*SPECS, *_plugins()], "`knapcache policies` lists them")
        raise InvalidInput(f"unknown policy {name!r}{hint}")
    if not bounds:
        raise InvalidInput(f"{name!r} is a bound, not a policy: it has a miss cost and cannot be run")
    return BOUNDS[name]


def available() -> tuple[list[Spec | Bound], list[str]]:
    """Return every policy and bound, plugins last, and a message for each plugin that cannot be used."""
    entries: list[Spec | Bound] = [*SPECS.values(), *BOUNDS.values()]
    problems = []
    for name in _plugins():
        try:
            entries.append(_load_plugin(name))
        except InvalidInput as error:
            problems.append(str(error))
    return entries, problems


@functools.cache
def _plugins() -> dict[str, list[importlib.metadata.EntryPoint]]:
    """Return the entry points of plugins by name. Reads package metadata and imports nothing."""
    found: dict[str, list[importlib.metadata.EntryPoint]] = {}
    for point in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=_package):
        found.setdefault(point.name, []).append(point)
    return found


def _load_plugin(name: str) -> Spec:
    packages = " and ".join(_package(point) for point in _plugins()[name])
    if name in SPECS or name in BOUNDS:
        raise InvalidInput(f"policy plugin {name!r} of {packages}: the name belongs to a built-in policy")
    if len(_plugins()[name]) > 1:
        raise InvalidInput(f"policy plugin {name!r}: {packages} provide the same name")
    point = _plugins()[name][0]
    try:
        spec = point.load()
    except Exception as error:  # a module of another package may raise anything
        raise InvalidInput(
            f"policy plugin {name!r} of {packages}: cannot import {point.value}: {_reason(error)}"
        ) from error
    if not isinstance(spec, Spec):
        raise InvalidInput(
            f"policy plugin {name!r} of {packages}: {point.value} must be a Spec, not {type(spec).__name__}"
        )
    if spec.name != name:
        raise InvalidInput(f"policy plugin {name!r} of {packages}: its Spec has another name, {spec.name!r}")
    return spec


def _package(point: importlib.metadata.EntryPoint) -> str:
    return point.dist.name if point.dist else "an unknown package"
