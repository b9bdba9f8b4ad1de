"""Whether the tier may give the answer of a stored request to another one, in words."""

from __future__ import annotations

from typing import Any

import pytest

from knapcache.features.semantic import reasons, vetoes
from knapcache.features.semantic.comparison import may_serve_text
from knapcache.keys import Keyer

STORED = "Where do swordfish live?"


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


def test_every_veto_has_words_of_its_own() -> None:
    assert reasons.VETOES.keys() == set(vetoes.VETOES)
