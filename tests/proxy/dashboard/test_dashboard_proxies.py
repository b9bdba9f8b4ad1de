"""The dashboard of a shared store: its proxies, its engine, and requests that come late or twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.support.browser import chromium, visit, wait_for_data
from tests.support.fake_admin import TOKEN, FakeAdmin

PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}}
POLL = "window.dispatchEvent(new Event('online'))"
"""Polls at once."""
PLACE = "redis://valkey.internal:6379"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def admin() -> Iterator[FakeAdmin]:
    with FakeAdmin() as admin:
        admin.fill(20, days=0.1)
        admin.engine = {"place": PLACE, "state": "ok", "since": None, "reason": ""}
        admin.proxies = [
            {
                "id": f"{k:016x}", "host": f"proxy-{k}.a-rather-long-name.internal", "version": "0.2.0",
                "started": time.time() - 4000.0 * (k + 1), "workers": 1 + 3 * (k == 2), "owner": k == 1,
                "requests": 12_345 * (k + 1), "this": k == 0,
            }
            for k in range(3)
        ]  # fmt: skip
        yield admin


def late(admin: FakeAdmin, serial: int, model: str) -> None:
    """Add a request with a serial that is a time."""
    admin.traffic("hit", model=model)
    admin.requests[-1] |= {"serial": serial, "time": serial / 1e6, "proxy": "proxy-1"}


@pytest.mark.parametrize("size", [{}, PHONE])
def test_proxies_and_the_engine_of_a_shared_store_are_shown(
    browser: Browser, admin: FakeAdmin, size: dict[str, Any]
) -> None:
    with visit(browser, f"{admin.url}/dashboard#token={TOKEN}", **size) as page:
        wait_for_data(page)
        page.wait_for_selector("#proxies-table tbody tr")
        rows = page.eval_on_selector_all("#proxies-table tbody tr", "rows => rows.map(row => row.textContent)")
        assert len(rows) == 3
        assert ["owner" in row for row in rows] == [False, True, False]
        assert ["this page" in row for row in rows] == [True, False, False]
        assert "4 workers" in rows[2]
        assert page.inner_text("#engine") == PLACE
        assert page.is_hidden("#failing")
        width = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert width == 0
        admin.engine = {
            "place": PLACE,
            "state": "away",
            "since": time.time() - 90.0,
            "reason": "refused",
        }
        page.evaluate(POLL)
        page.wait_for_selector("#failing:not([hidden])")
        assert "The shared store does not answer" in page.inner_text("#failing")
        page.wait_for_selector("#engine:has-text('refused')")
        admin.engine |= {"state": "read-only", "reason": "it is out of memory"}
        page.evaluate(POLL)
        page.wait_for_selector("#failing:has-text('takes no writes')")
        page.wait_for_selector("#engine:has-text('it is out of memory')")


def test_without_a_shared_store_nothing_of_it_is_shown(browser: Browser, admin: FakeAdmin) -> None:
    admin.engine = None
    with visit(browser, f"{admin.url}/dashboard#token={TOKEN}") as page:
        wait_for_data(page)
        assert page.is_hidden("#proxies")
        assert page.is_hidden("#requests-table th.proxy")


def test_requests_that_come_late_or_twice_are_listed_once_in_order(browser: Browser, admin: FakeAdmin) -> None:
    start = 1_790_000_000_000_000
    late(admin, start + 10, "first")
    late(admin, start + 30, "third")
    admin.serial = start + 5
    with visit(browser, f"{admin.url}/dashboard#token={TOKEN}") as page:
        wait_for_data(page)
        page.wait_for_selector("#requests-table td.model:has-text('third')")
        assert page.inner_text("#requests-table tbody tr:first-child td.proxy") == "proxy-1"
        late(admin, start + 20, "second")
        admin.serial = start + 4  # another proxy answers, which knows less
        page.evaluate(POLL)
        page.wait_for_selector("#requests-table td.model:has-text('second')")
        models = page.eval_on_selector_all("#requests-table td.model button", "all => all.map(one => one.innerText)")
        assert models == ["third", "second", "first"]
