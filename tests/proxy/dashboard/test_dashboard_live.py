"""The dashboard in a browser, on the real admin API with a real cache, history and sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.support.admin_context import AdminHarness
from tests.support.browser import open_view, visit, wait_for_data


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[AdminHarness]:
    with AdminHarness(tmp_path / "data", show_content=True, shadows=("lru", "lru@2x")) as made:
        yield made


@pytest.fixture
def url(harness: AdminHarness) -> Iterator[str]:
    with harness.serve("/dashboard") as address:
        yield address


def test_requests_entries_and_purges_are_shown(browser: Browser, harness: AdminHarness, url: str) -> None:
    with visit(browser, url) as page:
        wait_for_data(page)
        expect(page.locator("#welcome")).to_contain_text("/v1/chat/completions")
        for name in (1, 1, 1, 2, 2):
            harness.request(name)
        expect(page.locator("#saved-today")).to_have_text("6 s")
        expect(page.locator("#welcome")).to_be_hidden()
        expect(page.locator("#rate-requests")).to_have_text("60 %")
        expect(page.locator("#rate-cost")).to_have_text("60 %")
        for span in ("month", "all", "hour"):
            page.click(f"#span [data-value={span}]")
            expect(page.locator("#spend-legend .without b")).to_have_text("10 s")
            expect(page.locator("#spend-legend .spent b")).to_have_text("4 s")
        expect(page.locator("#store")).to_contain_text("ok")
        expect(page.locator("#upstreams")).to_contain_text("fake")
        open_view(page, "savings")
        expect(page.locator("#bars .name")).to_have_text(["knapcache", "LRU", "Twice the capacity"])
        expect(page.locator("#bars .amount")).to_have_text(["6 s", "6 s", "6 s"])
        expect(page.locator("#models-table tbody tr")).to_contain_text(["m"])
        expect(page.locator("#tenants-table tbody tr")).to_contain_text(["anonymous"])
        open_view(page, "requests")
        expect(page.locator("#requests-table tbody tr")).to_have_count(5)
        expect(page.locator("#requests-table .outcome.hit")).to_have_count(3)
        # An entry, opened from the details of a request.
        page.click("#requests-table tbody tr:first-child button")
        expect(page.locator("#drawer")).to_contain_text("The 1st hit of this entry")
        page.get_by_role("button", name="Show the entry").click()
        expect(page.locator("#drawer")).to_contain_text('"content": "question 2"')
        expect(page.locator("#drawer")).to_contain_text('"answer": "2"')
        page.get_by_role("button", name="Purge this entry").click()
        page.locator("#confirm").get_by_role("button", name="Purge").click()
        expect(page.locator(".toast")).to_have_text("Purged 1 entry")
        assert harness.cache.stats().entries == 1
        # The other entry, by its tenant.
        open_view(page, "entries")
        expect(page.locator("#entries-total")).to_have_text("1")
        page.select_option("#by-tenant", "anonymous")
        expect(page.locator("#entries-total")).to_have_text("1 found")
        page.click("#purge")
        expect(page.locator("#confirm .preview li")).to_contain_text(["question 1"])
        page.locator("#confirm").get_by_role("button", name="Purge").click()
        expect(page.locator("#entries-table tbody")).to_contain_text("No matching entries.")
        assert harness.cache.stats().entries == 0
        open_view(page, "settings")
        expect(page.locator("#tokens-table tbody")).to_contain_text("admin")
        expect(page.locator("#audit-table tbody")).to_contain_text("Purge of an entry")
        page.click("#snapshot")
        expect(page.locator(".toast").last).to_have_text("Snapshot saved")


def test_rejected_actions_are_reported(browser: Browser, harness: AdminHarness, url: str) -> None:
    key = harness.request(1)
    with visit(browser, url, allow=("404", "409", "401")) as page:
        wait_for_data(page)
        open_view(page, "savings")
        page.click("#plan")
        expect(page.locator(".toast")).to_contain_text("There is no request log")
        open_view(page, "entries")
        page.click("#entries-table tbody tr:first-child button")
        expect(page.locator("#drawer")).to_be_visible()
        harness.cache.purge(key=key)
        page.get_by_role("button", name="Purge this entry").click()
        page.locator("#confirm").get_by_role("button", name="Purge").click()
        expect(page.locator(".toast").last).to_have_text("Purge failed: No entry has this key")
        page.keyboard.press("Escape")
        page.click("#help")
        page.click("#logout")
        expect(page.locator("#login")).to_be_visible()
        page.reload()
        expect(page.locator("#login")).to_be_visible()
