"""Rules that place marks on a request.

    none        no marks
    last        a mark at the end, for a short or a long time
    system      marks at the end, at the end of the request that this one continues, and after the system prompt:
                what proxies and libraries do
    learned     no mark, a short or a long one at the end, by the expected bill

The learned rule compares the bills of this request and of the next one, from the probability that the conversation
continues within some time (returns.py). R are the tokens that are cached already, D the new ones, w and r the prices of
writing and reading, and s the probability that the conversation is continued at all:

    no mark   D                + s (w − r) D + (s − G(R)) (w − r) R
    short     short price · D  + (s − G(short)) (w − r) D + (s − G(R)) (w − r) R
    long      long price · D   + (s − G(long)) (w − r) (R + D)

G(R) is the probability of a continuation while R lives. If the provider does not prolong the life of R, its term in the
last line is that of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from knapcache.prefix.provider_cache import CachedPrefix, Mark, longest_live
from knapcache.prefix.returns import ReturnCurve
from knapcache.prefix.tariff import Tariff


class PrefixRequest(NamedTuple):
    """A request as the rules see it. Lengths are in tokens, at the ends of blocks that can be marked."""

    time: float
    end: int
    """Length up to the last block."""
    continued: int
    """Length of the request that this one continues, as far as both are equal; 0: none."""
    system: int
    """Length of the system prompt; 0: none, or unknown."""
    returns: ReturnCurve


Rule = Callable[[Tariff, PrefixRequest, Sequence[CachedPrefix]], list[Mark]]


def none(_tariff: Tariff, _request: PrefixRequest, _reachable: Sequence[CachedPrefix]) -> list[Mark]:
    """Place no mark."""
    return []


def last(tariff: Tariff, request: PrefixRequest, ttl: float) -> list[Mark]:
    """Mark the end."""
    return [Mark(request.end, ttl)] if request.end >= tariff.minimum else []


def system(tariff: Tariff, request: PrefixRequest, ttl: float) -> list[Mark]:
    """Mark the system prompt, the end of the continued request, and the end."""
    lengths = (request.system, request.continued, request.end)
    return [Mark(length, ttl) for length in dict.fromkeys(lengths) if tariff.minimum <= length <= request.end]


def learned(
    tariff: Tariff, request: PrefixRequest, reachable: Sequence[CachedPrefix], *, upgrades: bool, long: bool = True
) -> list[Mark]:
    """Place the marks of the lowest expected bill. long: whether marks for a long time are considered."""
    if request.end < tariff.minimum:
        return []
    cached = longest_live(reachable, request.end, request.time)
    kept = 0 if cached is None else cached.tokens
    ttl = tariff.short if cached is None else cached.ttl
    new, gain = request.end - kept, tariff.short_write - tariff.read
    ever, short, late = request.returns.ever, request.returns.within(tariff.short), request.returns.within(tariff.long)
    lost = (ever - request.returns.within(ttl)) * gain * kept
    bills = {
        0.0: new + ever * gain * new + lost,
        tariff.short: tariff.short_write * new + (ever - short) * gain * new + lost,
    }
    if long:
        prolonged = upgrades or cached is None or ttl >= tariff.long
        lost = (ever - late) * gain * kept if prolonged else lost
        bills[tariff.long] = tariff.long_write * new + (ever - late) * gain * new + lost
    chosen = min(bills, key=lambda each: bills[each])
    marks = []
    if kept >= tariff.minimum:
        marks.append(Mark(kept, tariff.long if chosen == tariff.long and upgrades else ttl))
    if chosen and new:
        marks.append(Mark(request.end, chosen))
    return marks


def rules(tariff: Tariff, *, upgrades: bool) -> dict[str, Rule]:
    """Return the rules by name."""
    found: dict[str, Rule] = {"none": none}
    for name, ttl in (("5m", tariff.short), ("1h", tariff.long)):
        found[f"last-{name}"] = lambda tariff, request, _, ttl=ttl: last(tariff, request, ttl)  # type: ignore[misc]
        found[f"system2-{name}"] = lambda tariff, request, _, ttl=ttl: system(tariff, request, ttl)  # type: ignore[misc]
    found["learned"] = lambda tariff, request, reachable: learned(tariff, request, reachable, upgrades=upgrades)
    found["learned-5m"] = lambda tariff, request, reachable: learned(
        tariff, request, reachable, upgrades=False, long=False
    )
    return found
