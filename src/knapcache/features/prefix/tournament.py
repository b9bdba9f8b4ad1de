"""The rule that leads: all rules run beside each other on a model of the provider's cache, and the cheapest is used.

Writes are paid before the reads that they are made for. A comparison of what was paid so far would prefer no marks for
the first thousand requests. One that counts a write only when its time has ended would let long marks look free for an
hour. So the balance of a rule is what it has paid, less what its live prefixes are worth: the expected saving of the
next request of each conversation, by its return times. The worth of a prefix is subtracted until the conversation
continues, with a bill that is lower by it, or the prefix expires.

Older requests count less. A saving counts as much as the request that has written the prefix, and not as the one that
reads it: otherwise costs would be forgotten before the savings that they were paid for.

    Invariant: when no prefix is live and nothing is forgotten, the balance of a rule is exactly what it has paid.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence

from knapcache.features.prefix.conversations import Continuation, ReturnCurve
from knapcache.features.prefix.provider_cache import MAX_ENTRIES, CachedPrefix, PrefixCache
from knapcache.features.prefix.request import PrefixRequest
from knapcache.features.prefix.rules import LEARNED, LEARNED_CERTAIN, Rule, fixed_rules, learned_rules
from knapcache.features.prefix.tariff import Tariff

MARGIN = 0.002
"""How much cheaper another rule must be to lead, as a share of the bill without marks."""
DISCOUNT = 0.9995
"""Weight of a request relative to the next one: half of all weight is on the last 1,400 requests."""
PREFERENCE = 0.005
"""How much dearer the learned rule may be and still lead: it adapts, the others do not."""
DOMINATED = "last-"
"""Rules whose names begin so never lead: system2 with the same time to live has their marks and two more, which cost
nothing."""


class RuleAccount:
    """The costs of one rule, and the cache of a provider that gets its marks."""

    def __init__(self, tariff: Tariff, rule: Rule, *, upgrades: bool) -> None:
        self.rule, self.cache = rule, PrefixCache(tariff, upgrades=upgrades)
        self._tariff = tariff
        self.balance = 0.0
        self._worth: dict[Hashable, tuple[float, float, int]] = {}  # by request: until when, how much, number
        self._ends: list[tuple[float, int, Hashable]] = []
        self._number = 0

    def observe(self, request: PrefixRequest, continues: Continuation) -> float:
        """Place the rule's marks on a request, and return what it pays."""
        tariff = self._tariff
        bill, touched = self.cache.send(request, self.rule(tariff, request, continues, self.cache))
        paid = tariff.cost(bill)
        self._number = number = self._number + 1
        self.balance *= DISCOUNT
        since = self._realise(continues.parent)
        saved = (1.0 - tariff.read) * bill.read
        self.balance += paid + saved - saved * DISCOUNT ** (number - since)
        if touched:
            key = request.end.id
            self._realise(key)
            until, worth = worth_of(tariff, touched, continues.returns, request.time)
            self.balance -= worth
            self._worth[key] = until, worth, number
            heapq.heappush(self._ends, (until, number, key))
            if len(self._ends) >= 2 * MAX_ENTRIES:
                self._drop_oldest()
        return paid

    def advance(self, now: float) -> None:
        """Write off what has expired."""
        while self._ends and self._ends[0][0] <= now:
            key = heapq.heappop(self._ends)[2]
            found = self._worth.get(key)
            if found is not None and found[0] <= now:
                self._realise(key)

    def _drop_oldest(self) -> None:
        """Write off the oldest prefixes, and forget the ends of those that were written off before."""
        for key in list(self._worth)[: -MAX_ENTRIES // 2]:
            self._realise(key)
        self._ends = [(until, number, key) for key, (until, _, number) in self._worth.items()]
        heapq.heapify(self._ends)

    def _realise(self, key: Hashable | None) -> int:
        """Remove the worth of a request's prefixes from the balance. Return the number of the request."""
        found = self._worth.pop(key, None)
        if found is None:
            return self._number
        _, worth, number = found
        self.balance += worth * DISCOUNT ** (self._number - number)
        return number


class Tournament:
    """All rules on the same requests. Times increase, but for requests that are reported late."""

    def __init__(self, tariff: Tariff) -> None:
        self.rules: dict[str, Rule] = fixed_rules(tariff)
        self._accounts = {name: RuleAccount(tariff, rule, upgrades=False) for name, rule in self.rules.items()}
        for name, (rule, upgrades) in learned_rules(tariff).items():
            self.rules[name] = rule
            self._accounts[name] = RuleAccount(tariff, rule, upgrades=upgrades)
        self._dominated = frozenset(name for name in self.rules if name.startswith(DOMINATED))
        self._unmarked_bill = 0.0
        """Tokens of all requests: the bill without marks."""
        self.leader = LEARNED
        self._preferred = LEARNED

    def exclude_upgrades(self) -> None:
        """Let no rule lead that counts on upgrades."""
        if LEARNED_CERTAIN in self._accounts:
            del self._accounts[LEARNED]
            self._preferred = LEARNED_CERTAIN

    def observe(self, request: PrefixRequest, continues: Continuation) -> dict[str, float]:
        """Let every rule place its marks on a request. Return what each pays, and choose the leader."""
        self._unmarked_bill = DISCOUNT * self._unmarked_bill + request.tokens
        paid = {}
        margin, leader, best = MARGIN * self._unmarked_bill, self.leader, float("inf")
        for name, account in self._accounts.items():
            account.advance(request.time)
            paid[name] = account.observe(request, continues)
            balance = account.balance - (margin if name == leader else 0.0)
            if name == self._preferred:
                balance -= PREFERENCE * self._unmarked_bill
            if balance < best and name not in self._dominated:
                best, self.leader = balance, name
        return paid


def worth_of(tariff: Tariff, cached: Sequence[CachedPrefix], returns: ReturnCurve, now: float) -> tuple[float, float]:
    """Return until when prefixes live, and the expected saving of the next request: the longest one live then."""
    until, worth = now, 0.0
    for prefix in cached:  # the longest first
        if prefix.expires > until:
            share = returns.within(prefix.expires - now) - returns.within(until - now)
            worth += (1.0 - tariff.read) * prefix.tokens * share
            until = prefix.expires
    return until, worth
