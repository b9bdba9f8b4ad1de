"""Follows conversations: which request continues which, and how soon.

For each class of requests, hazards by age: of the requests that had not been continued at the start of an age bucket,
the share that was continued within it (Kaplan-Meier). A request that has not been continued yet counts in the buckets
it has survived, and in no later one, so a running conversation is not taken for one that has ended.

Classes form a chain from the general to the special. The hazard of each is drawn towards that of the one before, as if
that had been seen WEIGHT times.
"""

from __future__ import annotations

import bisect
import heapq
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from knapcache.features.prefix.request import PrefixRequest

TURNS = (1, 3, 10)
GAPS = (0.0, 30.0, 120.0, 300.0, 1200.0)
SIZES = (500, 2000, 8000, 32_000)
"""Bounds of the classes of requests: by number of turns, seconds since the last turn, and new tokens."""
MAX_TURNS = 100_000
"""Requests that are remembered. The oldest are dropped."""
EDGES = (15.0, 60.0, 150.0, 300.0, 600.0, 1200.0, 2400.0, 3600.0, 14_400.0, 86_400.0)
"""Ends of the age buckets, in seconds."""
WEIGHT = 50.0
FIRST_HAZARD = 0.03
"""Hazard of every bucket before anything was seen."""
NOTHING = (0.0,) * len(EDGES)
MAX_OPEN = 100_000
"""Requests whose continuation is waited for. The oldest are dropped."""


class ReturnCurve:
    """The probability that a request is continued within some time."""

    __slots__ = ("_values",)

    def __init__(self, values: Sequence[float]) -> None:
        self._values = values

    def within(self, seconds: float) -> float:
        """Return the probability, linear between the ends of buckets."""
        if seconds <= 0.0:
            return 0.0
        k = bisect.bisect_left(EDGES, seconds)
        if k >= len(EDGES):
            return self._values[-1]
        start, before = (EDGES[k - 1], self._values[k - 1]) if k else (0.0, 0.0)
        return before + (self._values[k] - before) * (seconds - start) / (EDGES[k] - start)

    @property
    def ever(self) -> float:
        return self._values[-1]


class ReturnTimes:
    """Counts by class and age bucket. Times increase, but for requests that are reported late."""

    def __init__(self) -> None:
        self._returned: dict[Hashable, list[float]] = defaultdict(lambda: [0.0] * len(EDGES))
        self._survived: dict[Hashable, list[float]] = defaultdict(lambda: [0.0] * len(EDGES))
        self._open: dict[Hashable, tuple[float, Sequence[Hashable]]] = {}
        self._ends: list[tuple[float, int, Hashable, int]] = []  # end of a bucket, serial, request, bucket
        self._serial = 0

    def begin(self, request: Hashable, classes: Sequence[Hashable], now: float) -> None:
        """Wait for the continuation of a request."""
        if len(self._open) >= MAX_OPEN:
            del self._open[next(iter(self._open))]
        self._open[request] = now, classes
        self._push(now + EDGES[0], request, 0)

    def end(self, request: Hashable, now: float) -> None:
        """Count the continuation of a request."""
        found = self._open.pop(request, None)
        if found is not None:
            began, classes = found
            bucket = bisect.bisect_left(EDGES, now - began)
            if bucket < len(EDGES):
                for each in classes:
                    self._returned[each][bucket] += 1.0

    def advance(self, now: float) -> None:
        """Count the buckets that requests have survived by now."""
        while self._ends and self._ends[0][0] < now:
            _, _, request, bucket = heapq.heappop(self._ends)
            found = self._open.get(request)
            if found is None:
                continue
            began, classes = found
            for each in classes:
                self._survived[each][bucket] += 1.0
            if bucket + 1 < len(EDGES):
                self._push(began + EDGES[bucket + 1], request, bucket + 1)
            else:
                del self._open[request]

    def curve(self, classes: Sequence[Hashable]) -> ReturnCurve:
        """Return the curve of the last class."""
        hazards = [FIRST_HAZARD] * len(EDGES)
        for each in classes:
            returned, survived = self._returned.get(each), self._survived.get(each)
            if returned is not None or survived is not None:
                hazards = [
                    (r + WEIGHT * hazard) / (r + s + WEIGHT)
                    for r, s, hazard in zip(returned or NOTHING, survived or NOTHING, hazards, strict=True)
                ]
        survival, values = 1.0, []
        for hazard in hazards:
            survival *= 1.0 - hazard
            values.append(1.0 - survival)
        return ReturnCurve(values)

    def _push(self, at: float, request: Hashable, bucket: int) -> None:
        self._serial += 1
        heapq.heappush(self._ends, (at, self._serial, request, bucket))


class Turn(NamedTuple):
    """A request of a conversation that may be continued."""

    time: float
    number: int
    """How many requests it continues, one after the other."""


@dataclass
class Continuation:
    """The request that a request continues, and its own return curves, which are computed when they are needed."""

    times: ReturnTimes
    parent: Hashable | None
    """Id of the position at which the continued request ended; None: it continues none that is known."""
    at: int
    """Index of that position in the request; -1: none."""
    number: int
    """How many requests it continues, one after the other."""
    classes: Sequence[Hashable]
    """Classes for return times, from the general to the special."""
    system_classes: Sequence[Hashable]
    """Those of its system prompt; empty: the request begins no conversation, or has no system prompt."""

    @cached_property
    def returns(self) -> ReturnCurve:
        """How soon the request is continued."""
        return self.times.curve(self.classes)

    @cached_property
    def system(self) -> ReturnCurve | None:
        """How soon another conversation begins with the same system prompt; None: this request begins none."""
        return self.times.curve(self.system_classes) if self.system_classes else None


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
