"""The limits of one process: what runs periodically."""

from __future__ import annotations

import asyncio

import pytest

from knapcache.features.limits import limits as subject
from knapcache.features.limits.fallback_counts import FallbackCounts
from knapcache.features.limits.limits import Limits
from knapcache.features.limits.sqlite_counts import SqliteCounts
from knapcache.price.estimate import CostEstimator
from knapcache.price.meter import Meter
from knapcache.proxy.settings import Settings
from tests.support.timing import async_wait_until


class BeatenCounts(FallbackCounts):
    """Counters that count beats."""

    beats = 0

    def beat(self, now: float) -> None:
        super().beat(now)
        self.beats += 1


async def test_the_counters_are_told_of_calls_in_flight_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "BEAT_SECONDS", 0.01)
    counts, settings = BeatenCounts(SqliteCounts()), Settings(upstreams=[{"name": "a", "url": "http://127.0.0.1:9/v1"}])
    limits = Limits(settings, counts, CostEstimator(Meter("usd", {})))
    task = asyncio.create_task(limits.beat_periodically())
    await async_wait_until(lambda: counts.beats >= 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await limits.close()
