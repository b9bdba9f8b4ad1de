"""The dashboard shows limits and what is used of them."""

from __future__ import annotations

import time
from typing import Any

from playwright.sync_api import expect

from tests.support.browser import chromium, open_view, poll_now, visit
from tests.support.fake_admin import FakeAdmin


def limit(name: str, limit: str, used: float, allowed: float, reserved: float = 0.0) -> dict[str, Any]:
    return {
        "scope": "tenant" if name else "all", "name": name, "limit": limit, "allowed": allowed, "used": used,
        "reserved": reserved, "ratio": used / allowed,
        "resets_at": time.time() + 7300 if limit.startswith("usd") else None,
    }  # fmt: skip


def test_limits_are_shown_with_bars() -> None:
    with chromium() as browser, FakeAdmin() as admin:
        admin.fill(20, days=0.1)
        admin.on = {"limits"}
        admin.limits = [
            limit("", "usd_per_month", 412.5, 1000.0, 1.25),
            limit("search", "usd_per_day", 4.5, 5.0, 0.02),
            limit("search", "requests_per_minute", 61.0, 60.0),
            limit("batch", "concurrent", 3.0, 8.0),
        ]
        with visit(browser, admin.login()) as page:
            expect(page.locator("#limits-card .middle")).to_have_text("102 %")
            expect(page.locator("#limits-card .sub")).to_contain_text("of the requests per minute of search")
            open_view(page, "limits")
            rows = page.locator("#limits-table tbody tr")
            expect(rows.nth(0)).to_contain_text("all callersdollars per month$412.50 (41 %)$1,0002 h")
            expect(rows.nth(1)).to_contain_text("searchdollars per day$4.50 (90 %)$5.00")
            expect(rows.nth(3)).to_contain_text("3 (38 %)")
            label = page.locator("#limits .simulated")
            expect(label).to_be_hidden()
            admin.prices = "simulated"
            poll_now(page)
            expect(label).to_be_visible()
            bars = page.eval_on_selector_all("#limits-table .limit-bar", "bars => bars.map(bar => bar.className)")
            assert [bar.split()[2:] for bar in bars] == [[], ["warn"], ["bad"], []]
            page.set_viewport_size({"width": 390, "height": 844})
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
