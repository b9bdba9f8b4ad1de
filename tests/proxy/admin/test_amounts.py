"""Which numbers are dollars, and what more capacity is worth. test_run.py tests the example request."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pytest

from knapcache.proxy.admin.amounts import amounts, doubling, price_of_model, prices_of
from knapcache.proxy.events.history import History
from knapcache.proxy.events.history_reader import DAY
from knapcache.proxy.events.usage import UsageRow
from knapcache.proxy.settings import Settings
from tests.support.clock import Clock
from tests.support.events import event

REMOTE = {"name": "remote", "url": "http://127.0.0.1:9/v1", "models": ["gpt-*"]}
LOCAL = {"url": "local"}
SIMULATED = {"smollm2-135m": {"input": 2.0, "output": 4.0}}


def settings(*upstreams: dict[str, Any], **more: Any) -> Settings:
    return Settings(upstreams=list(upstreams) or [REMOTE], memory_only=True, **more)


def row(priced: int = 0, unpriced: int = 0) -> UsageRow:
    return UsageRow(priced=priced, unpriced=unpriced, usd_saved=0.5 * priced)


@pytest.mark.parametrize(
    ("used", "usage", "expected", "unit"),
    [
        (settings(), row(), "known", "usd"),
        (settings(), row(priced=3), "known", "usd"),
        (settings(), row(unpriced=3), "none", "seconds"),
        (settings(), row(1, 1), "mixed", "share"),
        (settings(), UsageRow(unpriced=1, usd_spent=0.5, usd_saved=0.5), "mixed", "share"),
        (settings(LOCAL), row(), "none", "seconds"),
        (settings(LOCAL), row(unpriced=3), "none", "seconds"),
        (settings(LOCAL, prices=SIMULATED), row(), "simulated", "usd"),
        (settings(LOCAL, prices=SIMULATED), row(priced=3), "simulated", "usd"),
        (settings(REMOTE, LOCAL, prices=SIMULATED), row(2, 1), "simulated", "share"),
        (settings(REMOTE, LOCAL), row(2, 1), "mixed", "share"),
        (settings(cost="seconds"), row(unpriced=3), "none", "seconds"),
        (settings(cost="usd + 0.01*seconds"), row(2, 1), "mixed", "number"),
    ],
)
def test_dollars_are_of_known_prices(used: Settings, usage: UsageRow, expected: str, unit: str) -> None:
    assert (prices_of(usage, used), amounts(usage, used).unit) == (expected, unit)


@pytest.mark.parametrize(
    ("more", "factor"), [({}, 5000.0), ({"fallback_price": 0.01}, 100.0), ({"fallback_price": {"input": 1.0}}, 5000.0)]
)
def test_costs_without_a_price_become_seconds_again(more: dict[str, Any], factor: float) -> None:
    assert amounts(row(unpriced=1), settings(**more)).factor == pytest.approx(factor)


def test_the_price_of_a_model() -> None:
    both = settings(REMOTE, LOCAL)
    answers = (row(1), row(1, 1), row(0, 1), row())
    assert [price_of_model("gpt-x", usage, both) for usage in answers] == ["known", "mixed", "unknown", "known"]
    assert price_of_model("anything", row(unpriced=1), both) == "free"
    assert price_of_model("anything", row(priced=1), settings(REMOTE, LOCAL, prices=SIMULATED)) == "simulated"


def test_more_capacity_is_projected_from_a_day_on_with_a_range() -> None:
    clock, spent = Clock(1000.0 * DAY), {"none": 0.0, "lru@2x": 0.0}
    stats: dict[str, Any] = {"shadows": spent, "evictions": 0}
    history = History(None, lambda: stats, clock, UTC)
    for _ in range(6 * 4):  # six days: every six hours twice the capacity saves one more
        history.consume([event("miss", cost=1.0)])
        spent["none"] += 1.0
        stats["evictions"] += 1
        history.poll_shadows()
        found = doubling(history, "lru@2x", clock.now)
        elapsed = clock.now - history.since
        assert (found.per_day is None) == (elapsed < DAY)
        clock.now += DAY / 4
    found = doubling(history, "lru@2x", clock.now)
    assert found.saves == pytest.approx(24.0)
    assert (found.per_day, found.per_day_low, found.per_day_high) == pytest.approx((4.0, 4.0, 4.0))
    history.check()


def test_nothing_evicted_means_that_more_capacity_saves_nothing_whatever_shadows_say() -> None:
    stats: dict[str, Any] = {"shadows": {"none": 0.0, "lru@2x": 0.0}}
    history = History(None, lambda: stats, Clock(1000.0 * DAY), UTC)
    history.consume([event("miss", cost=1.0)])
    stats["shadows"] = {"none": 1.0, "lru@2x": 0.0}
    history.poll_shadows()
    assert doubling(history, "lru@2x", 1000 * DAY).saves == 0.0
