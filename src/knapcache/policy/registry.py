"""Every policy by name. Adding one is a file, a line here and a row in docs/policies.md.

Names are a contract: scripts and result files use them. Classes are looked up when first needed, so that
listing policies compiles nothing.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from knapcache.errors import InvalidInput

if TYPE_CHECKING:
    from knapcache.policy.contract import Policy, Requests


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

    def build_for(self, capacity: int, trace: Requests, *, seed: int | None = None, **options: Any) -> Policy:
        """A fresh policy to be run over `trace`: the way to build also those that see the future.

        `seed` goes to policies that draw random numbers; the others have no such argument.
        """
        cls = self.policy_class
        if seed is not None and "seed" in inspect.signature(cls).parameters:
            options["seed"] = seed
        return cls.for_trace(capacity, trace, **(self.options | options))


VSOCB_PAPER = "Yang, Xie, Lian, Chen: LLM Cache Bandit Revisited"
BERKELEY_PAPER = "Zhu et al. 2023: Towards Optimal Caching and Model Selection for Large Model Inference"
GDSF_PAPER = "Cherkasova 1998: Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy"

SPECS = {
    spec.name: spec
    for spec in (
        Spec("vsocb", "vsocb:VSOCB", "The paper's bandit with an exact knapsack Oracle, repaired", VSOCB_PAPER),
        Spec(
            "vsocb-lazy",
            "vsocb:LazyVSOCB",
            "The same, anytime, and keeping what the Oracle does not want until its room is needed",
            VSOCB_PAPER,
        ),
        Spec(
            "vsocb-apx",
            "vsocb:VSOCB",
            "The same as vsocb with the approximate Oracle, within 5 % of the best complement",
            VSOCB_PAPER,
            options={"beta": 0.05},
        ),
        Spec(
            "berkeley",
            "berkeley:Berkeley",
            "Swap one resident of least cost per size: the paper's baseline (B1)",
            BERKELEY_PAPER,
        ),
        Spec(
            "berkeley-multi",
            "berkeley:BerkeleyMulti",
            "The same with as many evictions as it takes (BM)",
            BERKELEY_PAPER,
        ),
        Spec(
            "offline",
            "offline:Offline",
            "The paper's comparator: the Oracle every round, replacement for free",
            VSOCB_PAPER,
            online=False,
        ),
        Spec("lru", "lru:LRU", "Evict what was not asked for the longest", "classic"),
        Spec("lfu", "lfu:LFU", "Evict what was asked for least often since it came in", "classic"),
        Spec("gdsf", "gdsf:GDSF", "Frequency per size with an aging clock", GDSF_PAPER),
        Spec("gdsf-cost", "gdsf:GDSFCost", "Frequency times cost per size with an aging clock", GDSF_PAPER),
        Spec(
            "static",
            "hindsight:Static",
            "Best fixed set in hindsight, by exact knapsack over the whole trace",
            "-",
            online=False,
        ),
    )
}


def find(name: str) -> Spec:
    """The entry of a policy, or one clear error."""
    if name not in SPECS:
        near = difflib.get_close_matches(name, SPECS, 1)
        hint = f"did you mean {near[0]!r}?" if near else "`knapcache policies` lists them"
        raise InvalidInput(f"unknown policy {name!r}: {hint}")
    return SPECS[name]
