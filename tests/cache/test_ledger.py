"""The ledger: sums do not depend on the number of names or reports."""

from __future__ import annotations

import pytest

from knapcache.cache.ledger import MAX_LABELS, MAX_PAIRS, OTHER, Ledger
from knapcache.price.meter import Bill


def test_more_pairs_of_model_and_tenant_than_rows() -> None:
    ledger = Ledger()
    many = 2 * MAX_PAIRS + 3
    for k in range(many):
        ledger.add_served(
            "hit" if k % 3 else "coalesced", f"model {k}", f"tenant {k % 7}", Bill(0.5, 2.0, 1.5, "stored"), 10
        )
        if k % 500 == 0:
            ledger.check()
    report = ledger.report()
    assert report["requests"] == report["hits"] + report["coalesced"] == many
    assert report["coalesced"] == len(range(0, many, 3))
    assert report["usd_saved"] == pytest.approx(0.5 * many)
    assert report["seconds_saved"] == pytest.approx(2.0 * many)
    assert report["cost_saved"] == pytest.approx(1.5 * many)
    assert report["bytes_saved"] == 10 * many
    assert len(report["by_model"]) == MAX_LABELS + 1
    assert report["by_model"][OTHER]["requests"] == many - MAX_LABELS
    assert sum(row["hits"] for row in report["by_tenant"].values()) == report["hits"]
    assert ledger.report() == report
    ledger.check()


def test_a_hit_without_a_price_saves_only_time() -> None:
    ledger = Ledger()
    ledger.add_served("hit", "m", "", Bill(None, 3.0, 3.0, "stored"), 1)
    report = ledger.report()
    assert (report["usd_saved"], report["seconds_saved"], report["hits"]) == (0.0, 3.0, 1)
