"""Sentences that explain how the semantic tier handled a request, and what it may do."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest

from knapcache.features.semantic import matcher, question
from knapcache.features.semantic.explanation import tier_text
from knapcache.features.semantic.reasons import EXCLUSIONS, may_serve_text
from knapcache.keys import Keyer
from tests.features.semantic.semantic_events import semantic_event, verdict_event
from tests.support.admin_context import AdminHarness
from tests.support.events import event
from tests.support.semantic_control import LearnerControl, learner_feature

STORED = "Where do swordfish live?"


@pytest.mark.features
def test_an_answer_by_similarity_names_the_question_that_was_answered() -> None:
    tier = LearnerControl()
    with contextlib.closing(AdminHarness(features=[learner_feature(tier)], show_content=True)) as harness:
        key, client = harness.request(1), harness.client()
        match = semantic_event(
            matched_key=key, question="How do I get to the market?", matched_question="Which way to the market?"
        )
        harness.events.append(event("similar", key="ab" * 32, semantic=match))
        found = client.get("/admin/v1/requests/2").raise_for_status().json()
        assert (found["why"]["kind"], found["semantic"]) == ("similar", "")
        assert found["why"]["text"] == (
            "No identical request was stored, but one in another wording. The similarity of the questions is 0.930, "
            "and the estimated risk of a wrong answer 0.3 %, which was certified. The match is m-1."
        )
        assert found["words"] == match.question
        nearest = found["why"]["nearest"]
        assert (nearest["key"], nearest["stored"], nearest["words"]) == (key, True, match.matched_question)
        assert nearest["differences"][0]["here"] == match.question
        harness.events.append_note("semantic", verdict_event(kind="served", verdict="different", rung="feedback"))
        again = client.get("/admin/v1/requests/2").json()
        assert again["why"]["text"].endswith("It was marked as wrong since.")
        assert client.get("/admin/v1/requests/1").json()["semantic"] == "", "it was not asked"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"kind": "shadow"}, "A question of similarity 0.930 was stored, with an estimated risk of 0.3 %. It was not"),
        ({"kind": "audit", "verdict": "same"}, "drawn at random for a check. Its answer was the same."),
        ({"kind": "excluded", "reason": "several turns"}, "Never matched: the conversation has several turns."),
        ({"kind": "none", "reason": "veto"}, "differ in a number, a name, a negation or the like"),
        ({"kind": "none"}, "No stored question was near."),
        ({"kind": "refused"}, "the client asked for that"),
        ({"kind": "failed", "reason": "busy"}, "Not looked up: too many questions were waiting."),
    ],
)
def test_a_miss_says_what_the_semantic_tier_did(fields: dict[str, Any], text: str) -> None:
    assert text in tier_text(semantic_event(**fields))


def test_every_exclusion_has_words_of_its_own() -> None:
    sources = "".join(Path(module.__file__ or "").read_text("utf-8") for module in (question, matcher))
    named = re.findall(r'return "([a-zJ][A-Za-z ]*)"', sources) + re.findall(r'"excluded", "([a-z ]+)"', sources)
    assert len(named) > 12
    assert set(named) <= EXCLUSIONS.keys()


def canonical(endpoint: str, text: str, **more: Any) -> list[bytes]:
    body = {"model": "m", "temperature": 0, "max_tokens": 9, "messages": [{"role": "user", "content": text}]} | more
    return [key.canonical for key in Keyer(b"secret" * 6).read(endpoint, body).keys]


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("In which places do swordfish live?", {}, "may be served: only the wording of the question differs"),
        ("Where do swordfish not live?", {}, "because one of them negates, or has an opposite word"),
        ("Where do the swordfish live?", {"max_tokens": 5}, "differ in more than the question"),
        ("Where do swordfish live today?", {}, "never matched: its text has a date that is relative to now"),
        ("Where do the swordfish live?", {"temperature": 0.5}, "never matched: its temperature is above"),
    ],
)
def test_the_tier_says_whether_it_may_serve(text: str, more: dict[str, Any], said: str) -> None:
    (stored,) = canonical("chat/completions", STORED)
    asked = canonical("messages", text, **more) + canonical("chat/completions", text, **more)
    assert said in may_serve_text(asked, stored)


def test_requests_for_different_endpoints_are_not_compared() -> None:
    (stored,) = canonical("chat/completions", STORED)
    assert may_serve_text(canonical("messages", STORED), stored) == "the two requests are for different endpoints."
