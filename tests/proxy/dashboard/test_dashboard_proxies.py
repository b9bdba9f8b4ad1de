"""The dashboard of a shared store: its proxies, its engine, and requests that come late or twice."""

from __future__ import annotations

import time

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import open_view, poll_now
from tests.support.fake_admin import FakeAdmin

PLACE = "redis://valkey.internal:6379"


@pytest.fixture
def shared(admin: FakeAdmin) -> FakeAdmin:
    admin.engine = {"place": PLACE, "state": "ok", "since": None, "reason": ""}
    admin.proxies = [
        {
            "id": f"{k:016x}", "host": f"proxy-{k}.a-rather-long-name.internal", "version": "0.2.0",
            "started": time.time() - 4000.0 * (k + 1), "workers": 1 + 3 * (k == 2), "owner": k == 1,
            "requests": 12_345 * (k + 1), "this": k == 0,
        }
        for k in range(3)
    ]  # fmt: skip
    return admin


def late(admin: FakeAdmin, serial: int, model: str) -> None:
    """Add a request with a serial that is a time."""
    admin.traffic("hit", model=model)
    admin.requests[-1] |= {"serial": serial, "time": serial / 1e6, "proxy": "proxy-1"}


def test_proxies_and_the_engine_of_a_shared_store_are_shown(shared: FakeAdmin, page: Page) -> None:
    open_view(page, "settings")
    rows = page.locator("#proxies-table tbody tr")
    expect(rows).to_have_count(3)
    texts = rows.all_inner_texts()
    assert ["owner" in row for row in texts] == [False, True, False]
    assert ["this page" in row for row in texts] == [True, False, False]
    assert "4 workers" in texts[2]
    expect(page.locator("#engine")).to_have_text(PLACE)
    assert page.is_hidden("#failing")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1280, "height": 800})
    shared.engine = {"place": PLACE, "state": "away", "since": time.time() - 90.0, "reason": "refused"}
    poll_now(page)
    expect(page.locator("#failing")).to_contain_text("The shared store does not answer")
    expect(page.locator("#engine")).to_contain_text("refused")
    shared.engine |= {"state": "read-only", "reason": "it is out of memory"}
    poll_now(page)
    expect(page.locator("#failing")).to_contain_text("takes no writes")
    expect(page.locator("#engine")).to_contain_text("it is out of memory")


def test_without_a_shared_store_nothing_of_it_is_shown(page: Page) -> None:
    open_view(page, "requests")
    expect(page.locator("#requests-table th.outcome")).to_be_visible()
    expect(page.locator("#requests-table th.proxy")).to_be_hidden()
    open_view(page, "settings")
    expect(page.locator("#audit-table")).to_be_visible()
    expect(page.locator("#proxies-table")).to_be_hidden()


def test_requests_that_come_late_or_twice_are_listed_once_in_order(shared: FakeAdmin, page: Page) -> None:
    start = 1_790_000_000_000_000
    shared.requests.clear()
    late(shared, start + 10, "first")
    late(shared, start + 30, "third")
    shared.serial = start + 5
    open_view(page, "requests")
    models = page.locator("#requests-table td.model")
    expect(models).to_have_text(["third", "first"])
    expect(page.locator("#requests-table tbody tr:first-child td.proxy")).to_have_text("proxy-1")
    late(shared, start + 20, "second")
    shared.serial = start + 4  # another proxy answers, which knows less
    poll_now(page)
    expect(models).to_have_text(["third", "second", "first"])
