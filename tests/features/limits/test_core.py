"""Windows, decisions and thresholds of limits."""

from __future__ import annotations

from datetime import UTC, datetime
from unittest.mock import Mock

import pytest

from knapcache.features.limits.core import (
    MAX_RETRY_AFTER,
    MINUTE_SLOTS,
    SLOT_SECONDS,
    CallAmounts,
    LimitValues,
    ScopeUsage,
    crossed,
    free_at,
    refused_limit,
    retry_after,
    slots_at,
    window_end,
)
from knapcache.features.limits.limits import Reservation
from knapcache.price import Bill

NOON = datetime(2026, 12, 31, 12, 0, tzinfo=UTC).timestamp()


def at_slots(**amounts: dict[int, float]) -> ScopeUsage:
    """Return a usage with amounts in some slots of the minute."""
    rows = {name: tuple(found.get(k, 0.0) for k in range(MINUTE_SLOTS)) for name, found in amounts.items()}
    return ScopeUsage()._replace(**rows)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("usage", "limits", "expected"),
    [
        (ScopeUsage(usd_day=4.99), LimitValues(usd_per_day=5.0), None),
        (ScopeUsage(usd_day=5.0), LimitValues(usd_per_day=5.0), "usd_per_day"),
        (ScopeUsage(usd_day=4.0, in_flight=CallAmounts(1, 1.0)), LimitValues(usd_per_day=5.0), "usd_per_day"),
        (ScopeUsage(usd_day=9.0, usd_month=9.0), LimitValues(usd_per_month=10.0), None),
        (ScopeUsage(usd_month=10.0), LimitValues(usd_per_day=5.0, usd_per_month=10.0), "usd_per_month"),
        (at_slots(requests={0: 2, 12: 1}), LimitValues(requests_per_minute=4), None),
        (at_slots(requests={0: 2, 12: 2}), LimitValues(requests_per_minute=4), "requests_per_minute"),
        (ScopeUsage(in_flight=CallAmounts(1, 0.0, 50.0)), LimitValues(tokens_per_minute=50), "tokens_per_minute"),
        (ScopeUsage(in_flight=CallAmounts(3)), LimitValues(concurrent=4), None),
        (ScopeUsage(in_flight=CallAmounts(4)), LimitValues(concurrent=4), "concurrent"),
    ],
)
def test_a_call_is_admitted_while_used_and_reserved_are_below_the_limit(
    usage: ScopeUsage, limits: LimitValues, expected: str | None
) -> None:
    assert refused_limit(limits, usage) == expected


def test_windows_are_those_of_utc() -> None:
    assert window_end("usd_per_day", NOON) == datetime(2027, 1, 1, tzinfo=UTC).timestamp()
    assert window_end("usd_per_month", NOON) == datetime(2027, 1, 1, tzinfo=UTC).timestamp()
    june = datetime(2026, 6, 1, tzinfo=UTC).timestamp()
    assert window_end("usd_per_month", june) == datetime(2026, 7, 1, tzinfo=UTC).timestamp()
    assert window_end("requests_per_minute", NOON) is None
    before, after = slots_at(june - 1), slots_at(june)
    assert (after.day, after.month) == (before.day + 1, before.month + 1)
    assert slots_at(NOON + 86_400).month == slots_at(NOON).month + 1, "December is followed by January"


def test_a_spend_limit_is_free_again_when_its_window_ends() -> None:
    usage = ScopeUsage(usd_day=5.0, usd_month=5.0)
    assert free_at("usd_per_day", 5.0, usage, NOON) == NOON + 12 * 3600
    assert retry_after("usd_per_day", 5.0, usage, NOON) == MAX_RETRY_AFTER
    assert retry_after("usd_per_day", 5.0, usage, NOON + 12 * 3600 - 90) == 90


def test_a_limit_that_only_calls_in_flight_use_up_is_tried_again_soon() -> None:
    usage = ScopeUsage(usd_day=4.0, in_flight=CallAmounts(2, 1.5, 10.0))
    assert retry_after("usd_per_day", 5.0, usage, NOON) == 1
    assert retry_after("concurrent", 2, usage, NOON) == 1


def test_a_minute_is_free_again_when_enough_slots_have_passed() -> None:
    usage = at_slots(requests={1: 3.0, 5: 2.0, 12: 1.0})
    present = slots_at(NOON).slot
    oldest_gone = (present - (MINUTE_SLOTS - 1) + 1 + MINUTE_SLOTS) * SLOT_SECONDS
    assert free_at("requests_per_minute", 6, usage, NOON) == oldest_gone
    assert free_at("requests_per_minute", 3, usage, NOON) == oldest_gone + 4 * SLOT_SECONDS
    later = at_slots(requests={0: 3.0, 4: 2.0, 11: 1.0})  # one slot later
    assert free_at("requests_per_minute", 6, later, NOON + SLOT_SECONDS) == oldest_gone


def test_each_threshold_is_crossed_by_one_payment() -> None:
    limits, used, found = LimitValues(usd_per_day=10.0, usd_per_month=100.0), 0.0, []
    for payment in (1.0, 3.99, 0.02, 1.0, 1.99, 0.5, 1.4, 0.5, 3.0):
        found += crossed(limits, ScopeUsage(usd_day=used, usd_month=used), payment)
        used += payment
    assert found == [("usd_per_day", 50), ("usd_per_day", 80), ("usd_per_day", 100)]
    assert crossed(limits, ScopeUsage(), 60.0) == [("usd_per_day", 100), ("usd_per_month", 50)], "the highest one only"
    assert crossed(limits, ScopeUsage(usd_day=4.0), 0.0) == []


@pytest.mark.parametrize(
    ("other", "sign", "expected"),
    [
        (CallAmounts(1, 0.5, 30.0), 1, CallAmounts(3, 2.5, 130.0)),
        (CallAmounts(1, 0.5, 30.0), -1, CallAmounts(1, 1.5, 70.0)),
        (CallAmounts(1, 2.5, 130.0), -1, CallAmounts(1)),
        (CallAmounts(2, 0.5, 30.0), -1, CallAmounts()),
    ],
)
def test_amounts_are_added_and_subtracted_and_never_negative(
    other: CallAmounts, sign: int, expected: CallAmounts
) -> None:
    assert CallAmounts(2, 2.0, 100.0).plus(other, sign) == expected


@pytest.mark.parametrize(
    ("bill", "paid"),
    [
        (None, CallAmounts(1, 0.5, 10.0)),
        (Bill(2.0, 1.0, 2.0, "fallback", tokens=5), CallAmounts(1, 2.0, 10.0)),
        (Bill(None, 1.0, 1.0, "seconds", tokens=30), CallAmounts(1, 0.5, 30.0)),
    ],
)
def test_a_call_of_unknown_cost_counts_once_and_at_least_its_bill(bill: Bill | None, paid: CallAmounts) -> None:
    limits = Mock()
    reservation = Reservation(limits, (), CallAmounts(1, 0.5, 10.0))
    assert [reservation.keep(bill=bill), reservation.keep(bill=bill)] == [paid.usd, 0.0]
    (charged,) = limits.counts.charge.call_args_list
    assert charged.args[0].paid == paid
