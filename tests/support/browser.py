"""Chromium for dashboard tests.

`visit` fails the test if the page wrote to the console, raised an error, violated its content security policy, or sent
a request to another host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support.programs import find_program

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
TIMEOUT = 60_000
"""Milliseconds for what a page shows: far more than it takes on a busy machine."""
expect.set_options(timeout=TIMEOUT)
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}
RECORD_VIOLATIONS = """
window.violations = [];
addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
"""


@contextlib.contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    """Launch the installed browser, with further flags. Without one, skip the test, or fail in CI."""
    found = find_program("chromium", "chromium", "google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=[*FLAGS.split(), *flags])
        yield browser
        browser.close()


@contextlib.contextmanager
def visit(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """Open a page and check its behaviour at the end. `allow`: parts of console lines that the test provokes."""
    allowed = options.pop("allow", ())
    console: list[str] = []
    requested: set[str] = set()
    context = browser.new_context(**{**DESKTOP, **options})
    context.add_init_script(RECORD_VIOLATIONS)
    page = context.new_page()
    page.set_default_timeout(TIMEOUT)
    page.on("console", lambda message: console.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: console.append(f"error: {error}"))
    context.on("request", lambda request: requested.add(request.url))
    page.goto(url)
    yield page
    violations = page.evaluate("window.violations")
    context.close()
    origin = url.partition("/dashboard")[0] + "/"
    assert [line for line in console if not any(part in line for part in allowed)] == []
    assert violations == []
    assert {address for address in requested if not address.startswith(origin)} == set()
    assert f"{origin}dashboard/app.js" in requested, "no requests were recorded"


def wait_for_data(page: Page) -> None:
    """Wait until the first summary is shown."""
    page.wait_for_selector("body[data-state=live], body[data-state=empty]")


def dollars(page: Page, selector: str) -> float:
    """Return the amount in dollars that an element shows."""
    return float(page.inner_text(selector).replace("$", "").replace(",", ""))
