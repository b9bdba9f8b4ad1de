"""Prompt caching at the provider, on the dashboard."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.features.prefix.prefix_events import prefix_event
from tests.support.browser import chromium, poll_now, visit, wait_for_data
from tests.support.events import event
from tests.support.fake_admin import FakeAdmin

UNMARKED = {"own_marks": False, "read": 0, "short_written": 0, "long_written": 0}
NO_TARIFF: dict[str, Any] = {"tariff": "", "rule": "", "own_marks": False, "bills": {}}


@pytest.fixture(scope="module")
def page() -> Iterator[tuple[FakeAdmin, Page]]:
    """One page for all tests: each sets the sums of the fake API and polls."""
    with chromium() as browser, FakeAdmin() as admin, opened(browser, admin) as found:
        yield admin, found


def opened(browser: Browser, admin: FakeAdmin) -> Any:
    admin.fill(5, days=0.02)
    return visit(browser, admin.login("/prefix"))


@pytest.fixture
def shown(page: tuple[FakeAdmin, Page]) -> Any:
    """Return a function that shows requests with the given prefix events."""
    admin, browser_page = page
    wait_for_data(browser_page)

    def show(*prefixes: dict[str, Any], times: int = 1) -> Page:
        admin.prefix = type(admin.prefix)()
        for fields in prefixes:
            for _ in range(times):
                upstream = fields.get("upstream", "anthropic")
                prefix = prefix_event(**{name: value for name, value in fields.items() if name != "upstream"})
                admin.prefix.count(event("miss", time=time.time(), upstream=upstream, prefix=prefix))
        poll_now(browser_page)
        return browser_page

    return show


def test_a_watching_tier_says_what_it_would_have_saved_and_how_to_switch_it_on(shown: Any) -> None:
    bills = {"none": 10_000.0, "last-1h": 5_800.0, "last-5m": 3_550.0, "learned-alone": 2_200.0, "learned": 2_300.0}
    unmarked = UNMARKED | {"bills": bills | {"paid": 10_000.0}, "rule": "learned-alone"}
    page = shown(unmarked, unmarked | {"below": True}, times=2)
    # By hand: 4 requests, 7,700 tokens less at 3 dollars per million.
    expect(page.locator("#prefix-text")).to_contain_text(
        "No marks are placed. They would have saved $0.0924 (77 %) of the input bill of 4 requests"
    )
    expect(page.locator("#prefix-text code")).to_have_text('prefix = "on"')
    bars = page.locator("#prefix-tariffs .bars li")
    assert bars.locator(".name").all_inner_texts() == [
        "Paid", "Learned by knapcache", "No marks", "Last block, 5 min", "Last block, 1 h"
    ]  # fmt: skip
    assert bars.locator(".amount").all_inner_texts() == ["$0.12", "$0.0276", "$0.12", "$0.0426", "$0.0696"]
    facts = page.locator("#prefix-facts .facts")
    expect(facts).to_contain_text("Rule that would leadLearned, both times to live")
    expect(facts).to_contain_text("Too short to be cached50 % of 4 requests")
    expect(facts).to_contain_text("Reads predicted and reportedno request with marks yet")


def test_a_tier_that_places_marks_says_what_it_saved(shown: Any) -> None:
    page = shown({"mode": "on", "own_marks": False, "marked": True, "rule": "last-5m"})
    # By hand: 10,000 less 3,550 plain tokens at 3 dollars per million.
    expect(page.locator("#prefix-text")).to_have_text(
        "Marks by knapcache saved $0.0194 (65 %) of the input bill of 1 request."
    )
    facts = page.locator("#prefix-facts .facts")
    expect(facts).to_contain_text("Rule that leadsLast block, 5 min")
    expect(facts).to_contain_text("Reads predicted and reported7,900 and 8,000 tokens")
    assert page.locator("#prefix-tokens .parts").inner_text().split() == [
        "read", "8,000", "written", "1,500", "plain", "500"
    ]  # fmt: skip


def test_without_a_price_bills_are_tokens(shown: Any) -> None:
    page = shown({"own_marks": True, "usd_per_token": None})
    expect(page.locator("#prefix-text")).to_have_text(
        "1 request came with marks of the caller, which were left as they were. They saved 6,450 tokens (65 %)."
    )
    expect(page.locator("#prefix-tariffs h3")).to_have_text("Input bill by rule in tokens at the plain price")
    assert "$" not in page.inner_text("#prefix")


def test_marks_that_cost_more_are_no_saving(shown: Any) -> None:
    bills = {"none": 100.0, "learned": 125.0, "paid": 100.0}
    page = shown(UNMARKED | {"bills": bills})
    expect(page.locator("#prefix-text")).to_have_text(
        "No marks are placed. They would have saved nothing yet on 1 request: writes are paid before reads return."
    )


def test_reads_are_shown_for_every_provider_that_reports_them(shown: Any) -> None:
    deepseek = NO_TARIFF | {"upstream": "deepseek", "input": 100, "read": 75, "short_written": 0, "long_written": 0}
    page = shown(deepseek, NO_TARIFF | {"upstream": "other", "reported": False})
    expect(page.locator("#prefix-text")).to_contain_text("There is nothing to decide for these upstreams")
    rows = page.locator("#prefix-tokens li")
    expect(rows.nth(0)).to_contain_text("75 % read")
    expect(rows.nth(1)).to_contain_text("no tokens reported")
    expect(rows.nth(1)).to_contain_text("1 of 1 request without a usage, not counted")


def test_the_setting_is_named_if_it_is_off(shown: Any, page: tuple[FakeAdmin, Page]) -> None:
    page[0].prefix_mode = "off"
    try:
        shown(NO_TARIFF | {"mode": "off"})
        expect(page[1].locator("#prefix-text")).to_contain_text('because the setting is prefix = "off"')
    finally:
        page[0].prefix_mode = "observe"
