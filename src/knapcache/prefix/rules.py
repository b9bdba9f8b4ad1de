"""Rules that place marks on a request.

    none        no marks
    last        a mark at the end, for a short or a long time
    system2     marks at the end, at the end of the request that this one continues, and after the system prompt:
                the system prompt and the last two turns, as other proxies and libraries do
    learned     no mark, a short or a long one at the end, by the expected bill

The learned rule compares the bills of this request and of the next one, from the probability that the conversation
continues within some time (returns.py). R are the tokens that are cached already, D the new ones, w and r the prices of
writing and reading, and s the probability that the conversation is continued at all:

    no mark   D                + s (w − r) D + (s − G(R)) (w − r) R
    short     short price · D  + (s − G(short)) (w − r) D + (s − G(R)) (w − r) R
    long      long price · D   + (s − G(long)) (w − r) (R + D)

G(R) is the probability of a continuation while R lives. If the provider does not honour upgrades, a long mark behind a
short prefix lives as long as that, so it is not considered.
"""

from __future__ import annotations

from collections.abc import Callable

from knapcache.prefix.conversations import Continuation
from knapcache.prefix.provider_cache import Mark, PrefixCache
from knapcache.prefix.request import PrefixRequest
from knapcache.prefix.tariff import Tariff

Rule = Callable[[Tariff, PrefixRequest, Continuation, PrefixCache], list[Mark]]

LEARNED, LEARNED_SHORT, LEARNED_CERTAIN = "learned-alone", "learned-short", "learned-certain"
"""The learned rule with upgrades, with short marks only, and without upgrades."""


def none(_tariff: Tariff, _request: PrefixRequest, _continues: Continuation, _cache: PrefixCache) -> list[Mark]:
    """Place no mark."""
    return []


def last(ttl: float) -> Rule:
    """Return the rule that marks the end."""

    def place(_tariff: Tariff, request: PrefixRequest, _continues: Continuation, _cache: PrefixCache) -> list[Mark]:
        positions = request.positions
        return [Mark(len(positions) - 1, ttl)] if positions[-1].tokens >= request.minimum else []

    return place


def system2(ttl: float) -> Rule:
    """Return the rule that marks the system prompt, the end of the continued request, and the end."""

    def place(_tariff: Tariff, request: PrefixRequest, continues: Continuation, _cache: PrefixCache) -> list[Mark]:
        positions, minimum = request.positions, request.minimum
        places = sorted({request.system, continues.at, len(positions) - 1})
        return [Mark(at, ttl) for at in places if at >= 0 and positions[at].tokens >= minimum]

    return place


def learned(*, long: bool) -> Rule:
    """Return the rule of the lowest expected bill. long: whether long marks are considered."""

    def place(tariff: Tariff, request: PrefixRequest, continues: Continuation, cache: PrefixCache) -> list[Mark]:
        positions, minimum, returns = request.positions, request.minimum, continues.returns
        end = positions[-1].tokens
        if end < minimum:
            return []
        at, cached = cache.longest_live(request)
        kept, ttl = (0, tariff.short) if cached is None else (cached.tokens, cached.ttl)
        new, gain = end - kept, tariff.short_write - tariff.read
        ever, short = returns.ever, returns.within(tariff.short)
        lost = (ever - returns.within(ttl)) * gain * kept
        best, chosen = new + ever * gain * new + lost, 0.0
        bill = tariff.short_write * new + (ever - short) * gain * new + lost
        if bill < best:
            best, chosen = bill, tariff.short
        if long and (cached is None or cache.upgrades or ttl >= tariff.long):
            bill = tariff.long_write * new + (ever - returns.within(tariff.long)) * gain * end
            if bill < best:
                chosen = tariff.long
        marks = []
        if cached is not None and kept >= minimum:
            marks.append(Mark(at, tariff.long if chosen == tariff.long else ttl))
        if chosen and new:
            marks.append(Mark(len(positions) - 1, chosen))
        return marks

    return place


def fixed_rules(tariff: Tariff) -> dict[str, Rule]:
    """Return the rules that learn nothing, by name."""
    found: dict[str, Rule] = {"none": none}
    for family, rule in (("last", last), ("system2", system2)):
        found |= {f"{family}-{name}": rule(ttl) for name, ttl in tariff.ttls.items()}
    return found


def learned_rules(tariff: Tariff) -> dict[str, tuple[Rule, bool]]:
    """Return the rules that use return times, by name, and whether they count on upgrades."""
    if tariff.short == tariff.long:
        return {LEARNED: (learned(long=False), False)}
    return {
        LEARNED: (learned(long=True), True),
        LEARNED_SHORT: (learned(long=False), False),
        LEARNED_CERTAIN: (learned(long=True), False),
    }
