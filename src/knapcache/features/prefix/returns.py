"""Learned return times: how likely a conversation continues, and how soon.

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
