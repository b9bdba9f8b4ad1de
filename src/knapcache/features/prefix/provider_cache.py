"""A model of a provider's prefix cache: what a request with marks reads, writes and costs.

    mark    asks the provider to cache the prefix that ends there, for a time to live
    A       the longest live prefix at or before a mark: it is read, and its time starts again
    B, C    the last long mark, and the last mark

    cost = read price · A + long write price · (B − A) + short write price · (C − max(A, B)) + the rest at full price

A request without marks reads nothing. A long mark behind a prefix that was written for a short time pays the long
price for the new tokens only. A provider may let the whole prefix live long then (it honours the upgrade), or only as
long as its first part.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from knapcache.features.prefix.request import Position, PrefixRequest
from knapcache.features.prefix.tariff import Tariff
from knapcache.price.input_tokens import InputTokens

SWEEP = 4096
"""Entries from which on expired ones are removed, each time that their number has doubled."""
MAX_ENTRIES = 50_000
"""Most entries of a cache: those of an hour with 14 requests per second. Of more, half is dropped."""


class CachedPrefix:
    """A prefix in the provider's cache."""

    __slots__ = ("base", "expires", "tokens", "ttl")

    def __init__(self, tokens: int, ttl: float, now: float, base: CachedPrefix | None = None) -> None:
        self.tokens, self.ttl, self.expires = tokens, ttl, now + ttl
        self.base = base
        """The longest part of it that was written for a shorter time; None: there is none. A read of the whole is a
        read of the part. Without upgrades, the whole cannot be read when the part has expired."""

    def certain(self, now: float) -> bool:
        """Return whether it is live although upgrades are not honoured."""
        return self.expires > now and (self.base is None or self.base.expires > now)

    def refresh(self, now: float) -> None:
        self.expires = max(self.expires, now + self.ttl)
        if self.base is not None:
            self.base.refresh(now)


class Mark(NamedTuple):
    """A mark on a request."""

    at: int
    """Index of the position."""
    ttl: float


class PrefixCache:
    """The prefixes that a provider has cached.

    upgrades   whether a long mark behind a prefix that was written for a short time makes the whole live long
    """

    def __init__(self, tariff: Tariff, *, upgrades: bool) -> None:
        self._tariff, self.upgrades = tariff, upgrades
        self._entries: dict[Hashable, CachedPrefix] = {}
        self._sweep_at = SWEEP

    def longest_live(self, request: PrefixRequest, last: int | None = None) -> tuple[int, CachedPrefix | None]:
        """Return the longest live prefix of a request, and the index of its position. last: up to this position."""
        entries, now, positions = self._entries, request.time, request.positions
        if entries:
            for at in range(len(positions) - 1 if last is None else last, -1, -1):
                entry = entries.get(positions[at].id)
                if entry is not None and self._is_live(entry, now):
                    return at, entry
        return -1, None

    def _is_live(self, entry: CachedPrefix, now: float) -> bool:
        return entry.expires > now and (self.upgrades or entry.certain(now))

    def read(self, request: PrefixRequest, marks: Sequence[Mark]) -> tuple[int, CachedPrefix | None]:
        """Return the prefix that a request with these marks reads, and the index of its position."""
        if not marks:
            return -1, None
        at, entry = self.longest_live(request, marks[-1].at)
        if entry is None or any(mark.at == at for mark in marks):
            return at, entry
        lookback, positions = self._tariff.lookback, request.positions
        while at >= 0:  # the longest that is near enough before a mark
            entry = self._entries.get(positions[at].id)
            if entry is not None and self._is_live(entry, request.time):
                for mark in marks:
                    distance = positions[mark.at].block - positions[at].block
                    if mark.at == at or (mark.at > at and lookback > 1 and distance < lookback):
                        return at, entry
            at -= 1
        return -1, None

    def billed(self, request: PrefixRequest, marks: Sequence[Mark], hit: CachedPrefix | None) -> InputTokens:
        """Return the bill of a request that reads a prefix. Marks are in the order of their positions."""
        if not marks:
            return InputTokens(request.tokens, 0, 0, 0)
        positions, short = request.positions, self._tariff.short
        last = positions[marks[-1].at].tokens
        last_long = 0
        for mark in marks:
            if mark.ttl > short:
                last_long = positions[mark.at].tokens
        read = 0 if hit is None else min(hit.tokens, last)
        billed = max(read, last_long)
        return InputTokens(request.tokens - max(billed, last), read, max(0, last - billed), billed - read)

    def send(self, request: PrefixRequest, marks: Sequence[Mark]) -> tuple[InputTokens, list[CachedPrefix]]:
        """Return the bill of a request and the prefixes that it read or wrote, the longest first."""
        if not marks:
            return InputTokens(request.tokens, 0, 0, 0), []
        now, entries, positions = request.time, self._entries, request.positions
        at, hit = self.read(request, marks)
        bill = self.billed(request, marks, hit)
        touched: list[CachedPrefix] = []
        if hit is not None:
            hit.refresh(now)
            if not any(mark.at == at for mark in marks):
                touched.append(hit)
        for mark in marks:
            position = positions[mark.at]
            entry = entries.get(position.id)
            if entry is None or not self._is_live(entry, now):
                base = None
                if hit is not None and hit.tokens <= position.tokens:
                    base = hit if hit.ttl < mark.ttl else hit.base
                entries[position.id] = entry = CachedPrefix(position.tokens, mark.ttl, now, base)
            else:
                if self.upgrades and mark.ttl > entry.ttl:
                    entry.base = CachedPrefix(entry.tokens, entry.ttl, now, entry.base)  # as it was
                    entry.ttl = mark.ttl
                entry.refresh(now)
            touched.append(entry)
        if len(entries) >= self._sweep_at:
            self._sweep(now)
        touched.reverse()
        return bill, touched

    def _sweep(self, now: float) -> None:
        """Remove what has expired, and if there are still too many, what was not used for the longest time."""
        live = [(key, entry) for key, entry in self._entries.items() if entry.expires > now]
        if len(live) > MAX_ENTRIES // 2:
            live.sort(key=lambda each: each[1].expires - each[1].ttl)
            del live[: -(MAX_ENTRIES // 2)]
        self._entries = dict(live)
        self._sweep_at = min(MAX_ENTRIES, max(SWEEP, 2 * len(self._entries)))

    def forget(self, positions: Sequence[Position]) -> None:
        """Remove prefixes that the provider turned out not to have."""
        for position in positions:
            self._entries.pop(position.id, None)

    def insert(self, position: Position, ttl: float, now: float) -> None:
        """Add a prefix that the provider turned out to have."""
        self._entries[position.id] = CachedPrefix(position.tokens, ttl, now)
