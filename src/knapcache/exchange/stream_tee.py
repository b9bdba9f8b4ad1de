"""A stream on its way: read by the one who fetches, heard by the one who asked, kept when it was whole.

The fetch runs under the cache's single flight, in a thread or a task of its own where the asker waits for what it
brings. What it reads it passes on, block by block; the asker may leave, and the fetch goes on (or stops:
`finish=False`). The end of an answer is held back until the cache has settled it: who has heard the end and asks again
finds the answer kept.

    heard = Opened, block*, then Answer | exception        somebody else's fetch, a hit or a failure: that alone
            (who listens in the fetch's own task is not told of the last, for the fetch returns it)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from knapcache.cache import Answer, Reply
from knapcache.errors import Incomplete
from knapcache.exchange.exchange import Exchange, stream_reply
from knapcache.wire import Collector
from knapcache.wire.base import passed_on
from knapcache.wire.sse import Block


class Opened(NamedTuple):
    """The provider has begun to answer."""

    headers: list[tuple[str, str]]


Heard = Opened | bytes | Answer | BaseException


class StreamTee:
    """Between the fetch and the asker. put: how to tell the asker, from where the fetch runs."""

    def __init__(self, exchange: Exchange, finish: bool, put: Callable[[Heard], None]) -> None:
        self._exchange, self._finish, self.put = exchange, finish, put
        self._collector = Collector(exchange.endpoint)
        self._passed: list[bytes] = []
        self._asked = exchange.usage
        self._headers: Mapping[str, str] = {}
        self.open = False
        """The stream has begun."""
        self.answered: list[tuple[str, str]] | None = None
        """Headers of an answer that came for this asker, and was no stream."""
        self.left = False
        """The asker has gone."""
        self.held: list[bytes] = []
        """The end of the answer."""

    def opened(self, headers: Mapping[str, str], pairs: list[tuple[str, str]], asked: bool) -> None:
        """The stream begins. headers: by lower-case names; pairs: as they came; asked: its usage was asked for."""
        self._asked = asked
        self._headers = headers
        self.open = True
        self.put(Opened(pairs))

    def fed(self, piece: bytes) -> bool:
        """A piece has come. Was it the last that matters?"""
        if self.left and not self._finish:
            raise Incomplete("the asker has left")
        self._pass(self._collector.feed(piece))
        return self._collector.ended

    def reply(self) -> Reply:
        """The stream is over."""
        self._pass(self._collector.close())
        return stream_reply(self._exchange, self._headers, self._collector, self._passed, self._asked)

    def _pass(self, blocks: list[Block]) -> None:
        for block in blocks:
            usage = self._exchange.usage or not self._asked  # what was not asked for on its behalf is its own
            raw = passed_on(self._exchange.endpoint, block, usage)
            if raw is None:
                continue
            if not self._collector.ended:
                self._passed.append(raw)  # only wanted where the answer turns out not to be whole
                self.put(raw)
            else:
                self.held.append(raw)
