"""The ledger: sums do not depend on the number of names or reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest

from knapcache.cache.ledger import MAX_LABELS, MAX_PAIRS, OTHER, Ledger, LedgerRow
from knapcache.cache.results import stats_of
from knapcache.errors import CorruptState
from knapcache.price.meter import Bill
from tests.support.timing import check_waits_for


def test_more_pairs_of_model_and_tenant_than_rows() -> None:
    ledger = Ledger()
    many = 2 * MAX_PAIRS + 3
    for k in range(many):
        if k % 3:
            ledger.add_hit(f"model {k}", f"tenant {k % 7}", 0.5, 2.0, 1.5, 20, 10)
        else:
            ledger.add_reused("coalesced", f"model {k}", f"tenant {k % 7}", Bill(0.5, 2.0, 1.5, "stored", 20), 10)
        if k % 500 == 0:
            ledger.check()
    report = ledger.report()
    assert report["requests"] == report["hits"] + report["coalesced"] == many
    assert report["coalesced"] == len(range(0, many, 3))
    assert report["usd_saved"] == pytest.approx(0.5 * many)
    assert report["seconds_saved"] == pytest.approx(2.0 * many)
    assert report["cost_saved"] == pytest.approx(1.5 * many)
    assert report["bytes_saved"] == 10 * many
    assert report["tokens_saved"] == 20 * many
    assert len(report["by_model"]) == MAX_LABELS + 1
    assert report["by_model"][OTHER]["requests"] == many - MAX_LABELS
    assert sum(row["hits"] for row in report["by_tenant"].values()) == report["hits"]
    assert ledger.report() == report
    ledger.check()


def test_a_hit_without_a_price_saves_only_time() -> None:
    ledger = Ledger()
    ledger.add_hit("m", "", None, 3.0, 3.0, 0, 1)
    report = ledger.report()
    assert (report["usd_saved"], report["seconds_saved"], report["hits"]) == (0.0, 3.0, 1)


def test_requests_and_spending_are_counted_in_total_by_model_and_by_tenant() -> None:
    ledger = Ledger()
    for model, tenant, outcome in (("m", "a", "misses"), ("m", "b", "failed"), ("n", "a", "bypasses")):
        ledger.add_request(outcome, model, tenant)
    ledger.add_spent("m", "a", Bill(0.5, 2.0, 1.5, "prices"), admitted=True)
    ledger.add_spent("n", "a", Bill(None, 4.0, 3.0, "seconds"), admitted=False)
    ledger.add_reused("coalesced", "m", "b", Bill(0.25, 1.0, 0.5, "stored"), 7)
    ledger.count("evictions")
    ledger.count("evictions", 4)
    report = ledger.report()
    rows = {"total": report, **report["by_model"], **report["by_tenant"]}
    assert set(rows) == {"total", "m", "n", "a", "b"}
    names = ("requests", "misses", "failed", "bypasses", "coalesced", "hits", "admitted", "bytes_saved")
    assert {row: tuple(rows[row][name] for name in names) for row in rows} == {
        "total": (4, 1, 1, 1, 1, 0, 1, 7),
        "m": (3, 1, 1, 0, 1, 0, 1, 7),
        "n": (1, 0, 0, 1, 0, 0, 0, 0),
        "a": (2, 1, 0, 1, 0, 0, 1, 0),
        "b": (2, 0, 1, 0, 1, 0, 0, 7),
    }
    money = ("usd_spent", "seconds_spent", "cost_spent", "usd_saved", "seconds_saved", "cost_saved")
    assert {row: tuple(rows[row][name] for name in money) for row in rows} == {
        "total": (0.5, 6.0, 4.5, 0.25, 1.0, 0.5),
        "m": (0.5, 2.0, 1.5, 0.25, 1.0, 0.5),
        "n": (0.0, 4.0, 3.0, 0.0, 0.0, 0.0),
        "a": (0.5, 6.0, 4.5, 0.0, 0.0, 0.0),
        "b": (0.0, 0.0, 0.0, 0.25, 1.0, 0.5),
    }
    assert report["evictions"] == 5
    ledger.check()


@pytest.mark.parametrize("field", [field.name for field in fields(LedgerRow)])
@pytest.mark.parametrize("rows", ["_total", "_models", "_tenants"])
def test_check_finds_a_row_that_differs(field: str, rows: str) -> None:
    ledger = Ledger()
    ledger.add_hit("m", "a", 0.5, 2.0, 1.5, 0, 7)
    ledger.check()
    row = ledger._total if rows == "_total" else next(iter(getattr(ledger, rows).values()))
    setattr(row, field, getattr(row, field) + 1)
    with pytest.raises(CorruptState, match=field):
        ledger.check()


@pytest.mark.parametrize(("total", "tolerance"), [(0.5, 1e-6), (1e6, 1.0)])
def test_sums_of_floats_may_differ_by_a_millionth_of_the_total_or_of_one(total: float, tolerance: float) -> None:
    ledger = Ledger()
    ledger.add_spent("m", "a", Bill(total, total, total, "prices"), admitted=True)
    ledger.check()
    ledger._models["m"].cost_spent = total + 0.9 * tolerance
    ledger.check()
    ledger._models["m"].cost_spent = total + 1.1 * tolerance
    with pytest.raises(CorruptState, match="cost_spent"):
        ledger.check()


def test_whole_numbers_may_not_differ_at_all() -> None:
    for name in (field.name for field in fields(LedgerRow) if field.type == "int"):
        ledger = Ledger()
        ledger.add_request("misses", "m", "a")
        ledger.check()
        for row in (ledger._total, ledger._models["m"], ledger._tenants["a"]):
            setattr(row, name, 10_000_000)
        setattr(ledger._total, name, 10_000_001)
        with pytest.raises(CorruptState, match=f"{name}: the total is"):
            ledger.check()


def test_check_finds_outcomes_that_do_not_sum_to_requests() -> None:
    for outcome in ("requests", "hits", "coalesced", "misses", "bypasses", "failed"):
        ledger = Ledger()
        ledger.add_request("misses", "m", "a")
        ledger.check()
        for row in (ledger._total, ledger._models["m"], ledger._tenants["a"]):
            setattr(row, outcome, getattr(row, outcome) + 1)
        with pytest.raises(CorruptState, match="outcomes do not sum"):
            ledger.check()


def test_a_forked_child_starts_with_an_empty_ledger() -> None:
    ledger = Ledger()
    ledger.add_request("misses", "m", "a")
    ledger.add_hit("m", "a", 0.5, 2.0, 1.5, 0, 7)
    ledger.count("evictions")
    with ledger._lock:  # of a thread of the parent
        ledger.after_fork()
    assert ledger.report() == Ledger().report()


@pytest.mark.parametrize("step", ["add_hit", "add_reused", "add_request", "add_spent", "count", "report", "check"])
def test_every_method_waits_for_the_lock(step: str) -> None:
    ledger, bill = Ledger(), Bill(0.5, 2.0, 1.5, "stored")
    steps: dict[str, Callable[[], object]] = {
        "add_hit": lambda: ledger.add_hit("m", "a", 0.5, 2.0, 1.5, 0, 7),
        "add_reused": lambda: ledger.add_reused("coalesced", "m", "a", bill, 7),
        "add_request": lambda: ledger.add_request("misses", "m", "a"),
        "add_spent": lambda: ledger.add_spent("m", "a", bill, admitted=True),
        "count": lambda: ledger.count("evictions"),
        "report": ledger.report,
        "check": ledger.check,
    }
    check_waits_for(ledger._lock, steps[step])


def test_what_the_report_of_a_reader_lacks_is_zero_or_empty() -> None:
    stats = stats_of({"by_model": {}, "by_tenant": {}, "breaker": {}})
    assert (stats.owner, stats.breaker.state, stats.breaker.opened, stats.breaker.skipped) == (True, "closed", 0, 0)
    assert stats.shadow_rate == 1
    others = {each.name for each in fields(stats)} - {"owner", "breaker", "shadow_rate"}
    assert [name for name in sorted(others) if getattr(stats, name)] == []
