"""Follows conversations: which request continues which, and how soon."""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from knapcache.features.prefix.request import PrefixRequest
from knapcache.features.prefix.returns import ReturnCurve, ReturnTimes

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


class Continuation:
    """The request that a request continues, and its own return curves, which are computed when they are needed."""

    __slots__ = ("_curve", "_system_curve", "_times", "at", "classes", "number", "parent", "system_classes")

    def __init__(
        self,
        times: ReturnTimes,
        parent: Hashable | None,
        at: int,
        number: int,
        classes: Sequence[Hashable],
        system_classes: Sequence[Hashable],
    ) -> None:
        self._times = times
        self._curve: ReturnCurve | None = None
        self._system_curve: ReturnCurve | None = None
        self.parent = parent
        """Id of the position at which the continued request ended; None: it continues none that is known."""
        self.at = at
        """Index of that position in the request; -1: none."""
        self.number = number
        """How many requests it continues, one after the other."""
        self.classes = classes
        """Classes for return times, from the general to the special."""
        self.system_classes = system_classes
        """Those of its system prompt; empty: the request begins no conversation, or has no system prompt."""

    @property
    def returns(self) -> ReturnCurve:
        """How soon the request is continued."""
        if self._curve is None:
            self._curve = self._times.curve(self.classes)
        return self._curve

    @property
    def system(self) -> ReturnCurve | None:
        """How soon another conversation begins with the same system prompt; None: this request begins none."""
        if self._system_curve is None and self.system_classes:
            self._system_curve = self._times.curve(self.system_classes)
        return self._system_curve


class Conversations:
    """Learns how soon conversations are continued. Times increase, but for requests that are counted late."""

    def __init__(self) -> None:
        self._returns = ReturnTimes()
        self._turns: dict[Hashable, Turn] = {}
        self._systems: dict[Hashable, float] = {}
        """Time of the last conversation that began with a system prompt."""

    def find(self, request: PrefixRequest) -> Continuation:
        """Return what a request continues: the one with the longest input that it begins with as a whole."""
        turns, now, positions = self._turns, request.time, request.positions
        parent, at, gap, number = None, -1, -1.0, 0
        for k in range(len(positions) - 2, -1, -1):
            before = turns.get(positions[k].id)
            if before is not None:
                parent, at, gap, number = positions[k].id, k, now - before.time, before.number + 1
                break
        new = request.end.tokens - (positions[at].tokens if at >= 0 else 0)
        system: Sequence[Hashable] = ()
        if request.system > at:
            last = self._systems.get(positions[request.system].id)
            system = "system", ("system", 0 if last is None else bisect.bisect(GAPS, now - last))
        return Continuation(self._returns, parent, at, number, classes_of(request.kind, number, gap, new), system)

    def count(self, request: PrefixRequest, continues: Continuation) -> None:
        """Count a request."""
        returns, now, end = self._returns, request.time, request.end
        returns.advance(now)
        if continues.parent is not None:
            returns.end(continues.parent, now)
        put(self._turns, end.id, Turn(now, continues.number))
        if end.tokens >= request.minimum:
            returns.begin(end.id, continues.classes, now)
        if continues.system_classes:
            prompt = request.positions[request.system].id
            returns.end(("system", prompt), now)
            put(self._systems, prompt, now)
            returns.begin(("system", prompt), continues.system_classes, now)

    def observe(self, request: PrefixRequest) -> Continuation:
        """Count a request, and return what it continues."""
        continues = self.find(request)
        self.count(request, continues)
        return continues


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
