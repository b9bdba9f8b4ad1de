"""The cost of an answer that the cache does not parse: it has no key, or its caller left before its end.

    usage    of a plain answer, or of the events of a stream that have one: the cost of a complete answer is exact
    length   otherwise: BYTES_PER_TOKEN bytes are a token, and each event has EVENT_OVERHEAD bytes beside its text

The estimate of a call is a mean of earlier calls. A caller chooses those, and could make calls without a key count for
nearly nothing. So at least the length of what has arrived counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from knapcache.price.estimate import BYTES_PER_TOKEN
from knapcache.wire.sse import parse_block, split_blocks

EVENT_OVERHEAD = 300
"""Bytes of an event beside its text, about: id, model, time and names of fields."""
MAX_PLAIN = 1 << 20
"""Bytes of a plain answer that is parsed, on the event loop. The usage of a longer one is not known."""
MAX_HEAD, MAX_TAIL = 1 << 14, 1 << 18
"""Bytes at the begin and at the end of a stream in which usage is looked for. Anthropic counts the input at the
begin."""
HAS_USAGE = re.compile(rb'"usage"\s*:\s*\{')
DATA = b"data:"
WITHIN = ("message", "response")
"""Fields of events that have the answer, with its usage."""


class AnswerUsage(NamedTuple):
    """The usage that an answer reports."""

    usage: Mapping[str, Any]
    model: str
    """Empty: not named."""
    tier: str | None


class AnswerSample:
    """Sample of an answer while it is read, to price it. stream: it consists of server-sent events."""

    __slots__ = ("_events", "_head", "_size", "_stream", "_tail", "complete")

    def __init__(self, *, stream: bool) -> None:
        self._stream = stream
        self.complete = False
        """The answer was read to its end, so its usage is final."""
        self._size = self._events = 0
        self._head, self._tail = b"", bytearray()

    def add(self, data: bytes) -> None:
        """Take the next bytes."""
        self._size += len(data)
        if not self._stream:
            if self._size <= MAX_PLAIN:
                self._tail += data
            return
        self._events += data.count(DATA)
        if len(self._head) < MAX_HEAD:
            self._head += data[: MAX_HEAD - len(self._head)]
        self._tail += data
        if len(self._tail) > 2 * MAX_TAIL:
            del self._tail[:-MAX_TAIL]

    @property
    def output_tokens(self) -> int:
        """The tokens of what has arrived, by its length."""
        return max(self._events, (self._size - EVENT_OVERHEAD * self._events) // BYTES_PER_TOKEN)

    def usage(self) -> AnswerUsage | None:
        """Return the usage that the answer reports, or None."""
        found: dict[str, Any] = {}
        model, tier = "", None
        for answer in self._answers():
            usage = answer.get("usage")
            if isinstance(usage, dict):
                found |= {name: value for name, value in usage.items() if value is not None}
            model = name if isinstance(name := answer.get("model"), str) and name else model
            tier = name if isinstance(name := answer.get("service_tier"), str) else tier
        return AnswerUsage(found, model, tier) if found else None

    def _answers(self) -> Iterator[dict[str, Any]]:
        """Yield the plain answer, or the events with usage and the answers in them."""
        if not self._stream:
            whole = parsed(bytes(self._tail)) if self._size <= MAX_PLAIN else None
            if whole is not None:
                yield whole
            return
        parts = [bytes(self._tail)] if self._size == len(self._tail) else [self._head, bytes(self._tail)]
        for part in parts:
            for raw in split_blocks(part):
                found = parse_block(raw, first=False).event if HAS_USAGE.search(raw) else None
                event = None if found is None else parsed(found.data.encode(errors="surrogateescape"))
                if event is not None:
                    yield event
                    yield from (each for name in WITHIN if isinstance(each := event.get(name), dict))


def parsed(text: bytes) -> dict[str, Any] | None:
    """Return a JSON object; None if the text is none."""
    try:
        found = orjson.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
