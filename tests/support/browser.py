"""Chromium for dashboard tests.

`visit` fails the test if the page wrote to the console, raised an error, violated its content security policy, or sent
a request to another host.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator
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
    """Launch the installed browser, with further flags. Without one, skip the test, or fail in CI.

    The headless shell has no windows: it takes less than half of the CPU time of the whole browser.
    """
    found = shutil.which("chromium-headless-shell") or find_program("chromium", "chromium", "google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=[*FLAGS.split(), *flags])
        yield browser
        browser.close()


class Tab:
    """A page in a context of its own. Records its console, its requests and violations of its security policy."""

    def __init__(self, browser: Browser, **options: Any) -> None:
        self.console: list[str] = []
        self.requested: set[str] = set()
        self._context = browser.new_context(**{**DESKTOP, **options})
        self._context.add_init_script(RECORD_VIOLATIONS)
        self._context.on("request", lambda request: self.requested.add(request.url))
        self.page = self._context.new_page()
        self.page.set_default_timeout(TIMEOUT)
        self.page.on("console", lambda message: self.console.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.console.append(f"error: {error}"))

    def open(self, url: str) -> Page:
        """Load a page, without anything of the last one."""
        self.page.evaluate("location.protocol === 'about:' || localStorage.clear()")
        self._context.clear_cookies()
        self.page.goto("about:blank")
        self.console.clear()
        self.requested.clear()
        self.page.goto(url)
        return self.page

    def check(self, allowed: Iterable[str] = ()) -> None:
        """Check the behaviour of the page. allowed: parts of console lines that the test provokes."""
        origin = self.page.url.partition("/dashboard")[0] + "/"
        assert [line for line in self.console if not any(part in line for part in allowed)] == []
        assert self.page.evaluate("window.violations") == []
        assert {address for address in self.requested if not address.startswith(origin)} == set()
        assert f"{origin}dashboard/app.js" in self.requested, "no requests were recorded"

    def close(self) -> None:
        """Close the page."""
        self._context.close()


@contextlib.contextmanager
def visit(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """Open a page and check its behaviour at the end. `allow`: parts of console lines that the test provokes."""
    allowed = options.pop("allow", ())
    tab = Tab(browser, **options)
    yield tab.open(url)
    tab.check(allowed)
    tab.close()


def wait_for_data(page: Page) -> None:
    """Wait until the first summary is shown."""
    page.wait_for_selector("body[data-state=live], body[data-state=empty]")


def dollars(page: Page, selector: str) -> float:
    """Return the amount in dollars that an element shows."""
    return float(page.inner_text(selector).replace("$", "").replace(",", ""))


def open_view(page: Page, name: str) -> None:
    """Open a view by its link. name: as in its address; empty: the overview."""
    page.click(f"#views a[href='/dashboard{'/' if name else ''}{name}']")
    page.wait_for_selector(f"body[data-view={name or 'overview'}]")


def poll_now(page: Page) -> None:
    """Make the page poll at once instead of within two seconds."""
    page.evaluate("window.dispatchEvent(new Event('online'))")
