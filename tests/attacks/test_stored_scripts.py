"""Scripts in strings that callers, upstreams and settings control, shown by the dashboard of a running proxy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser

from knapcache.proxy.settings.secrets import digest_of
from tests.support.browser import chromium, open_view, visit, wait_for_data
from tests.support.raw_client import chat, exchange
from tests.support.recording_upstream import RecordingUpstream, plain, send
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until

TOKEN = "0123456789abcdef-browser-token"
VALID_KEY = "kc-hostile-xxxxxxxxxxxxxxxxxxxxxxxx"
SCRIPT = "<img src=x onerror=window.ran=1><script>window.ran=1</script>"
STRINGS = (
    SCRIPT,
    "\"><svg onload=window.ran=1><a href='//evil.example/x'>",
    "javascript:window.ran=1//'-window.ran-'",
    "</script></title><iframe srcdoc='<script>parent.ran=1</script>'>{{constructor}}",
)
ELEMENTS = "img[src=x], iframe, object, embed, base, [onload], [onerror]"
HARMLESS = f"window.ran === undefined && !document.querySelector('{ELEMENTS}')"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.fixture(scope="module")
def proxy_settings() -> dict[str, Any]:
    return {
        "admin_token": TOKEN,
        "show_content": True,
        "content_log": True,
        "tenants": [{"name": "hostile", "keys": [digest_of(VALID_KEY)]}],
    }


@pytest.mark.features
def test_the_dashboard_shows_them_as_text(proxy: RunningProxy, upstream: RecordingUpstream, browser: Browser) -> None:
    for k, text in enumerate(STRINGS):
        for _ in range(2):
            exchange(proxy.url, chat(f"{k} {text}", f"User-Agent: {SCRIPT}", f"x-knapcache-tags: {k}",
                                     key=VALID_KEY, model=f"m{k} {text}", user=text))  # fmt: skip
        # The upstream names another model in its answer, and fails with a message of its own.
        answer = f'{{"id": "x", "object": "chat.completion", "model": {quoted(text)}, "choices": [{{"index": 0, '
        answer += f'"message": {{"role": "assistant", "content": {quoted(text)}}}, "finish_reason": "stop"}}], '
        answer += '"usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}'
        upstream.script(send(plain(answer.encode(), "content-type: application/json")))
        exchange(proxy.url, chat(f"answered {k}", key=VALID_KEY))
        failure = f'{{"error": {{"message": {quoted(text)}, "type": {quoted(text)}, "code": {quoted(text)}}}}}'
        upstream.script(send(failing(failure.encode())))
        exchange(proxy.url, chat(f"fails {k}", key=VALID_KEY))
    headers = {"authorization": f"Bearer {TOKEN}"}

    def logged() -> bool:
        found = httpx.get(f"{proxy.url}/admin/v1/log?text=window&limit=100", headers=headers).json()["rows"]
        return len(found) >= 2 * len(STRINGS)

    wait_until(logged)
    with visit(browser, f"{proxy.url}/dashboard#token={TOKEN}") as page:
        wait_for_data(page)
        for view in ("savings", "settings", "content_log", "entries", "requests"):
            open_view(page, view)
            page.wait_for_load_state("networkidle")
            if view != "settings":
                wait_until(lambda: "onerror=window.ran=1" in page.inner_text("body"))
            assert page.evaluate(HARMLESS)
            for row in page.locator(f"#{view} :is(#entries-table, #requests-table) tbody tr").all()[:6]:
                row.click()
                page.wait_for_selector("#drawer[open]")
                assert page.evaluate(HARMLESS)
                page.keyboard.press("Escape")
        page.reload()
        wait_for_data(page)
        assert page.evaluate(HARMLESS)


def quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


def failing(body: bytes) -> bytes:
    """Return the bytes of an error response."""
    return plain(body, "content-type: application/json").replace(b"200 OK", b"500 Internal Server Error", 1)
