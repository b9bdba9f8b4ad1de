"""The dashboard shows frames, their evidence and what is saved."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.features.swap.two_models import swapping
from tests.support.browser import open_view, poll_now, visit


def test_frames_are_shown(browser: Browser, tmp_path: Path) -> None:
    with swapping(tmp_path) as client:
        client.ask(tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
        url = f"{client.running.url}/dashboard#token={client.running.proxy.admin_token}"
        with visit(browser, url) as page:
            expect(page.locator("#swap-card .middle")).to_have_text("Learning")
            client.learn()
            for _ in range(20):
                client.ask()
            poll_now(page)
            expect(page.locator("#swap-card .sub")).to_contain_text("saved by cheaper models; 1 frame certified now")
            open_view(page, "swap")
            row = page.locator("#swap-table tbody tr")
            expect(row).to_have_count(1)
            expect(row).to_contain_text("cheap: gpt-4o → gpt-4o-mini")
            expect(row).to_contain_text("certified. It loses at most 20 %, and answers.")
            expect(page.locator("#swap-note")).to_contain_text("never swapped: tools (1)")
            page.set_viewport_size({"width": 390, "height": 844})
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
