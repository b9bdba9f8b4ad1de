"""The prefix caches of Anthropic and OpenAI: what a request reads, what it writes and what it pays.

A request is charged when it arrives. What it writes is readable when its response begins, and its TTL counts from the
arrival. Each class holds the cache of one credential and one model.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from knapcache.errors import InvalidInput
from knapcache.testing.prefix_provider.prompt import BREAKPOINT_SECONDS, CountTokens, PromptBlock

LOOKBACK_BLOCKS = 20
"""Positions that Anthropic checks for each mark, with the mark's own position as the first."""
LONG_TTL = 3600.0
MAX_WRITES = 4
MAX_BREAKPOINTS = 80
"""Breakpoints that OpenAI considers for reads, latest first."""
AUTOMATIC_MINIMUM, AUTOMATIC_STEP = 1024, 128


class PrefixPrices(NamedTuple):
    """Prices in units of one plain input token."""

    read: float
    short_written: float
    long_written: float


ANTHROPIC_PRICES = PrefixPrices(0.1, 1.25, 2.0)
BREAKPOINT_PRICES = PrefixPrices(0.1, 1.25, 1.25)
AUTOMATIC_PRICES = PrefixPrices(0.1, 1.0, 1.0)


class PrefixCharge(NamedTuple):
    """The input tokens of one request by price."""

    read: int = 0
    short_written: int = 0
    """Written for 5 minutes; at OpenAI for 30."""
    long_written: int = 0
    """Written for 1 hour."""
    plain: int = 0

    @property
    def tokens(self) -> int:
        return self.read + self.short_written + self.long_written + self.plain

    def cost(self, prices: PrefixPrices) -> float:
        written = prices.short_written * self.short_written + prices.long_written * self.long_written
        return prices.read * self.read + written + self.plain


class _Written:
    """A prefix in the cache. base: a part of it with an expiry of its own, without which it cannot be read."""

    __slots__ = ("base", "expires", "ttl")

    def __init__(self, ttl: float, expires: float, base: _Written | None = None) -> None:
        self.ttl, self.expires, self.base = ttl, expires, base

    def is_live(self, now: float) -> bool:
        return now < self.expires and (self.base is None or self.base.is_live(now))

    def refresh(self, now: float) -> None:
        """Start the TTL again. A read of the whole is a read of its part."""
        self.expires = now + self.ttl
        if self.base is not None:
            self.base.refresh(now)


class PendingWrite(NamedTuple):
    """A prefix that becomes readable when the response begins."""

    digest: bytes
    ttl: float
    expires: float
    base: _Written | None = None


class PrefixCacheModel(ABC):
    """A provider's cache: entries by digest, with their TTL."""

    def __init__(self) -> None:
        self._entries: dict[bytes, _Written] = {}

    @abstractmethod
    def charge(self, blocks: Sequence[PromptBlock], now: float) -> tuple[PrefixCharge, list[PendingWrite]]:
        """Charge a request that arrives now, refresh what it reads, and return what it writes."""

    def live(self, digest: bytes, now: float) -> _Written | None:
        """Return an entry that has not expired."""
        entry = self._entries.get(digest)
        return entry if entry is not None and entry.is_live(now) else None

    def write(self, pending: Sequence[PendingWrite]) -> None:
        """Make the writes of a request readable. An entry that another request wrote meanwhile keeps the later end."""
        for digest, ttl, expires, base in pending:
            entry = self._entries.get(digest)
            if entry is None or expires > entry.expires or not entry.is_live(expires - ttl):
                self._entries[digest] = _Written(ttl, expires, base)

    def forget(self) -> None:
        """Drop all entries."""
        self._entries.clear()


def anthropic_minimum(model: str) -> int:
    """Return the length in tokens below which Anthropic ignores a mark."""
    if re.search(r"haiku-3|3-haiku|3-5-haiku", model):
        return 2048
    if re.search(r"opus-4-[5-7]|haiku-4-5", model):
        return 4096
    return 1024


