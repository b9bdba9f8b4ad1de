"""Replay requests with rules that place marks, and bill them.

Each rule has a provider's cache of its own (provider_cache.py). `learned` is the whole tier, as the proxy runs it:
it gets the bills of its provider, and nothing else. So it finds out by itself whether upgrades are honoured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from knapcache.errors import InvalidInput
from knapcache.features.prefix.conversations import Conversations
from knapcache.features.prefix.learner import PrefixLearner
from knapcache.features.prefix.provider_cache import PrefixCache
from knapcache.features.prefix.request import PrefixRequest
from knapcache.features.prefix.rules import Rule, fixed_rules, learned_rules
from knapcache.features.prefix.tariff import TARIFFS, Tariff

LEARNED = "learned"
REPORT = 1000
"""Requests between two progress reports."""


@dataclass(frozen=True)
class RuleBill:
    """The input bill of one rule for all requests."""

    rule: str
    requests: int
    input_tokens: int
    bill: float
    """In plain input tokens."""
    ratio: float
    """Bill divided by the bill without marks."""


def tariff_of(name: str) -> Tariff:
    """Return a tariff by name; raises InvalidInput."""
    if name not in TARIFFS:
        raise InvalidInput(f"unknown tariff {name!r}: allowed are {', '.join(TARIFFS)}")
    return TARIFFS[name]


def rule_names(tariff: Tariff) -> list[str]:
    """Return the names of all rules: those that learn nothing, the whole tier, and its learned rules alone."""
    return [*fixed_rules(tariff), LEARNED, *learned_rules(tariff)]


def default_rules(tariff: Tariff) -> list[str]:
    """Return the names of the rules that are compared unless others are named."""
    return [*fixed_rules(tariff), LEARNED]


def check_rules(names: Sequence[str], tariff: Tariff) -> None:
    """Raise InvalidInput if a name is not a rule of the tariff, or is given twice."""
    allowed = rule_names(tariff)
    for name in names:
        if name not in allowed:
            raise InvalidInput(f"unknown rule {name!r}: allowed with {tariff.name} are {', '.join(allowed)}")
        if names.count(name) > 1:
            raise InvalidInput(f"rule {name!r} is named twice")


def replay_rules(
    requests: Sequence[PrefixRequest],
    rules: Sequence[str],
    tariff: Tariff,
    *,
    upgrades: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> list[RuleBill]:
    """Return the bill of each rule. Requests must be in the order of time, at least one.

    upgrades   whether the provider lets a prefix live long that was written for a short time and is marked for long
    """
    check_rules(rules, tariff)
    placed: dict[str, Rule] = fixed_rules(tariff) | {name: rule for name, (rule, _) in learned_rules(tariff).items()}
    caches = {name: PrefixCache(tariff, upgrades=upgrades) for name in rules}
    separate = [(name, placed[name], caches[name]) for name in rules if name != LEARNED]
    learner, conversations = PrefixLearner(tariff), Conversations()
    bills, tokens = dict.fromkeys(rules, 0.0), 0
    for done, request in enumerate(requests):
        tokens += request.tokens
        if separate:
            continues = conversations.observe(request)
            for name, rule, cache in separate:
                bills[name] += tariff.cost(cache.send(request, rule(tariff, request, continues, cache))[0])
        if LEARNED in caches:
            placement = learner.place(request)
            bill, _ = caches[LEARNED].send(request, placement.marks)
            learner.report(placement, bill)
            bills[LEARNED] += tariff.cost(bill)
        if progress is not None and done % REPORT == 0:
            progress(done, len(requests))
    return [
        RuleBill(rule=name, requests=len(requests), input_tokens=tokens, bill=bills[name], ratio=bills[name] / tokens)
        for name in rules
    ]
