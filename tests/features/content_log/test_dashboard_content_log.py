"""The content log on the dashboard, in a browser, on the real admin API."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from playwright.sync_api import Browser, expect

from knapcache.features.content_log.file import ContentFile
from tests.support.admin_context import AdminHarness
from tests.support.browser import visit, wait_for_data
from tests.support.content_lines import NOW, chat, write

VIEW = "/dashboard/content_log"


def test_lines_are_found_by_their_words_and_opened(browser: Browser, tmp_path: Path) -> None:
    with contextlib.closing(ContentFile(tmp_path / "content.sqlite")) as file:
        lines = [chat(f"question {k}", time=NOW - 100 + k) for k in range(60)]
        write(file, *lines, chat("Where is <b>the refund policy</b>?", "Write to jane@example.org.", outcome="hit"))
    harness = AdminHarness(tmp_path, content_log=True, show_content=True)
    harness.request(1)
    with harness, harness.serve(VIEW) as url, visit(browser, url) as page:
        wait_for_data(page)
        rows = page.locator("#log-table tbody tr")
        expect(rows).to_have_count(50)
        page.locator("#log-more").click()
        expect(rows).to_have_count(61)
        expect(page.locator("#log-more")).to_be_hidden()
        page.locator("#log-search").fill("refund pol*")
        page.locator("#log-search").press("Enter")
        expect(rows).to_have_count(1)
        expect(page.locator("#log-note")).to_have_text("1 line")
        expect(rows.locator(".cost")).to_have_text(re.compile(r"^\$\S+ saved$"))
        expect(rows.locator("mark")).to_have_text(["refund", "policy"])
        expect(rows.locator(".excerpt")).to_contain_text("Where is <b>the refund policy</b>?")
        rows.locator("button").click()
        drawer = page.locator("#drawer")
        expect(drawer.locator(".logged").nth(1)).to_have_text("Write to [email].")
        expect(drawer.locator(".copyable").first).to_contain_text('"role": "system"')
        page.keyboard.press("Escape")
        page.locator("#log-outcome").select_option("miss")
        expect(rows).to_contain_text(["No line has all of these words."])


def test_without_show_content_the_view_says_how_to_search(browser: Browser, tmp_path: Path) -> None:
    with AdminHarness(tmp_path, content_log=True) as made, made.serve(VIEW) as url, visit(browser, url) as page:
        expect(page.locator("#log-off code")).to_have_text("show_content = true")
        expect(page.locator("#log-table")).to_have_count(0)
