"""The dashboard shows limits and what is used of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser import chromium, visit, wait_for_data
from tests.support.fake_admin import TOKEN, FakeAdmin

PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def limit(name: str, limit: str, used: float, allowed: float, reserved: float = 0.0) -> dict[str, Any]:
    return {
        "scope": "tenant" if name else "all", "name": name, "limit": limit, "allowed": allowed, "used": used,
        "reserved": reserved, "ratio": used / allowed,
        "resets_at": time.time() + 7300 if limit.startswith("usd") else None,
    }  # fmt: skip


@pytest.mark.parametrize("size", [{}, PHONE], ids=["desktop", "phone"])
def test_limits_are_shown_with_bars(browser: Browser, size: dict[str, Any]) -> None:
    with FakeAdmin() as admin:
        admin.fill(20, days=0.1)
        admin.limits = [
            limit("", "usd_per_month", 412.5, 1000.0, 1.25),
            limit("search", "usd_per_day", 4.5, 5.0, 0.02),
            limit("search", "requests_per_minute", 61.0, 60.0),
            limit("batch", "concurrent", 3.0, 8.0),
        ]
        with visit(browser, f"{admin.url}/dashboard#token={TOKEN}", **size) as page:
            wait_for_data(page)
            page.wait_for_selector("#limits-table tbody tr")
            rows = page.eval_on_selector_all("#limits-table tbody tr", "rows => rows.map(row => row.textContent)")
            assert [row.split("$")[0].split("6")[0] for row in rows[:2]] == [
                "all callersdollars per month",
                "searchdollars per day",
            ]
            assert "$412.50 (41 %)" in rows[0]
            label = page.locator("#limits .simulated")
            expect(label).to_be_hidden()
            admin.prices = "simulated"
            page.evaluate("window.dispatchEvent(new Event('online'))")
            expect(label).to_be_visible()
            expect(page.locator("#content-log .simulated")).to_be_hidden()  # it is off, and shows no dollars
            assert "2 h" in rows[0]
            assert "$5.00" in rows[1]
            assert "3 (38 %)" in rows[3]
            bars = page.eval_on_selector_all("#limits-table .limit-bar", "bars => bars.map(bar => bar.className)")
            assert [bar.split()[2:] for bar in bars] == [[], ["warn"], ["bad"], []]
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_without_limits_the_card_is_hidden(browser: Browser) -> None:
    with FakeAdmin() as admin:
        admin.fill(20, days=0.1)
        with visit(browser, f"{admin.url}/dashboard#token={TOKEN}") as page:
            wait_for_data(page)
            assert page.is_hidden("#limits")
