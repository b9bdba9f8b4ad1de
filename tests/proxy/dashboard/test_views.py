"""Views of the dashboard: addresses, navigation, size, empty states, and features that are on or off."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from knapcache.features.semantic.differences import FEATURES
from knapcache.features.swap.event import LabelNote, SwapEvent
from knapcache.features.swap.settings import SwapRouteSettings
from knapcache.proxy.admin.pages import feature_panels
from knapcache.proxy.settings import Settings
from tests.features.prefix.prefix_events import prefix_event
from tests.features.semantic.semantic_events import semantic_event
from tests.support.browser import Tab, open_view, poll_now, wait_for_data
from tests.support.events import event
from tests.support.fake_admin import FakeAdmin, audit_record, plan_result
from tests.support.semantic_control import LearnerControl
from tests.support.timing import wait_until

CORE = ["", "entries", "requests", "savings"]
FEATURE_VIEWS = ["limits", "content_log", "prefix", "swap", "semantic", "webhooks"]
ALL = [*CORE, *FEATURE_VIEWS, "settings"]
SCREENS = 2
BILLS = {"none": 10_000.0, "last-1h": 5_800.0, "last-5m": 3_550.0, "learned": 2_300.0, "paid": 10_000.0}


def busy(admin: FakeAdmin) -> None:
    """Turn all features on, with the traffic of a busy day."""
    admin.on = set(FEATURE_VIEWS)
    admin.fill(500, days=1.0)
    for k in range(200):
        admin.traffic(("hit", "hit", "miss", "coalesced", "failed", "similar")[k % 6], model=admin.models[k % 4])
    usage = {"allowed": 10.0, "reserved": 0.0, "resets_at": None}
    admin.limits = [
        usage
        | {"scope": "tenant", "name": f"team-{k}", "limit": limit, "allowed": 10.0, "used": used, "ratio": used / 10}
        for k in range(12)
        for limit, used in (("usd_per_day", 4.0), ("requests_per_minute", 9.0), ("concurrent", 11.0))
    ]
    sent = {"events": ["limit_reached"], "event": "limit_reached", "time": time.time() - 90}
    admin.webhooks = [sent | {"name": f"hook-{k}", "error": "status 503" * (k == 1)} for k in range(4)]
    admin.routes = [
        {
            "name": f"route-{k}",
            "conditions": ["model gpt-4o*"],
            "rules": {"ttl": 3600.0},
            "recent": {"hit": 9, "miss": 3},
        }
        for k in range(6)
    ]
    admin.tier = LearnerControl()
    admin.tier.add_labels(700)
    for k in range(20):
        words = {"question": f"How do I reset my pin number {k}?", "matched_question": "How do I reset my password?"}
        match = semantic_event(match_id=f"m-{k}", scope="", features=(0.5,) * len(FEATURES), **words)
        found = event("similar", time=time.time(), usd=0.25, semantic=match)
        admin.semantic.count(found)
        admin.matches.consume([found])
        for tariff in ("anthropic", "openai-5.6"):
            prefix = prefix_event(tariff=tariff, own_marks=False, bills=BILLS, rule="learned-alone")
            admin.prefix.count(event("miss", time=time.time(), upstream=tariff, prefix=prefix))
    add_frames(admin)
    admin.audit = [audit_record("login", id=str(k)) for k in range(30)]
    admin.plan |= plan_result(span="2 days")


def add_frames(admin: FakeAdmin) -> None:
    """Add frames of requests in every state, and more requests that are never swapped."""
    names = {"name": "questions-of-the-support-desk", "swap_model": "gpt-4o-mini-2024-07-18"}
    route = Settings(route=[{"swap": "on"} | names]).route[0]
    assert isinstance(route, SwapRouteSettings)
    admin.swap.routes[route.name] = SimpleNamespace(model=route.swap_model, settings=route)
    for k in range(60):
        name, tenant = f"{k:016x}", f"team-{k}"
        loss = (None, 0.0, 0.0, 1.0)[k % 4]
        frame = admin.swap.frames.for_request(name, tenant, route, "claude-opus-4-1-20250805")
        for _ in range(0 if loss is None else 30 if k % 4 == 1 else 600):
            frame.decision.add_label(loss, 0.001)
        parts = [SwapEvent("asked", name), SwapEvent("swap", name, usd_saved=0.25)]
        parts.append(SwapEvent("excluded", reason=f"reason {k % 8}"))
        admin.swapped.consume([event("miss", time=time.time(), swap=part) for part in parts])
        admin.swapped.consume_notes([LabelNote(name, 0.0, "equal", 0.01)])
    assert {frame.decision.certificate.state for _, frame in admin.swap.frames} == {"learning", "certified", "hopeless"}


@pytest.fixture
def busy_page(tab: Tab, admin: FakeAdmin) -> Iterator[Page]:
    busy(admin)
    opened = tab.open(admin.login())
    wait_for_data(opened)
    yield opened
    opened.set_viewport_size({"width": 1280, "height": 800})
    tab.check()


def test_every_view_fits_two_screens_and_any_width(busy_page: Page) -> None:
    page = busy_page
    for view in ALL:
        page.set_viewport_size({"width": 1280, "height": 800})
        open_view(page, view)
        page.wait_for_load_state("networkidle")
        expect(page.locator("main > section:not([hidden])")).to_have_count(1)
        height = page.evaluate("document.documentElement.scrollHeight")
        assert height <= SCREENS * 800, f"{view or 'overview'} has {height} pixels"
        for width in (390, 320, 768, 1920):
            page.set_viewport_size({"width": width, "height": 800})
            wait_until(lambda: page.evaluate("document.documentElement.scrollWidth <= innerWidth"))
    page.set_viewport_size({"width": 1280, "height": 800})
    open_view(page, "")
    assert page.locator("#overview article.card:visible").count() <= 6
    hidden = "list => [list.scrollWidth - list.clientWidth, list.scrollHeight - list.clientHeight]"
    assert page.locator("#views").evaluate(hidden) == [0, 0], "all names are visible"
    expect(page.locator("#features > div")).to_have_count(len(FEATURE_VIEWS))


def test_a_view_has_an_address_that_can_be_loaded_and_left(busy_page: Page, admin: FakeAdmin) -> None:
    page = busy_page
    links = page.locator("#views a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
    assert links == ["/dashboard", *(f"/dashboard/{name}" for name in ALL[1:])]
    open_view(page, "savings")
    page.click("#models-table tbody a")
    assert page.url == f"{admin.url}/dashboard/entries?model=gpt-4o"
    expect(page.locator("#entries-total")).to_contain_text("found")
    page.reload()
    expect(page.locator("#by-model")).to_have_value("gpt-4o")
    expect(page.locator("#views a[aria-current=page]")).to_have_text("Entries")
    page.go_back()
    expect(page.locator("#savings")).to_be_visible()
    page.go_back()
    expect(page.locator("#overview")).to_be_visible()
    page.go_forward()
    expect(page.locator("#savings")).to_be_visible()
    assert page.title() == "Savings · knapcache"


def test_links_and_tokens_open_any_view(busy_page: Page, tab: Tab, admin: FakeAdmin) -> None:
    sections = {"#requests": "requests", "#usage": "savings", "#health": "settings", "#content-log": "content_log"}
    addresses = {"/semantic": "semantic", "/settings": "settings", "#nothing": "overview", **sections}
    for address, view in addresses.items():
        busy_page.goto("about:blank")
        busy_page.goto(f"{admin.url}/dashboard{address}")
        busy_page.wait_for_selector(f"body[data-view={view}]")
        assert busy_page.url == f"{admin.url}/dashboard{'' if view == 'overview' else f'/{view}'}"
    for path in ("/entries?model=gpt-4o", "/limits"):
        tab.open(admin.login(path)).wait_for_selector(f"body[data-view={path[1:].partition('?')[0]}]")
        assert busy_page.url == f"{admin.url}/dashboard{path}"


def test_without_data_every_view_says_what_to_do(tab: Tab, server: FakeAdmin) -> None:
    server.reset()
    server.on = {"prefix", "swap", "semantic"}
    server.tier = LearnerControl()
    page = tab.open(server.login())
    wait_for_data(page)
    expect(page.locator("#welcome")).to_contain_text("Send the same request twice")
    expect(page.locator("#features")).to_be_hidden()
    says = {
        "entries": ("#entries-table", "Connect an app and send one"),
        "requests": ("#requests-table", "Connect an app: each request appears here"),
        "savings": ("#policies-none", "send the same request twice"),
        "prefix": ("#prefix-text", "Connect an app and send one to a provider"),
        "swap": ("#swap-table", "Send a request that a route with swap matches"),
        "semantic": ("#semantic-matches", "Ask a stored question in other words"),
        "settings": ("#audit-table", "Logins, purges and readings of content are listed here"),
    }
    for view, (place, text) in says.items():
        open_view(page, view)
        expect(page.locator(place)).to_contain_text(text)
    open_view(page, "requests")
    page.click("#requests-table button")
    expect(page.locator("#panel")).to_contain_text(f'OpenAI(base_url="{server.url}/v1")')
    tab.check()


def test_a_feature_that_is_off_has_a_line_on_the_settings_and_no_view(tab: Tab, admin: FakeAdmin) -> None:
    admin.on = {"limits"}
    page = tab.open(admin.login("/semantic"))
    page.wait_for_selector("body[data-view=settings]")
    assert page.url == f"{admin.url}/dashboard/settings"
    assert page.locator("#views a").all_inner_texts() == [
        "Overview", "Entries", "Requests", "Savings", "Limits", "Settings",
    ]  # fmt: skip
    modules = {url.partition("/features/")[2] for url in tab.requested if "/features/" in url}
    assert modules == {"limits/panel.js"}
    expect(page.locator("#panels li[data-name=limits]")).to_contain_text("on")
    expect(page.locator("#panels li[data-name=semantic] code")).to_have_text('semantic = "shadow"')
    open_view(page, "")
    expect(page.locator("#features > div")).to_have_count(1)
    tab.check()


def test_each_line_of_the_settings_turns_its_feature_on() -> None:
    settings = Settings(prefix="off")
    specs = [spec for spec, _ in feature_panels()]
    assert [spec.name for spec in specs if spec.is_on(settings)] == []
    for spec in specs:
        settings = Settings(**({"prefix": "off"} | tomllib.loads(spec.turn_on)))
        assert [one.name for one in specs if one.is_on(settings)] == [spec.name]


def test_webhooks_show_their_last_delivery(page: Page, tab: Tab, admin: FakeAdmin) -> None:
    admin.on = {"webhooks"}
    row: dict[str, Any] = {"events": [], "event": "upstream_down", "time": time.time() - 300, "error": ""}
    admin.webhooks = [row | {"name": "chat"}, row | {"name": "mail", "event": None, "time": None}]
    tab.open(admin.login())
    expect(page.locator("#webhooks-card")).to_contain_text(
        "2 webhooksThe last event, upstream_down, was delivered 5 min"
    )
    admin.webhooks[0]["error"] = "status 503"
    poll_now(page)
    expect(page.locator("#webhooks-card")).to_contain_text("1 of 2 failedchat: status 503")
    page.click("#webhooks-card a")
    expect(page.locator("#webhooks-table tbody tr").nth(0)).to_contain_text("chatallupstream_downstatus 5035 min")
    expect(page.locator("#webhooks-table tbody tr").nth(1)).to_contain_text("none yet")
