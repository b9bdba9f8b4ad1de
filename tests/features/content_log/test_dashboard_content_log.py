"""The content log on the dashboard, in a browser, on the real admin API."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import uvicorn
from playwright.sync_api import Browser, expect

from knapcache.features.content_log.file import ContentFile
from knapcache.proxy.admin.app import admin_app
from knapcache.proxy.run import listen
from tests.support.admin_context import TOKEN, AdminHarness
from tests.support.browser import chromium, visit, wait_for_data
from tests.support.content_lines import NOW, chat, write
from tests.support.timing import wait_until


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@contextlib.contextmanager
def served(harness: AdminHarness) -> Iterator[str]:
    socket = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(admin_app(harness.context), log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, args=([socket],), daemon=True)
    thread.start()
    wait_until(lambda: server.started, "the server")
    yield f"http://127.0.0.1:{socket.getsockname()[1]}/dashboard/content_log#token={quote(TOKEN)}"
    server.should_exit = server.force_exit = True
    thread.join(10.0)
    socket.close()
    harness.close()


def test_lines_are_found_by_their_words_and_opened(browser: Browser, tmp_path: Path) -> None:
    harness = AdminHarness(tmp_path, content_log=True, show_content=True)
    with contextlib.closing(ContentFile(tmp_path / "content.sqlite")) as file:
        lines = [chat(f"question {k}", time=NOW - 100 + k) for k in range(60)]
        write(file, *lines, chat("Where is <b>the refund policy</b>?", "Write to jane@example.org.", outcome="hit"))
    harness.request(1)
    with served(harness) as url, visit(browser, url) as page:
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
    with served(AdminHarness(tmp_path, content_log=True)) as url, visit(browser, url) as page:
        expect(page.locator("#log-off code")).to_have_text("show_content = true")
        expect(page.locator("#log-table")).to_have_count(0)
