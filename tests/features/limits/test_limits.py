"""The limits of one process: what runs periodically."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from knapcache.features.limits import limits as subject
from knapcache.features.limits.fallback_counts import FallbackCounts
from knapcache.features.limits.feature import LimitsFeature
from knapcache.features.limits.limits import Limits
from knapcache.features.limits.refusal import LimitReached
from knapcache.features.limits.sqlite_counts import SqliteCounts
from knapcache.price.estimate import CostEstimator
from knapcache.price.meter import Bill, Meter
from knapcache.proxy.settings import Settings
from tests.support.timing import async_wait_until


class BeatenCounts(FallbackCounts):
    """Counters that count beats."""

    beats = 0

    def beat(self, now: float) -> None:
        super().beat(now)
        self.beats += 1


class HeldCounts(FallbackCounts):
    """Counters that wait for an event, and may fail."""

    error: Exception | None = None

    def __init__(self, counts: SqliteCounts) -> None:
        super().__init__(counts)
        self.asked, self.free = threading.Event(), threading.Event()

    def apply(self, operations: Any, now: float) -> Any:
        self.asked.set()
        assert self.free.wait(60)
        if self.error is not None:
            raise self.error
        return super().apply(operations, now)


def limits_with(counts: FallbackCounts, **settings: Any) -> Limits:
    settings = {"upstreams": [{"name": "a", "url": "http://127.0.0.1:9/v1"}], **settings}
    return Limits(Settings(**settings), counts, CostEstimator(Meter("usd", {})))


async def test_a_tenant_without_limits_reserves_nothing() -> None:
    limits = limits_with(FallbackCounts(SqliteCounts()))
    assert await limits.begin("team") is None
    assert await limits.report() == []
    await limits.close()


async def test_a_payment_without_a_price_counts_its_tokens() -> None:
    limits = limits_with(FallbackCounts(SqliteCounts()), limits={"usd_per_day": 5, "tokens_per_minute": 100})
    feature: Any = SimpleNamespace(limits=limits)
    LimitsFeature.paid(feature, "team", Bill(None, 1.0, 1.0, "seconds", tokens=30))
    rows = await limits.report()
    assert {(row.scope, row.name, row.limit): row.used for row in rows} == {
        ("all", "", "usd_per_day"): 0.0,
        ("all", "", "tokens_per_minute"): 30.0,
    }
    await limits.close()


async def test_a_request_that_is_cancelled_while_it_is_counted_uses_up_nothing() -> None:
    counts = HeldCounts(SqliteCounts())
    limits = limits_with(counts, limits={"concurrent": 1})
    first = asyncio.create_task(limits.begin("team"))
    await asyncio.to_thread(counts.asked.wait, 60)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    counts.free.set()
    await limits.counts.beat()  # the thread has told the event loop of the reservation
    reservation = await limits.begin("team")
    assert reservation is not None
    with pytest.raises(LimitReached):
        await limits.begin("team")
    reservation.release()
    reservation.release()
    assert await limits.begin("team") is not None
    await limits.close()


async def test_counters_that_fail_stop_no_request_for_ever() -> None:
    counts = HeldCounts(SqliteCounts())
    limits = limits_with(counts, limits={"concurrent": 1})
    counts.error = ValueError("a bug")
    counts.free.set()
    with pytest.raises(ValueError, match="a bug"):
        await limits.begin("team")
    counts.error = None
    assert await limits.begin("team") is not None
    await limits.close()


async def test_the_counters_are_told_of_calls_in_flight_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "BEAT_SECONDS", 0.01)
    counts, settings = BeatenCounts(SqliteCounts()), Settings(upstreams=[{"name": "a", "url": "http://127.0.0.1:9/v1"}])
    limits = Limits(settings, counts, CostEstimator(Meter("usd", {})))
    task = asyncio.create_task(limits.beat_periodically())
    await async_wait_until(lambda: counts.beats >= 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await limits.close()
