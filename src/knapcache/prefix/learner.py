"""The prefix tier's decisions: where to mark a request, learned from what returns and from what the provider reports.

    placement = learner.place(request)          before the call: marks, and the bill that is expected
    report = learner.report(placement, bill)    after the answer: the bill that the provider has reported

The same code runs in the lab and in the proxy. It does not know whether the provider honours upgrades
(provider_cache.py). It assumes so, and compares: when a prefix was to be read that lives only by an upgrade, and the
provider reports that it was not, this counts as evidence. After MIN_FAILURES such reports, and more than came as
expected, rules that count on upgrades no longer lead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from knapcache.prefix.conversations import Continuation, Conversations
from knapcache.prefix.provider_cache import Mark, PrefixBill, PrefixCache
from knapcache.prefix.request import PrefixRequest
from knapcache.prefix.tariff import Tariff
from knapcache.prefix.tournament import Tournament

MIN_FAILURES = 3
TOLERANCE = 0.9
"""A prefix counts as read if the provider reports this share of it. Lengths are estimates before the answer."""


class Placement(NamedTuple):
    """Marks on a request, and what is expected of them."""

    request: PrefixRequest
    rule: str
    """The rule that led."""
    marks: Sequence[Mark]
    bill: PrefixBill
    continues: Continuation


class RequestReport(NamedTuple):
    """What one request was expected to cost, and would have cost by other rules."""

    expected: PrefixBill
    """With its marks, by the model of the provider's cache."""
    paid: dict[str, float]
    """By rule, in plain tokens."""


class PrefixLearner:
    """Decides for one upstream. Times that decrease are taken for the latest time."""

    def __init__(self, tariff: Tariff) -> None:
        self.tariff = tariff
        self._conversations = Conversations()
        self._tournament = Tournament(tariff)
        self._cache = PrefixCache(tariff, upgrades=tariff.long > tariff.short)
        """What the provider has cached, as far as is known."""
        self._now = float("-inf")
        self.upgrades_seen = self.upgrades_missed = 0
        """Reads that depended on an upgrade: reported, and not reported."""

    @property
    def leader(self) -> str:
        """The rule that leads."""
        return self._tournament.leader

    @property
    def counts_on_upgrades(self) -> bool:
        """Whether upgrades are taken to be honoured."""
        return self._cache.upgrades

    def place(self, request: PrefixRequest) -> Placement:
        """Choose the marks of a request, and count it."""
        self._now = now = max(self._now, request.time)
        if now != request.time:
            request = request._replace(time=now)
        continues = self._conversations.observe(request)
        rule = self._tournament.leader
        marks = self._tournament.rules[rule](self.tariff, request, continues, self._cache)
        return Placement(request, rule, marks, self._cache.bill(request, marks), continues)

    def with_marks(self, placement: Placement, marks: Sequence[Mark]) -> Placement:
        """Return a placement with other marks: those of the caller, which stay."""
        return placement._replace(marks=marks, bill=self._cache.bill(placement.request, marks))

    def report(self, placement: Placement, bill: PrefixBill | None) -> RequestReport:
        """Count an answer. bill: as the provider has reported it; None: the request was not sent with these marks."""
        request, marks = placement.request, placement.marks
        if request.time < self._now:
            request = request._replace(time=self._now)
        expected = self._cache.bill(request, marks)
        if bill is not None and marks:
            self._check(request, marks, bill)
        self._cache.send(request, marks)
        if bill is not None and not (bill.read or bill.short_written or bill.long_written):
            self._cache.forget([request.positions[mark.at] for mark in marks])  # too short for this model
        return RequestReport(expected, self._tournament.observe(request, placement.continues))

    def _check(self, request: PrefixRequest, marks: Sequence[Mark], bill: PrefixBill) -> None:
        """Compare the tokens that were read with those that were expected, and correct what is taken to be cached."""
        at, expected = self._cache.read(request, marks)
        enough = expected is not None and bill.read >= TOLERANCE * expected.tokens
        if expected is not None and not expected.certain(request.time):
            if enough:
                self.upgrades_seen += 1
            else:
                self.upgrades_missed += 1
                if self._cache.upgrades and self.upgrades_missed >= max(MIN_FAILURES, self.upgrades_seen + 1):
                    self._cache.upgrades = False
                    self._tournament.exclude_upgrades()
        if expected is not None and not enough:
            self._cache.forget([each for each in request.positions[: at + 1] if each.tokens > bill.read])
        elif bill.read > (0 if expected is None else expected.tokens):  # written by a request that was not seen here
            for position in request.positions[at + 1 :]:
                if TOLERANCE * bill.read <= position.tokens <= bill.read / TOLERANCE:
                    self._cache.insert(position, self.tariff.short, request.time)
