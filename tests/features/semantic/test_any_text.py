"""Texts of characters of every Unicode category: no function that reads questions or answers raises."""

from __future__ import annotations

import random
import sys
import unicodedata
from functools import cache
from itertools import pairwise

import pytest

from knapcache.features.semantic.differences import WordCounts, features, veto
from knapcache.features.semantic.judge import compare_answers, contradict, read_answer, same_order
from knapcache.features.semantic.learner import Candidate, SemanticLearner
from knapcache.features.semantic.question import Question, excluded, read_question
from knapcache.features.semantic.score import Score
from knapcache.features.semantic.words import MAX_TEXT, read_words
from knapcache.keys.parse import ParsedBody
from knapcache.model import Endpoint
from knapcache.wire.answer_text import READERS

PIECES = (
    "how", "do", "I", "Rome", "not", "yes", "one", "two", "hundred", "may", "next", "day", "1", "1,000", "2.5", "6:30",
    "n't", "'s", "'", "-", "--", "=", "://", "https://", "www.", "@", ".", ",", "()", "_", "`", '"', "“", "”", "```",
    "\n", "\r\n", "1. ", "2) ", "**", "[", "](", ")", "c++", "%", "°c", "$", "k", "th", "it is", "Sure!", "9" * 400,
)  # fmt: skip


@cache
def characters() -> dict[str, list[str]]:
    """Return the characters of each category. Of a large one, every hundredth."""
    found: dict[str, list[str]] = {}
    for code in range(sys.maxunicode + 1):
        found.setdefault(unicodedata.category(chr(code)), []).append(chr(code))
    return {name: every if len(every) < 2000 else every[::100] for name, every in found.items()}


def texts(count: int, seed: int) -> list[str]:
    """Return random texts: words of characters of one category or of all, and pieces that the readers look for."""
    draw, by_category = random.Random(seed), characters()
    categories = list(by_category.values())

    def word() -> str:
        if draw.random() < 0.4:
            return draw.choice(PIECES)
        category = draw.choice(categories)
        return "".join(draw.choice(category) for _ in range(draw.randint(1, 3)))

    return ["".join(word() + draw.choice(("", " ")) for _ in range(draw.randint(1, 12))) for _ in range(count)]


@pytest.mark.parametrize(("count", "seed"), [(500, 1), pytest.param(20_000, 2, marks=pytest.mark.long)])
def test_no_text_raises(count: int, seed: int) -> None:
    counts, score, seen = WordCounts(), Score(), set[str]()
    made = texts(count, seed)
    for one, other in pairwise(made):
        asked, stored = read_words(one), read_words(other)
        assert all(asked.words), f"an empty word in {one!r}"
        seen.add(excluded(one))
        veto(asked, stored)
        counts.add(asked)
        x = features(asked, stored, 0.8, counts)
        score.risk(x)
        a, b = read_answer(one), read_answer(other)
        if a.words and b.words:
            contradict(a, b)
            same_order(list(a.words), list(b.words))
        compare_answers(one, other, lambda *_: 0.9)
    assert seen >= {"", "code", "language"}


def test_a_learner_matches_any_text() -> None:
    learner, made = SemanticLearner(), texts(500, 2)
    for one, other in pairwise(made):
        if match := learner.match(one, [Candidate(b"k", other, 0.9), Candidate(b"l", one + " ²", 0.9)]):
            learner.add(match.label(False, "shadow"))
    learner.report()


def test_no_request_with_any_text_raises() -> None:
    found = 0
    for text in texts(500, 3):
        for endpoint, body in (
            (Endpoint.CHAT, {"messages": [{"role": "user", "content": text}]}),
            (Endpoint.MESSAGES, {"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}]}),
            (Endpoint.RESPONSES, {"input": text}),
        ):
            found += isinstance(read_question(endpoint, ParsedBody(body)), Question)
        READERS[Endpoint.CHAT](
            {"choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": text}}]}
        )
    assert found > 100


@pytest.mark.parametrize(
    "text",
    ["n't", "²", "⁶ and ①", "Is 7up@example.com mine?", "https://\ud800", "", " ", "'", "\x00", "7" * 400, "1/2/3:4",
     "a" * (MAX_TEXT * 2)],
)  # fmt: skip
def test_odd_texts_and_those_that_once_raised(text: str) -> None:
    words = read_words(text)
    features(words, words, 1.0, WordCounts())


@pytest.mark.parametrize(("one", "other"), [("①", "②"), ("²", "³"), ("½", "¼"), ("Ⅷ", "Ⅸ"), ("x²", "x³"), ("٣", "٤")])
def test_numbers_that_are_no_decimal_digits_must_agree(one: str, other: str) -> None:
    asked, stored = read_words(f"What is step {one} of the plan?"), read_words(f"What is step {other} of the plan?")
    assert veto(asked, stored) in ("number", "code")
    assert not veto(asked, asked)
