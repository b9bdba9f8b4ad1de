"""Counters of limits while the shared ones cannot be used: local ones, and what is added afterwards."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import apsw
import pytest

from knapcache.errors import StoreError
from knapcache.features.limits.core import (
    BEAT_SECONDS,
    CallAmounts,
    Charge,
    LimitValues,
    Operation,
    Read,
    Reserve,
    Result,
    Scope,
    ScopeUsage,
)
from knapcache.features.limits.fallback_counts import RETRY_SECONDS, FallbackCounts
from knapcache.features.limits.sqlite_counts import SqliteCounts
from tests.support.clock import Clock

NOW = 1_780_000_000.0
TEAM = (Scope("team", LimitValues(usd_per_day=10.0, concurrent=3)),)
CALL = CallAmounts(1, 1.0, 100.0)


class FailingCounts(SqliteCounts):
    """Counters that can be switched off."""

    away = False
    beats = 0

    def apply(self, operations: Sequence[Operation], now: float) -> list[Result]:
        if self.away:
            raise StoreError("the server does not answer")
        return super().apply(operations, now)

    def beat(self, in_flight: Mapping[str, CallAmounts], now: float) -> None:
        if self.away:
            raise StoreError("the server does not answer")
        super().beat(in_flight, now)
        self.beats += 1


def is_admitted(counts: FallbackCounts) -> bool:
    return counts.apply([Reserve(TEAM, CALL)], NOW)[0].refusal is None


def pay(counts: FallbackCounts, usd: float) -> None:
    counts.apply([Charge(TEAM, CALL, CallAmounts(0, usd, 10.0))], NOW)


def usage(counts: FallbackCounts | SqliteCounts) -> ScopeUsage:
    return counts.apply([Read(TEAM)], NOW)[0].usages[0]


def test_limits_go_on_from_what_was_read_last(caplog: pytest.LogCaptureFixture) -> None:
    shared, clock = FailingCounts(), Clock(100.0)
    counts = FallbackCounts(shared, clock)
    assert is_admitted(counts)
    pay(counts, 7.0)
    assert is_admitted(counts)
    with caplog.at_level(logging.WARNING, "knapcache.serve"):
        shared.away = True
        assert is_admitted(counts), "7 dollars are paid and 1 is reserved"
        assert counts.reason == "the server does not answer"
        assert is_admitted(counts)
        assert not is_admitted(counts), "3 calls are in flight, 10 dollars are paid or reserved"
        for _ in range(3):
            pay(counts, 1.5)
        assert not is_admitted(counts), "11.5 dollars are paid"
        shared.away = False
        assert usage(shared).usd_day == 7.0
        clock.now += RETRY_SECONDS + 0.1
        assert not is_admitted(counts)
    assert counts.reason == ""
    assert usage(shared).usd_day == 11.5, "what was paid meanwhile is added once"
    assert usage(shared).in_flight == CallAmounts()
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    shared.check()


def test_shared_counters_that_fail_are_not_asked_by_every_request() -> None:
    shared, clock = FailingCounts(), Clock(100.0)
    counts = FallbackCounts(shared, clock)
    shared.away = True
    assert is_admitted(counts)
    shared.away = False
    assert is_admitted(counts)
    assert counts.reason, "asked again only after RETRY_SECONDS"
    clock.now += RETRY_SECONDS
    assert is_admitted(counts)
    assert not counts.reason
    assert usage(shared).in_flight.calls == 3, "a beat tells of the calls that began meanwhile"
    counts.close(NOW)


def test_calls_in_flight_are_told_at_most_every_beat() -> None:
    shared, clock = FailingCounts(), Clock(100.0)
    counts = FallbackCounts(shared, clock)
    assert is_admitted(counts)
    for seconds, beats in ((0.0, 1), (BEAT_SECONDS - 0.1, 1), (0.2, 2)):
        clock.now += seconds
        counts.beat(NOW)
        assert shared.beats == beats


def test_nothing_is_told_without_limits() -> None:
    shared = FailingCounts()
    shared.away = True
    counts = FallbackCounts(shared)
    counts.beat(NOW)
    counts.close(NOW)
    assert counts.reason == ""


def test_a_process_that_ends_leaves_no_calls_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "limits.sqlite"
    counts = FallbackCounts(SqliteCounts(path, "one"))
    assert is_admitted(counts)
    pay(counts, 1.0)
    counts.close(NOW)
    with contextlib.closing(apsw.Connection(str(path))) as file:
        assert file.execute("SELECT count(*) FROM in_flight").get == 0


def test_the_last_payment_before_an_outage_counts() -> None:
    shared = FailingCounts()
    counts = FallbackCounts(shared, Clock(100.0))
    assert is_admitted(counts)
    pay(counts, 10.0)
    shared.away = True
    assert not is_admitted(counts)
    assert sum(usage(counts).requests) == 1
    assert sum(usage(counts).tokens) == 10
