"""The search of the documentation site finds the answers to the first questions of new users.

It runs Sphinx's own search page in Chromium, on the site as `make docs` builds it.
"""

from __future__ import annotations

import functools
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page

from tests.support.browser import TIMEOUT, chromium

ROOT = Path(__file__).parent.parent
FIRST = 3
"""Results that people look at."""
QUESTIONS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("faq.html#is-my-data-stored-in-clear-text", "reference/store.html"): (
        "is my data stored in clear text",
        "are prompts encrypted at rest",
        "data stored in plain text",
        "encryption key",
        "are my prompts stored on disk unencrypted",
    ),
    ("faq.html#how-do-i-bypass-the-cache-once", "guides/proxy.html"): (
        "how do I bypass the cache once",
        "bypass the cache",
        "skip cache for one request",
        "force a fresh answer",
        "disable the cache for a request",
        "ignore cache for one call",
        "no-cache header",
        "turn off cache",
    ),
    ("faq.html#what-is-never-cached",): (
        "what is never cached",
        "never cached",
        "are errors cached",
        "which requests are not cached",
        "temperature cached",
        "images audio cached",
    ),
    ("faq.html#how-do-i-upgrade-without-losing-the-cache", "guides/upgrade.html"): (
        "how do I upgrade without losing the cache",
        "upgrade",
        "rolling upgrade",
        "downgrade to an older version",
        "new version file format",
        "migrate to new version",
        "roll back to previous version",
        "zero downtime upgrade",
    ),
    ("faq.html#how-much-memory-and-disk-does-it-need", "guides/sizing.html"): (
        "how much memory and disk",
        "how much memory does it need",
        "disk space",
        "RAM",
        "memory per entry",
        "RAM for a million entries",
        "disk usage",
    ),
    ("faq.html#how-do-i-see-the-savings-per-team", "guides/dashboard.html"): (
        "savings per team",
        "how much does each team save",
        "cost per team",
        "savings by tenant",
        "spend of each team",
        "cost per customer",
        "monthly spend per department",
    ),
    ("faq.html#can-it-make-answers-wrong", "reference/keys.html"): (
        "can it make answers wrong",
        "wrong answers",
        "does it return a wrong answer",
        "answer out of date",
        "same answer temperature",
        "stale answer",
        "hallucination wrong cached answer",
    ),
    ("guides/failures.html", "guides/cluster.html"): ("what happens if redis is down", "provider is down", "disk full"),
    ("guides/providers.html",): ("Azure OpenAI", "Gemini", "Ollama", "OpenRouter"),
    ("guides/integrations.html",): ("Claude Code", "n8n", "Vercel AI SDK", "aider"),
    ("background/comparison.html",): ("compared with LiteLLM", "difference to GPTCache", "Helicone alternative"),
    ("get-started/installation.html",): ("uninstall", "windows"),
}
"""Wordings that people type, by the pages that answer them."""


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the built site."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "sphinx", "--quiet", "-b", "html", ROOT / "docs", folder], check=True)
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(QuietHandler, directory=str(folder))
    ) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with chromium() as browser:
        opened = browser.new_page()
        opened.set_default_timeout(TIMEOUT)
        yield opened


def search(page: Page, site: str, words: str) -> list[str]:
    """Return the addresses of the first results, relative to the site."""
    page.goto(f"{site}/search.html?q={quote(words)}")
    page.wait_for_function("/finished|did not match/.test(document.querySelector('.search-summary')?.innerText)")
    found: list[str] = page.locator("ul.search > li > a").evaluate_all("links => links.map(link => link.href)")
    return [address.removeprefix(f"{site}/") for address in found[:FIRST]]


@pytest.mark.long
@pytest.mark.parametrize("pages", QUESTIONS, ids=lambda pages: pages[0].partition("#")[2] or pages[0])
def test_a_question_finds_its_page(page: Page, site: str, pages: tuple[str, ...]) -> None:
    """The results have the page with the details, or for a question of the FAQ its section or the FAQ."""
    right = {*pages, "faq.html"} if pages[0].startswith("faq") else set(pages)
    found = {words: search(page, site, words) for words in QUESTIONS[pages]}
    assert {words: results for words, results in found.items() if not right & set(results)} == {}
