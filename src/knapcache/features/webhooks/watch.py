"""Finds the changes of state that webhooks report: upstreams and hit rate.

The owner process looks every CHECK_INTERVAL seconds, and sends one event for each change. A state that changes and
changes back between two looks is not reported.

    hit rate fallen   hit rate (usage.py) of the last hour < half of that of the last 24 hours, with at least MIN_HOUR
                      requests in the hour and MIN_DAY in the day. Reported again only after it was above that once
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from knapcache.proxy.events.events import Event

CHECK_INTERVAL = 5.0
BUCKET = 300.0
"""Seconds of requests that are counted together."""
HOUR_BUCKETS, DAY_BUCKETS = 12, 288
MIN_HOUR, MIN_DAY = 100, 1000


class HitRateWindow:
    """Requests and hits of the last day, by BUCKET seconds."""

    def __init__(self) -> None:
        self._buckets: deque[list[int]] = deque(maxlen=DAY_BUCKETS)
        """Number of the bucket, requests and hits; the newest last."""

    def add(self, now: float, hit: bool) -> None:
        number = int(now // BUCKET)
        if not self._buckets or self._buckets[-1][0] < number:
            self._buckets.append([number, 0, 0])
        self._buckets[-1][1] += 1
        self._buckets[-1][2] += hit

    def rates(self, now: float) -> tuple[float, float] | None:
        """Return the hit rates of the last hour and of the last day, or None if there are too few requests."""
        newest = int(now // BUCKET)
        sums = []
        for buckets, least in ((HOUR_BUCKETS, MIN_HOUR), (DAY_BUCKETS, MIN_DAY)):
            counted = [bucket for bucket in self._buckets if bucket[0] > newest - buckets]
            requests, hits = sum(bucket[1] for bucket in counted), sum(bucket[2] for bucket in counted)
            if requests < least:
                return None
            sums.append(hits / requests)
        return sums[0], sums[1]


class StateWatcher:
    """Compares states with those of the last look. It is a consumer of events.

    notify      reports a change: its name, and its fields as keywords
    upstreams   returns the rows of UpstreamHealth.report
    """

    def __init__(
        self,
        notify: Callable[..., None],
        upstreams: Callable[[], Sequence[dict[str, Any]]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._notify, self._upstreams, self._clock = notify, upstreams, clock
        self._failing: set[str] = set()
        self._hit_rate = HitRateWindow()
        self._fallen = False

    def consume(self, events: Sequence[Event]) -> None:
        for event in events:
            self._hit_rate.add(self._clock(), event.saved)

    def look(self) -> None:
        """Send an event for each change."""
        for row in self._upstreams():
            name, failing = row["name"], row["state"] == "failing"
            if failing and name not in self._failing:
                self._failing.add(name)
                self._notify("upstream_down", upstream=name, reason=row["reason"], since=row["failing_since"])
            elif not failing and name in self._failing:
                self._failing.discard(name)
                self._notify("upstream_recovered", upstream=name)
        rates = self._hit_rate.rates(self._clock())
        if rates is None:
            return
        fallen = rates[0] < rates[1] / 2
        if fallen and not self._fallen:
            self._notify("hit_rate_fallen", last_hour=round(rates[0], 4), last_day=round(rates[1], 4))
        self._fallen = fallen

    async def run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            self.look()
