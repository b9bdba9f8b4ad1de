"""The prefix tier's decisions: where to mark a request, learned from what returns and from what the provider reports.

    placement = learner.place(request)          before the call: marks, and the bill that is expected
    expected, paid = learner.report(placement, bill)    after the answer: the bill that the provider has reported

The same code runs in the lab and in the proxy. It does not know whether the provider honours upgrades
(provider_cache.py). It assumes so, and compares: when a prefix was to be read that lives only by an upgrade, and the
provider reports that it was not, this counts as evidence. After MIN_FAILURES such reports, and more than came as
expected, rules that count on upgrades no longer lead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from knapcache.features.prefix.conversations import Continuation, Conversations
from knapcache.features.prefix.provider_cache import CachedPrefix, Mark, PrefixCache
from knapcache.features.prefix.request import PrefixRequest
from knapcache.features.prefix.tariff import Tariff
from knapcache.features.prefix.tournament import Tournament
from knapcache.price.input_tokens import InputTokens

MIN_FAILURES = 3
TOLERANCE = 0.9
"""A prefix counts as read if the provider reports this share of it. Lengths are estimates before the answer."""


class Placement(NamedTuple):
    """Marks on a request, and what is expected of them."""

    request: PrefixRequest
    rule: str
    """The rule that led."""
    marks: Sequence[Mark]
    bill: InputTokens
    """The expected bill."""
    hit: CachedPrefix | None
    """The prefix that is expected to be read."""
    certain: bool
    """Whether that is expected also if the provider does not honour upgrades."""
    continues: Continuation


class PrefixLearner:
    """Decides for one upstream. Requests may be placed and reported a little out of the order of their times."""

    def __init__(self, tariff: Tariff) -> None:
        self.tariff = tariff
        self._conversations = Conversations()
        self._tournament = Tournament(tariff)
        self._cache = PrefixCache(tariff, upgrades=tariff.long > tariff.short)
        """A model of the provider's cache, corrected by its reports."""
        self.upgrades_seen = self.upgrades_missed = 0
        """Reads that depended on an upgrade: reported, and not reported."""

    def place(self, request: PrefixRequest) -> Placement:
        continues = self._conversations.find(request)
        rule = self._tournament.leader
        marks = self._tournament.rules[rule](self.tariff, request, continues, self._cache)
        return self._placement(request, rule, marks, continues)

    def with_marks(self, placement: Placement, marks: Sequence[Mark]) -> Placement:
        """Return a placement with other marks: those of the caller, which stay."""
        return self._placement(placement.request, placement.rule, marks, placement.continues)

    def _placement(
        self, request: PrefixRequest, rule: str, marks: Sequence[Mark], continues: Continuation
    ) -> Placement:
        hit = self._cache.read(request, marks)[1]
        certain = hit is not None and hit.certain(request.time)
        return Placement(request, rule, marks, self._cache.billed(request, marks, hit), hit, certain, continues)

    def report(self, placement: Placement, bill: InputTokens | None) -> tuple[InputTokens, dict[str, float]]:
        """Count a request and its answer. Return the expected bill, and what each rule would pay, in plain tokens.

        bill   as the provider has reported it; None: unknown, or the request was not sent with these marks

        Other requests may have been placed or reported since, so what was expected is that of the placement.
        """
        request, marks = placement.request, placement.marks
        expected = self._cache.billed(request, marks, placement.hit)
        if bill is not None and marks:
            self._check(placement, bill)
        self._cache.send(request, marks)
        if bill is not None and not (bill.read or bill.short_written or bill.long_written):
            self._cache.forget([request.positions[mark.at] for mark in marks])  # too short for this model
        self._conversations.count(request, placement.continues)
        return expected, self._tournament.observe(request, placement.continues)

    def _check(self, placement: Placement, bill: InputTokens) -> None:
        """Compare the tokens that were read with those that were expected, and correct what is taken to be cached."""
        positions, expected = placement.request.positions, 0 if placement.hit is None else placement.hit.tokens
        enough = bill.read >= TOLERANCE * expected
        if expected and not placement.certain:
            if enough:
                self.upgrades_seen += 1
            else:
                self.upgrades_missed += 1
                if self._cache.upgrades and self.upgrades_missed >= max(MIN_FAILURES, self.upgrades_seen + 1):
                    self._cache.upgrades = False
                    self._tournament.exclude_upgrades()
        if not enough:
            self._cache.forget([each for each in positions if bill.read < each.tokens <= expected])
        elif bill.read > expected:  # written by a request that was not seen here
            # Lengths are estimates: only the position next to the reported length was read, which may be the expected.
            read = min(positions, key=lambda each: abs(each.tokens - bill.read))
            if read.tokens > expected and TOLERANCE * bill.read <= read.tokens <= bill.read / TOLERANCE:
                self._cache.insert(read, self.tariff.short, placement.request.time)
