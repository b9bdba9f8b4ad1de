"""The rule that leads: all rules run beside each other on a model of the provider's cache, and the cheapest is used.

Writes are paid before the reads that they are made for. Books that compare what was paid so far would prefer no marks
for the first thousand requests. Books that count a write only when its time has ended would let long marks look free
for an hour. So the books of a rule are what it has paid, less what its live prefixes are worth: the expected saving of
the next request of each conversation, by its return times. The worth of a prefix leaves the books when the conversation
continues, with a bill that is lower by it, or when the prefix expires.

    Invariant: when no prefix is live, the books of a rule are exactly what it would have paid.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence

from knapcache.prefix.provider_cache import CachedPrefix, send
from knapcache.prefix.returns import ReturnCurve
from knapcache.prefix.rules import PrefixRequest, Rule
from knapcache.prefix.tariff import Tariff

MARGIN = 0.002
"""How much cheaper another rule must be to lead, as a share of the bill without marks."""
PREFERENCE = 0.002
"""How much dearer the learned rule may be and still lead: it adapts, the others do not."""
FIRST = "learned"


class RuleBooks:
    """What one rule has paid, and what it has cached, by request."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.paid = self.worth = 0.0
        self.cached: dict[Hashable, list[CachedPrefix]] = {}
        self._worth_of: dict[Hashable, tuple[float, float]] = {}  # until when, and how much
        self._ends: list[tuple[float, int, Hashable]] = []
        self._serial = 0

    @property
    def balance(self) -> float:
        return self.paid - self.worth

    def advance(self, now: float) -> None:
        """Write off what has expired."""
        while self._ends and self._ends[0][0] <= now:
            request = heapq.heappop(self._ends)[2]
            found = self._worth_of.get(request)
            if found is not None and found[0] <= now:
                self.realise(request)

    def realise(self, request: Hashable) -> None:
        """Take the worth of a request's prefixes out of the books."""
        found = self._worth_of.pop(request, None)
        if found is not None:
            self.worth -= found[1]

    def value(self, request: Hashable, until: float, worth: float) -> None:
        """Put the worth of a request's prefixes into the books."""
        if worth > 0.0:
            self.worth += worth
            self._worth_of[request] = until, worth
            self._serial += 1
            heapq.heappush(self._ends, (until, self._serial, request))


class Tournament:
    """All rules on the same requests. Times must not decrease."""

    def __init__(self, tariff: Tariff, rules: dict[str, Rule], *, upgrades: bool) -> None:
        self._tariff, self._upgrades = tariff, upgrades
        self.books = {name: RuleBooks(rule) for name, rule in rules.items()}
        self.plain = 0.0
        """Tokens of all requests: the bill without marks."""
        self.leader = FIRST

    def choose(self, now: float) -> str:
        """Return the rule that leads."""
        for books in self.books.values():
            books.advance(now)
        margin, preference = MARGIN * self.plain, PREFERENCE * self.plain
        self.leader = min(
            self.books,
            key=lambda name: (
                self.books[name].balance
                - (margin if name == self.leader else 0.0)
                - (preference if name == FIRST else 0.0)
            ),
        )
        return self.leader

    def observe(self, key: Hashable, parent: Hashable | None, shared: int, tokens: int, request: PrefixRequest) -> None:
        """Let every rule place its marks on a request that continues `parent` after `shared` tokens."""
        self.plain += tokens
        for books in self.books.values():
            reachable = [prefix for prefix in books.cached.get(parent, ()) if prefix.tokens <= shared]
            marks = books.rule(self._tariff, request, reachable)
            bill, after = send(self._tariff, reachable, marks, tokens, request.time, upgrades=self._upgrades)
            books.paid += bill.cost(self._tariff)
            books.cached[key] = after
            books.realise(parent)
            books.value(key, *worth_of(self._tariff, after, request.returns, request.time))


def worth_of(tariff: Tariff, cached: Sequence[CachedPrefix], returns: ReturnCurve, now: float) -> tuple[float, float]:
    """Return until when prefixes live, and the expected saving of the next request: the longest one live then."""
    until, worth = now, 0.0
    for prefix in sorted(cached, key=lambda each: -each.tokens):
        if prefix.expires > until:
            share = returns.within(prefix.expires - now) - returns.within(until - now)
            worth += (1.0 - tariff.read) * prefix.tokens * share
            until = prefix.expires
    return until, worth
