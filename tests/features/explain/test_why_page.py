"""The dashboard of a running proxy finds entries by their words, and explains misses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from knapcache.testing import FakeUpstream
from tests.support.browser import open_view, visit, wait_for_data
from tests.support.running_proxy import RunningProxy

TOKEN = "an-operator-token-of-these-tests-0123456789"


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    settings: dict[str, Any] = {"admin_token": TOKEN, "show_content": True, "policy": "lru"}
    with (
        FakeUpstream() as upstream,
        RunningProxy(tmp_path_factory.mktemp("data"), upstream.openai_url, **settings) as proxy,
    ):
        send(proxy, "Where do swordfish live?")
        send(proxy, "Where do swordfish live?", temperature=0.2)
        send(proxy, "Name three rivers of Peru.")
        send(proxy, "Name three rivers of Peru.")
        send(proxy, "Name three rivers of Peru.", headers={"cache-control": "no-cache"})
        httpx.post(f"{proxy.url}/v1/embeddings", json={"model": "embedder", "input": "a fishing boat"})
        message = {"model": "claude", "max_tokens": 9, "messages": [{"role": "user", "content": "Bonjour, le monde"}]}
        httpx.post(f"{proxy.url}/v1/messages", json=message)
        yield proxy


def send(proxy: RunningProxy, text: str, headers: dict[str, str] | None = None, **fields: Any) -> None:
    body = {"model": "gpt-4o", "temperature": 0, "messages": [{"role": "user", "content": text}], **fields}
    httpx.post(f"{proxy.url}/v1/chat/completions", json=body, headers=headers).raise_for_status()


@pytest.fixture(scope="module")
def page(browser: Browser, proxy: RunningProxy) -> Iterator[Page]:
    with visit(browser, f"{proxy.url}/dashboard/requests#token={TOKEN}") as page:
        wait_for_data(page)
        expect(page.locator("#requests-table tbody tr")).to_have_count(7)
        yield page


def why(page: Page, row: int) -> str:
    """Open the details of a request, by its number from the oldest on, and return the explanation."""
    open_view(page, "requests")
    page.click(f"#requests-table tbody tr[data-serial='{row}'] button")
    expect(page.locator("#drawer")).to_be_visible()
    expect(page.locator("#drawer .why")).to_be_visible()
    found = page.inner_text("#drawer .sheet")
    page.keyboard.press("Escape")
    expect(page.locator("#drawer")).to_be_hidden()
    return found


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("SWORDFISH live", ["Where do swordfish live?"] * 2),
        ("fishing boat", ["a fishing boat"]),
        ("bonjour", ["Bonjour, le monde"]),
        ("no such words", []),
    ],
)
def test_search_finds_an_entry_by_its_words(page: Page, words: str, found: list[str]) -> None:
    open_view(page, "entries")
    page.fill("#search", words)
    expect(page.locator("#entries-total")).to_have_text(f"{len(found)} found")
    assert page.locator("#entries-table td.request button").all_inner_texts() == found
    page.fill("#search", "")
    expect(page.locator("#entries-total")).to_have_text("5")


def test_a_miss_with_another_temperature_names_it(page: Page) -> None:
    found = why(page, 2)
    assert "Why was this a miss?" in found
    assert "differs in temperature (0.2 instead of 0)" in found
    assert "Where do swordfish live?" in found


def test_new_requests_hits_and_refreshes_are_explained(page: Page) -> None:
    assert "New request" in why(page, 1)
    assert "The 1st hit of this entry" in why(page, 4)
    assert "A fresh answer was asked for" in why(page, 5)
