"""A live stream: forwarded to the caller block by block, and collected for the cache. Pure.

The last blocks are held back (`tail`) until the answer is stored, so that a caller that has read the end of a stream
and repeats its request gets a hit.
"""

from __future__ import annotations

from collections.abc import Mapping

from knapcache.cache import Reply
from knapcache.exchange.exchange import Exchange, stream_reply
from knapcache.wire import SseBlock, StreamCollector


class StreamTee:
    """Forwards and collects one stream. headers: the provider's; usage_asked: by the caller or on its behalf.

    max_size   bytes of an answer that is collected; None: no limit
    """

    def __init__(
        self, exchange: Exchange, headers: Mapping[str, str], usage_asked: bool, max_size: int | None = None
    ) -> None:
        self._exchange, self._headers, self._usage_asked = exchange, headers, usage_asked
        # Some providers send usage without being asked. That is forwarded.
        self._include_usage = exchange.include_usage or not usage_asked
        self._collector = StreamCollector(exchange.format, max_size)
        self._forwarded: list[bytes] = []
        self.tail: list[bytes] = []
        """The blocks that are held back: those that came with the terminator or after it."""

    @property
    def ended(self) -> bool:
        """Whether the terminator was seen."""
        return self._collector.ended

    @property
    def size(self) -> int:
        """Bytes that were collected."""
        return sum(map(len, self._forwarded)) + sum(map(len, self.tail))

    @property
    def overflowed(self) -> bool:
        """Whether the answer is longer than max_size. It is still forwarded, and no longer collected."""
        return self._collector.overflowed

    def feed(self, data: bytes) -> list[bytes]:
        """Return the blocks to forward."""
        return self._forward(self._collector.feed(data))

    def close(self) -> list[bytes]:
        """Return the last blocks to forward, at the end of the stream."""
        return self._forward(self._collector.close())

    def reply(self) -> Reply:
        """Return the reply to the cache. Call `close` first."""
        return stream_reply(self._exchange, self._headers, self._collector, self._forwarded, self._usage_asked)

    def _forward(self, blocks: list[SseBlock]) -> list[bytes]:
        forward = self._exchange.format.forward
        found = [raw for block in blocks if (raw := forward(block, self._include_usage)) is not None]
        if self._collector.overflowed:
            self._forwarded.clear()
            return found
        if self._collector.ended:
            self.tail += found
            return []
        self._forwarded += found  # waiters get these if the answer turns out to be incomplete
        return found