class AnthropicCache(PrefixCacheModel):
    """Marks with a TTL of 5 minutes or 1 hour.

    From each mark, 20 positions are checked for an entry, and the longest entry found is read (A tokens). Every mark
    writes an entry. With B, the last 1 hour mark, and C, the last mark, a request pays

        A            read
        B − A        written for 1 hour, if positive
        C − max(A, B)    written for 5 minutes, if positive
        the rest     plain

    A read refreshes an entry for its own TTL. A mark on a live entry refreshes it, too.

    `upgrades`: what a 1 hour mark does to a prefix that was read from a 5 minute entry. True: the whole prefix lives
    1 hour. False: only the new tail does. The prefix can be read as long as both parts are live, and a read refreshes
    both.
    """

    def __init__(self, minimum: int, upgrades: bool = True) -> None:
        super().__init__()
        self.minimum, self.upgrades = minimum, upgrades

    def charge(self, blocks: Sequence[PromptBlock], now: float) -> tuple[PrefixCharge, list[PendingWrite]]:
        marks = [n for n, block in enumerate(blocks) if block.ttl and block.tokens >= self.minimum]
        reachable = sorted({place for n in marks for place in range(max(0, n - LOOKBACK_BLOCKS + 1), n + 1)})
        hit, read = None, 0
        for place in reversed(reachable):
            hit = self.live(blocks[place].digest, now)
            if hit is not None:
                hit.refresh(now)
                read = blocks[place].tokens
                break
        pending = []
        for n in marks:
            digest, ttl = blocks[n].digest, blocks[n].ttl
            entry = self.live(digest, now)
            if entry is not None:
                entry.ttl = max(entry.ttl, ttl) if self.upgrades else entry.ttl
                entry.refresh(now)
            else:
                base = None
                if hit is not None and not self.upgrades:
                    base = hit if hit.ttl < ttl else hit.base
                pending.append(PendingWrite(digest, ttl, now + ttl, base))
        total = blocks[-1].tokens if blocks else 0
        long_end = max([read, *(blocks[n].tokens for n in marks if blocks[n].ttl == LONG_TTL)])
        end = max([long_end, *(blocks[n].tokens for n in marks)])
        return PrefixCharge(read, end - long_end, long_end - read, total - end), pending


class BreakpointCache(PrefixCacheModel):
    """OpenAI from GPT-5.6: breakpoints with a TTL of 30 minutes.

    explicit mode    reads and writes at the request's breakpoints; without one the cache is not used
    implicit mode    one more breakpoint at the end of the latest message that may carry one. Ends of earlier messages
                     are read, because they were the latest message once; `reads_history` switches this off

    The latest 4 breakpoints are written, the implicit one among them. The latest 80 are considered for reads.
    """

    def __init__(self, minimum: int = AUTOMATIC_MINIMUM, reads_history: bool = True) -> None:
        super().__init__()
        self.minimum, self.reads_history = minimum, reads_history

    def charge(self, blocks: Sequence[PromptBlock], now: float) -> tuple[PrefixCharge, list[PendingWrite]]:
        ends = [n for n, block in enumerate(blocks) if block.ends_message]  # none in explicit mode
        marked = {n for n, block in enumerate(blocks) if block.ttl} | set(ends[-1:])
        written = [n for n in sorted(marked)[-MAX_WRITES:] if blocks[n].tokens >= self.minimum]
        readable = sorted(marked | set(ends if self.reads_history else ()))[-MAX_BREAKPOINTS:]
        read = 0
        for n in reversed(readable):
            entry = self.live(blocks[n].digest, now)
            if entry is not None:
                read = blocks[n].tokens
                entry.refresh(now)
                break
        pending = []
        for n in written:
            entry = self.live(blocks[n].digest, now)
            if entry is not None:
                entry.refresh(now)
            else:
                pending.append(PendingWrite(blocks[n].digest, BREAKPOINT_SECONDS, now + BREAKPOINT_SECONDS))
        total = blocks[-1].tokens if blocks else 0
        end = max([read, *(blocks[n].tokens for n in written)])
        return PrefixCharge(read, end - read, 0, total - end), pending


class AutomaticCache(PrefixCacheModel):
    """OpenAI before GPT-5.6: every prefix of 1,024 tokens and more, in steps of 128.

    A prefix is readable for `ttl` seconds after its last use. Prefixes end anywhere, also in the middle of a block.
    """

    def __init__(self, count_tokens: CountTokens, ttl: float = 600.0) -> None:
        super().__init__()
        if ttl <= 0:
            raise InvalidInput(f"ttl must be positive, not {ttl}")
        self._count_tokens, self.ttl = count_tokens, ttl

    def charge(self, blocks: Sequence[PromptBlock], now: float) -> tuple[PrefixCharge, list[PendingWrite]]:
        total = blocks[-1].tokens if blocks else 0
        read, pending = 0, []
        for tokens, digest in self._steps(blocks, total):
            entry = self.live(digest, now)
            if entry is not None:
                read, entry.expires = tokens, now + self.ttl
            else:
                pending.append(PendingWrite(digest, self.ttl, now + self.ttl))
        return PrefixCharge(read, 0, 0, total - read), pending

    def _steps(self, blocks: Sequence[PromptBlock], total: int) -> list[tuple[int, bytes]]:
        """Return length and digest of every prefix that can be cached."""
        steps: list[tuple[int, bytes]] = []
        before, goal, digest = 0, AUTOMATIC_MINIMUM, b""
        for block in blocks:
            while goal <= min(block.tokens, total):
                head = self._head(block.text, goal - before)
                steps.append((goal, blake2b(digest + head.encode(), digest_size=16).digest()))
                goal += AUTOMATIC_STEP
            before, digest = block.tokens, block.digest
        return steps

    def _head(self, text: str, tokens: int) -> str:
        """Return the shortest head of a text that has this many tokens."""
        lengths = range(len(text) + 1)
        return text[: bisect_left(lengths, tokens, key=lambda length: self._count_tokens(text[:length]))]
