"""What the dashboard says about prices, capacity and failing upstreams, in a browser on a fake admin API."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import open_view, poll_now
from tests.support.fake_admin import FakeAdmin


def without_prices(admin: FakeAdmin, price: str) -> None:
    """Take the prices away: all models are `free` or `unknown`, and every answer cost one cent for 2 seconds."""
    admin.prices, admin.amounts = "none", {"unit": "seconds", "factor": 2.0 / 0.0123}
    admin.model_prices = dict.fromkeys(admin.models, price)
    for point in admin.points.values():
        point |= {"unpriced": point["priced"], "priced": 0, "usd_spent": 0.0, "usd_saved": 0.0}
    for entry in admin.entries:
        entry["usd"] = None


def test_a_free_model_saves_seconds_and_tokens_and_no_dollars(page: Page, admin: FakeAdmin) -> None:
    without_prices(admin, "free")
    poll_now(page)
    expect(page.locator("#saved-today")).to_have_text(re.compile(r"^[\d.]+ (s|min|h)$"))
    expect(page.locator("#saved-other")).to_have_text(
        re.compile(r"^Model time, summed over concurrent calls. [\d,]+ tokens saved today$")
    )
    expect(page.locator("#price-note")).to_have_text(
        "The embedded model is free, so savings are in seconds and tokens."
    )
    expect(page.locator("#spend-title")).to_have_text("Model time with and without cache")
    expect(page.locator("#spend-legend .saved b")).to_have_text(re.compile("(s|min|h) \\("))
    assert "$" not in page.inner_text("main")
    saved = page.inner_text("#spend-legend .saved b").split(" (")[0]
    open_view(page, "savings")
    expect(page.locator("#models-table td.model small").first).to_have_text("free")
    expect(page.locator("#bars .amount").first).to_have_text(saved)
    assert "$" not in page.inner_text("main")
    open_view(page, "entries")
    page.wait_for_selector("#entries-table td.value")
    assert "$" not in page.inner_text("main")


def test_a_model_without_a_price_says_how_to_set_one(page: Page, admin: FakeAdmin) -> None:
    without_prices(admin, "unknown")
    poll_now(page)
    expect(page.locator("#price-note")).to_contain_text("No price known for 4 models.")
    page.click("#price-note button")
    expect(page.locator("#panel")).to_contain_text('[prices."gpt-4o"]')
    page.keyboard.press("Escape")
    open_view(page, "savings")
    expect(page.locator("#models-table td.model small").first).to_have_text("no price known")
    assert "$" not in page.inner_text("main")


def test_dollars_of_some_models_are_not_taken_for_all(page: Page, admin: FakeAdmin) -> None:
    admin.prices, admin.amounts, admin.model_prices = "mixed", {"unit": "share", "factor": 1.0}, {"gpt-4o": "mixed"}
    for point in admin.points.values():
        point["unpriced"] = 7
    poll_now(page)
    expect(page.locator("#price-note")).to_contain_text("Dollars are of models with a known price.")
    expect(page.locator("#spend-legend")).to_contain_text("only models with a known price")
    open_view(page, "savings")
    expect(page.locator("#bars .amount").first).to_have_text(re.compile(" %$"))
    assert all(text.endswith(" %") for text in page.locator("#bars .amount").all_inner_texts())
    expect(page.locator("#marginal")).to_contain_text("% of the cost")


def visible_labels(page: Page) -> int:
    return int(page.evaluate("[...document.querySelectorAll('.simulated')].filter((one) => one.offsetParent).length"))


def test_simulated_prices_are_labelled_wherever_a_dollar_is(page: Page, admin: FakeAdmin) -> None:
    assert visible_labels(page) == 0
    admin.prices = "simulated"
    poll_now(page)
    expect(page.locator("#spend .simulated")).to_be_visible()
    assert "simulated prices" in page.title()
    page.focus("#chart .plot")
    page.keyboard.press("End")
    expect(page.locator(".tooltip")).to_contain_text("simulated prices")
    for view in ("", "requests", "savings", "prefix", "settings", "entries"):
        open_view(page, view)
        page.wait_for_load_state("networkidle")
        cards = page.evaluate("""() => [...document.querySelectorAll("article.card")]
            .filter((card) => card.offsetParent).map((card) => card.innerText)
            .filter((text) => /\\$[\\d.]/.test(text) && !/simulated prices/.test(text))""")
        assert cards == []
    page.click("#entries-table tbody tr:first-child button")
    expect(page.locator("#drawer")).to_contain_text("simulated prices")


def test_more_capacity_saves_nothing_until_something_was_evicted(page: Page, admin: FakeAdmin) -> None:
    for point in admin.points.values():
        point["evictions"] = 0
    open_view(page, "savings")
    expect(page.locator("#marginal")).to_have_text("Not full yet")
    expect(page.locator("#doubling")).to_have_text("More capacity saves nothing: nothing was evicted so far.")
    expect(page.locator("#policies-equal")).to_be_visible()
    expect(page.locator("#policies-sub")).to_be_empty()
    admin.traffic("miss")
    next(iter(admin.points.values()))["evictions"] = 1
    poll_now(page)
    expect(page.locator("#marginal")).to_have_text(re.compile(r"^\$"))
    saves = float(re.search(r"saved \$([\d.]+) more", page.inner_text("#doubling"))[1])  # type: ignore[index]
    per_mb = float(page.inner_text("#marginal")[1:])
    assert per_mb * admin.capacity / 1e6 == pytest.approx(saves, rel=0.02), "the two numbers agree"
    page.click("#policies-span [data-value=all]")
    expect(page.locator("#policies-equal")).to_be_hidden()


def test_savings_that_are_estimated_say_so(page: Page, admin: FakeAdmin) -> None:
    next(iter(admin.points.values()))["evictions"] = 1
    open_view(page, "savings")
    expect(page.locator("#doubling")).to_contain_text("Twice the capacity")
    expect(page.locator("#savings")).not_to_contain_text("Estimated")
    admin.shadow_rate = 8
    poll_now(page)
    expect(page.locator("#policies-note")).to_contain_text("size. Estimated from 1 key in 8.")
    expect(page.locator("#doubling")).to_contain_text("Estimated from 1 key in 8.")


def test_the_capacity_has_one_scale(page: Page, admin: FakeAdmin) -> None:
    used, card = admin.summary()["storage"]["bytes"], page.locator(".tile", has=page.locator("#capacity"))
    expect(page.locator("#capacity")).to_have_text(f"{used / 1e6:.3g} MB of 223 MB")
    expect(page.locator("#capacity-sub")).to_have_text(f"{100 * used / 223e6:.0f} % full, {len(admin.entries)} entries")
    expect(page.locator("#capacity-overhead")).to_contain_text("For entries, of the configured 256 MB. The rest is")
    assert len(re.findall(r"\d [kM]?B\b", card.inner_text())) == 3, "used, for entries, and configured"
    bar = page.eval_on_selector("#capacity-bar b", "bar => parseFloat(bar.style.width)")
    assert bar == pytest.approx(100 * used / 223e6, rel=1e-3)


def test_a_failing_upstream_is_red_and_says_why(page: Page, admin: FakeAdmin) -> None:
    expect(page.locator("#failing")).to_be_hidden()
    expect(page.locator("#upstreams .dot")).to_have_class("dot good")
    admin.upstreams[0] |= {"state": "failing", "failing_since": time.time() - 65, "reason": "connection refused",
                           "failed": 4, "calls": 9, "errors": 4, "last_failure": time.time() - 5,
                           "failing_now": True}  # fmt: skip
    poll_now(page)
    expect(page.locator("#failing")).to_have_text(
        re.compile(
            r"Upstream openai fails: connection refused\. It failed 4 requests in 1 min, the last one \d+ s ago; "
            r"cached answers are served\."
        )
    )
    expect(page.locator("#upstreams .dot")).to_have_class("dot bad")
    expect(page.locator("#upstreams")).to_contain_text("its last request failed: connection refused, ")
    assert page.evaluate("getComputedStyle(document.querySelector('#upstreams .note')).color") == page.evaluate(
        "getComputedStyle(document.querySelector('#failing')).color"
    ), "both are red"
    admin.upstreams[0] |= {"fallback": "azure", "calls": 1}
    poll_now(page)
    expect(page.locator("#failing")).to_contain_text("s ago, which azure answered; cached")
    expect(page.locator("#upstreams .amount")).to_have_text("1 call4 failed")
    admin.upstreams[0] |= {"health": "open", "open_until": time.time() + 7.9}
    poll_now(page)
    expect(page.locator("#upstreams")).to_contain_text(
        re.compile(r"openai\s*open: connection refused, \d+ s ago; next probe in \d\.\d+ s")
    )
    admin.upstreams[0] |= {"health": "half-open"}
    poll_now(page)
    expect(page.locator("#upstreams")).to_contain_text("s ago; the next request is a probe")
    admin.upstreams[0] |= {"failing_now": False, "last_failure": time.time() - 3000}
    poll_now(page)
    expect(page.locator("#failing")).to_be_hidden()
    expect(page.locator("#upstreams .dot")).to_have_class("dot fair")
    expect(page.locator("#upstreams")).to_contain_text("half-open: connection refused, 50 min ago; the next request")
    admin.upstreams[0] |= {"state": "ok", "failing_since": None, "reason": "", "failed": 0, "last_failure": None}
    admin.upstreams[0] |= {"health": "healthy", "open_until": None}
    poll_now(page)
    expect(page.locator("#failing")).to_be_hidden()
    expect(page.locator("#upstreams")).to_contain_text("healthy")
