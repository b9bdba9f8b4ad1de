"""A browser in front of the dashboard, that writes down what a careful eye would mind.

Every visit must end without a word in the console, an error, a broken content policy, or a request to anywhere
but the server it came from.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync"
DESK: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}
WATCH = """
window.broken = [];
addEventListener("securitypolicyviolation", (event) => window.broken.push(event.violatedDirective));
"""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """The system's browser; skips where there is none, but in CI, which has to bring it."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        assert not os.environ.get("CI"), "the dashboard is to be tested in CI, and there is no Chromium"
        pytest.skip("no Chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS.split())
        yield browser
        browser.close()


@contextlib.contextmanager
def visit(browser: Browser, url: str, **given: Any) -> Iterator[Page]:
    """A page with everything it does written down. `allow`: pieces of console lines that the test provokes."""
    allowed = given.pop("allow", ())
    words: list[str] = []
    asked: set[str] = set()
    context = browser.new_context(**{**DESK, **given})
    context.add_init_script(WATCH)
    page = context.new_page()
    page.set_default_timeout(8000)
    page.on("console", lambda message: words.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: words.append(f"error: {error}"))
    context.on("request", lambda request: asked.add(request.url))
    page.goto(url)
    yield page
    broken = page.evaluate("window.broken")
    context.close()
    origin = url.partition("/dashboard")[0] + "/"
    assert [line for line in words if not any(piece in line for piece in allowed)] == []
    assert broken == []
    assert {one for one in asked if not one.startswith(origin)} == set()
    assert f"{origin}dashboard/app.js" in asked, "nothing was written down"


def live(page: Page) -> None:
    """Wait until numbers are there."""
    page.wait_for_selector("body[data-state=live], body[data-state=empty]")


def dollars(page: Page, selector: str) -> float:
    """The amount that stands there."""
    return float(page.inner_text(selector).replace("$", "").replace(",", ""))
