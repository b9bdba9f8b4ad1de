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

from knapcache.features.prefix.conversations import Continuation, ReturnCurve
from knapcache.features.prefix.provider_cache import CachedPrefix, Mark, PrefixCache
from knapcache.features.prefix.request import PrefixRequest
from knapcache.features.prefix.tariff import Tariff

Rule = Callable[[Tariff, PrefixRequest, Continuation, PrefixCache], list[Mark]]

LEARNED, LEARNED_SHORT, LEARNED_CERTAIN = "learned-alone", "learned-short", "learned-certain"
"""The learned rule with upgrades, with short marks only, and without upgrades."""


def none(_tariff: Tariff, _request: PrefixRequest, _continues: Continuation, _cache: PrefixCache) -> list[Mark]:
    return []


def last(ttl: float) -> Rule:
    """Return the rule that marks the end, and the end of the continued request if the provider reads at marks only."""

    def place(tariff: Tariff, request: PrefixRequest, continues: Continuation, _cache: PrefixCache) -> list[Mark]:
        positions, minimum = request.positions, request.minimum
        places = [continues.at, len(positions) - 1] if tariff.reads_at_marks else [len(positions) - 1]
        return [Mark(at, ttl) for at in places if at >= 0 and positions[at].tokens >= minimum]

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
        positions, minimum = request.positions, request.minimum
        last = len(positions) - 1
        if positions[last].tokens < minimum:
            return []
        kept, cached = cache.longest_live(request)
        end = choose(tariff, continues.returns, positions[last].tokens, cached, long=long, upgrades=cache.upgrades)
        ttls = {}
        if cached is not None and positions[kept].tokens >= minimum:
            ttls[kept] = cached.ttl
        if end and kept < last:
            ttls[last] = end
            ttls.setdefault(continues.at, end)  # costs nothing more
        system = request.system
        if system >= 0 and system not in ttls:
            ttl = 0.0
            if continues.system is not None:
                tokens = positions[system].tokens
                ttl = choose(tariff, continues.system, tokens, None, long=long, upgrades=cache.upgrades, paid=end)
            if ttls or ttl:
                ttls[system] = max(ttl, end) or tariff.short
        marks, ttl = [], 0.0
        for at in sorted(ttls, reverse=True):
            if at >= 0 and positions[at].tokens >= minimum:
                ttl = ttls[at] if ttls[at] >= ttl else ttl  # a longer time must not follow a shorter one
                marks.append(Mark(at, ttl))
        marks.reverse()
        return marks

    return place


def choose(
    tariff: Tariff,
    returns: ReturnCurve,
    tokens: int,
    cached: CachedPrefix | None,
    *,
    long: bool,
    upgrades: bool,
    paid: float = 0.0,
) -> float:
    """Return the time to live of the lowest expected bill for a prefix; 0: no mark.

    cached   the part of it that is cached
    paid     time to live for which its tokens are written anyway
    """
    kept, ttl = (0, tariff.short) if cached is None else (cached.tokens, cached.ttl)
    new, gain = tokens - kept, tariff.short_write - tariff.read
    ever, lost = returns.ever, 0.0
    if kept:
        lost = (ever - returns.within(ttl)) * gain * kept
    written = tariff.write_price(paid)
    best, chosen = written * new + ever * gain * new + lost, 0.0
    bill = max(written, tariff.short_write) * new + (ever - returns.within(tariff.short)) * gain * new + lost
    if bill < best:
        best, chosen = bill, tariff.short
    if long and (cached is None or upgrades or ttl >= tariff.long):
        bill = tariff.long_write * new + (ever - returns.within(tariff.long)) * gain * tokens
        if bill < best:
            chosen = tariff.long
    return chosen


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
