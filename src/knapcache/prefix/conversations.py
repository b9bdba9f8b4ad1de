"""Follows conversations: which request continues which, and how soon."""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from knapcache.prefix.request import PrefixRequest
from knapcache.prefix.returns import ReturnCurve, ReturnTimes

TURNS = (1, 3, 10)
GAPS = (0.0, 30.0, 120.0, 300.0, 1200.0)
SIZES = (500, 2000, 8000, 32_000)
"""Bounds of the classes of requests: by number of turns, seconds since the last turn, and new tokens."""
MAX_TURNS = 100_000
"""Requests that are remembered. The oldest are dropped."""


class Turn(NamedTuple):
    """A request of a conversation that may be continued."""

    time: float
    number: int
    """How many requests it continues, one after the other."""


class Continuation(NamedTuple):
    """What a request continues, and how likely it is continued itself."""

    parent: Hashable | None
    """Id of the position at which the continued request ended; None: it continues none that is known."""
    at: int
    """Index of that position in the request; -1: none."""
    returns: ReturnCurve
    system: ReturnCurve | None
    """How soon another conversation begins with the same system prompt; None: this request begins none."""


class Conversations:
    """Learns how soon conversations are continued. Times increase, but for requests that are reported late."""

    def __init__(self) -> None:
        self._returns = ReturnTimes()
        self._turns: dict[Hashable, Turn] = {}
        self._systems: dict[Hashable, float] = {}
        """Time of the last conversation that began with a system prompt."""

    def observe(self, request: PrefixRequest) -> Continuation:
        """Count a request, and return what it continues.

        It continues the request with the longest input that it begins with as a whole.
        """
        returns, turns, now, positions = self._returns, self._turns, request.time, request.positions
        returns.advance(now)
        parent, at, gap, number = None, -1, -1.0, 0
        for k in range(len(positions) - 2, -1, -1):
            before = turns.get(positions[k].id)
            if before is not None:
                parent, at, gap, number = positions[k].id, k, now - before.time, before.number + 1
                returns.end(parent, now)
                break
        end = request.end
        put(turns, end.id, Turn(now, number))
        classes = classes_of(request.kind, number, gap, end.tokens - (positions[at].tokens if at >= 0 else 0))
        if end.tokens >= request.minimum:
            returns.begin(end.id, classes, now)
        system = self._begin_conversation(request) if request.system > at else None
        return Continuation(parent, at, returns.curve(classes), system)

    def _begin_conversation(self, request: PrefixRequest) -> ReturnCurve:
        """Count a conversation that begins with a system prompt. Return how soon another one does."""
        prompt, now = request.positions[request.system].id, request.time
        key = "system", prompt
        last = self._systems.get(prompt)
        self._returns.end(key, now)
        put(self._systems, prompt, now)
        pause = 0 if last is None else bisect.bisect(GAPS, now - last)
        classes = "system", ("system", pause)
        self._returns.begin(key, classes, now)
        return self._returns.curve(classes)


def put(table: dict[Hashable, Any], key: Hashable, value: Any) -> None:
    """Set a value as the newest, and drop the oldest if there are too many."""
    table.pop(key, None)
    table[key] = value
    if len(table) > MAX_TURNS:
        del table[next(iter(table))]


def classes_of(kind: str, number: int, gap: float, new: int) -> Sequence[Hashable]:
    """Return the classes of a request, from the general to the special."""
    turn, pause, size = bisect.bisect(TURNS, number), bisect.bisect(GAPS, gap), bisect.bisect(SIZES, new)
    return "all", kind, (kind, min(number, 1)), (kind, turn, pause), (kind, turn, pause, size)
