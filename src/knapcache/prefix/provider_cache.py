"""A model of a provider's prefix cache: what a request with marks reads, writes and costs.

    mark    asks the provider to cache the prefix that ends there, for a time to live
    A       the longest live prefix at or before the last mark: it is read, and its time starts again
    B, C    the last long mark, and the last mark

    cost = read price · A + long write price · (B − A) + short write price · (C − max(A, B)) + the rest at full price

Other requests reach a cached prefix if they begin with it. Requests that share a prefix share its `CachedPrefix`
object, so a read by one of them extends its life for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from knapcache.prefix.tariff import Tariff


class CachedPrefix:
    """A prefix in the provider's cache."""

    __slots__ = ("expires", "tokens", "ttl")

    def __init__(self, tokens: int, ttl: float, expires: float) -> None:
        self.tokens, self.ttl, self.expires = tokens, ttl, expires


class Mark(NamedTuple):
    """A mark on a request: after how many tokens, and for how many seconds."""

    tokens: int
    ttl: float


class PrefixBill(NamedTuple):
    """The input tokens of one request, as they are billed."""

    read: int
    short_written: int
    long_written: int
    plain: int

    def cost(self, tariff: Tariff) -> float:
        """Return the price, in plain tokens."""
        written = self.short_written * tariff.short_write + self.long_written * tariff.long_write
        return self.read * tariff.read + written + self.plain


def longest_live(reachable: Iterable[CachedPrefix], limit: int, now: float) -> CachedPrefix | None:
    """Return the longest prefix of at most so many tokens that has not expired."""
    live = [prefix for prefix in reachable if prefix.tokens <= limit and prefix.expires > now]
    return max(live, key=lambda prefix: prefix.tokens, default=None)


def send(
    tariff: Tariff, reachable: Sequence[CachedPrefix], marks: Sequence[Mark], tokens: int, now: float, *, upgrades: bool
) -> tuple[PrefixBill, list[CachedPrefix]]:
    """Return the bill of a request, and the prefixes that requests which continue it can reach.

    reachable   prefixes that the request begins with, expired or not
    tokens      input tokens of the request
    upgrades    whether a long mark on a prefix that was cached for a short time makes it live long
    """
    last = max((mark.tokens for mark in marks), default=0)
    last_long = max((mark.tokens for mark in marks if mark.ttl >= tariff.long), default=0)
    hit = longest_live(reachable, last, now)
    read = 0 if hit is None else hit.tokens
    if hit is not None:
        hit.expires = max(hit.expires, now + hit.ttl)
    live = {prefix.tokens: prefix for prefix in reachable if prefix.expires > now}
    after = [prefix for prefix in reachable if prefix.expires > now]
    for mark in marks:
        known = live.get(mark.tokens)
        if known is None:
            after.append(CachedPrefix(mark.tokens, mark.ttl, now + mark.ttl))
        else:
            if upgrades:
                known.ttl = max(known.ttl, mark.ttl)
            known.expires = max(known.expires, now + known.ttl)
    long_written = max(0, last_long - read)
    short_written = max(0, last - max(read, last_long))
    return PrefixBill(read, short_written, long_written, tokens - max(read, last)), after
