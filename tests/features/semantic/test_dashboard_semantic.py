"""The semantic tier on the dashboard: state, levels, other error rates, recent matches, feedback."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from knapcache.features.semantic.differences import FEATURES
from knapcache.features.semantic.event import RecentMatches
from knapcache.features.semantic.totals import SemanticTotals
from tests.features.semantic.semantic_events import semantic_event, verdict_event
from tests.support import fake_admin
from tests.support.browser import chromium, open_view, poll_now, visit, wait_for_data
from tests.support.events import event
from tests.support.fake_admin import FakeAdmin
from tests.support.semantic_control import LearnerControl

Shown = Callable[..., Page]
QUESTION = {"question": "How do I reset my <b>pin</b>?", "matched_question": "How do I reset my password?"}


@pytest.fixture(scope="module")
def opened() -> Iterator[tuple[FakeAdmin, Page]]:
    """One page for all tests: each sets the state of the fake API and polls."""
    with chromium() as browser, FakeAdmin() as admin:
        admin.fill(5, days=0.02)
        admin.on, admin.tier = {"semantic"}, LearnerControl()
        with visit(browser, admin.login("/semantic")) as page:
            wait_for_data(page)
            yield admin, page


@pytest.fixture
def shown(opened: tuple[FakeAdmin, Page]) -> Shown:
    """Return a function that shows a tier with the given matches."""
    admin, page = opened

    def show(tier: LearnerControl, *matches: dict[str, Any], content: bool = True) -> Page:
        admin.tier, admin.semantic, admin.matches = tier, SemanticTotals(), RecentMatches()
        admin.show_content = content
        for k, fields in enumerate(matches):
            add(admin, f"m-{k}", fields)
        poll_now(page)
        return page

    return show


def add(admin: FakeAdmin, match_id: str, fields: dict[str, Any]) -> None:
    verdict = fields.get("verdict")
    known = {"match_id": match_id, "scope": "", "features": (0.5,) * len(FEATURES)} | QUESTION
    semantic = semantic_event(**known | {name: value for name, value in fields.items() if name != "verdict"})
    found = event("similar" if semantic.kind == "served" else "miss", time=time.time(), usd=0.25, semantic=semantic)
    admin.semantic.count(found)
    admin.matches.consume([found])
    if verdict:
        judged = verdict_event(match_id=match_id, scope=semantic.scope, kind=semantic.kind, verdict=verdict)
        admin.semantic.count_note(judged)
        admin.matches.consume_verdicts([judged])


def serving() -> LearnerControl:
    tier = LearnerControl()
    tier.add_labels(700)
    return tier


def test_a_tier_in_the_shadow_says_what_is_missing(shown: Shown) -> None:
    tier = LearnerControl()
    tier.add_labels(30, wrong=1, risk=0.01)
    shadow = {"kind": "shadow"}
    page = shown(tier, shadow | {"verdict": "same"}, shadow | {"verdict": "undecided"}, shadow)
    expect(page.locator("#semantic-text")).to_have_text(
        "In the shadow: nothing is served yet, because no level is certified for an error of 1 %. "
        "2 matches were judged, 1 of them wrong."
        "A match is served after 589 more right labels at least."
    )
    levels = page.locator("#semantic-levels tbody tr")
    expect(levels.nth(0).locator("th, td").nth(1)).to_have_text("0")
    expect(levels.nth(1).locator("th, td")).to_have_text(["1.5 %", "30", "1", "0 %", re.compile("%$"), "not certified"])
    expect(page.locator("#semantic-others tbody tr").nth(1)).to_contain_text("not certified, the setting")
    verdicts = page.locator("#semantic-matches li .line")
    expect(verdicts.nth(0)).to_contain_text("not judged")
    expect(verdicts.nth(1)).to_contain_text("undecided, counts as wrong")
    expect(verdicts.nth(2)).to_contain_text("same answer")


def test_a_serving_tier_shows_its_bound_and_what_it_saved(shown: Shown) -> None:
    page = shown(serving(), {}, {}, {"kind": "none", "match_id": ""}, {"kind": "audit", "verdict": "same"})
    text = page.locator("#semantic-text")
    expect(text).to_contain_text("2 of 4 requests without an exact hit were answered by similarity, which saved $0.50.")
    expect(text).to_contain_text(
        "Serving. It is certified that at most 0.84 % of its answers are wrong; 1 % are allowed."
    )
    expect(page.locator("#semantic-levels tr.serves")).to_have_count(1)
    expect(page.locator("#semantic-facts")).to_contain_text("Audits of what is served1, 0 wrong")
    expect(page.locator("#semantic-facts")).to_contain_text("Questions in the index1,234 of 9,999")


def test_differing_words_are_marked_and_text_is_not_markup(shown: Shown) -> None:
    page = shown(serving(), {})
    expect(page.locator("#semantic-matches .pairs p")).to_have_text(list(QUESTION.values()))
    expect(page.locator("#semantic-matches mark")).to_have_text(["<b>pin</b>?", "password?"])


def test_one_click_and_a_confirmation_mark_a_match_as_wrong(shown: Shown) -> None:
    tier = serving()
    page = shown(tier, {})
    button = page.get_by_role("button", name="These are not the same")
    button.click()
    page.locator("#confirm").get_by_role("button", name="Cancel").click()
    assert tier.marked == []
    button.click()
    expect(page.locator("#confirm")).to_contain_text(QUESTION["matched_question"])
    page.locator("#confirm").get_by_role("button", name="Not the same").click()
    expect(page.locator("#semantic-matches .verdict.wrong")).to_have_text("marked as wrong")
    expect(button).to_have_count(0)
    assert tier.marked == ["m-0"]


def test_without_content_the_page_says_how_to_see_questions(shown: Shown) -> None:
    page = shown(serving(), {}, content=False)
    expect(page.locator("#semantic-hint")).to_contain_text("show_content = true")
    assert QUESTION["question"] not in page.inner_text("#semantic")


def test_tenants_are_chosen_and_a_problem_is_shown(shown: Shown) -> None:
    tier = LearnerControl("shop", "support")
    tier.add_labels(700, scope="support")
    tier.failure = "the log cannot be read"
    page = shown(tier, {"scope": "shop", "kind": "shadow"}, {"scope": "support"})
    expect(page.locator("#semantic-text")).to_contain_text("The tier does not work: the log cannot be read.")
    expect(page.locator("#semantic-text")).to_contain_text("In the shadow")
    page.select_option("#semantic-scope", "support")
    expect(page.locator("#semantic-text")).to_contain_text("Serving. It is certified that at most")
    expect(page.locator("#semantic-matches li")).to_have_count(1)


def test_the_panel_fits_a_phone(shown: Shown) -> None:
    draw = random.Random(1)
    long = {"question": "x" * 200, "matched_question": " ".join(f"{draw.random()}" for _ in range(20))}
    page = shown(serving(), long, {"kind": "shadow", "verdict": "different"})
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.locator("#semantic-matches li")).to_have_count(2)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_details_of_a_request_say_what_the_tier_did(
    shown: Shown, opened: tuple[FakeAdmin, Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        fake_admin, "DETAIL", fake_admin.DETAIL | {"stored": False, "semantic": "Never matched: it sets a seed."}
    )
    opened[0].traffic("miss")
    page = shown(serving())
    open_view(page, "requests")
    page.locator("#requests-table tbody tr[data-serial] button").first.click()
    drawer = page.locator("#drawer")
    expect(drawer).to_contain_text("Similar questionsNever matched: it sets a seed.")
    assert "false" not in drawer.inner_text(), "there is no entry to show, so no button"
    page.keyboard.press("Escape")
