"""Readings and comparisons are those of the definitions without shortcuts, to the bit."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest

from knapcache.features.semantic.differences import WordCounts, contradiction, features
from knapcache.features.semantic.question import excluded
from knapcache.features.semantic.score import Score
from knapcache.features.semantic.words import QuestionWords, read_words
from tests.features.semantic.test_any_text import texts
from tests.support import ROOT, semantic_reference
from tests.support.perturbed_questions import open_questions

sys.path.insert(0, str(ROOT / "bench"))

import _semantic_questions
from _semantic_dangers import dangerous_pairs


def near_pairs() -> Iterator[tuple[str, str]]:
    """Yield the dangerous pairs, and each question of the templates with some of the same meaning and of others."""
    for pair in dangerous_pairs():
        yield pair.one, pair.other
    given = [question.text for question in _semantic_questions.questions()]
    yield from pairwise(given)
    yield from ((text, random.Random(text).choice(given)) for text in given)


def assert_equal_readings(given: Sequence[str]) -> list[QuestionWords]:
    found = []
    for text in given:
        reading, expected = read_words(text), semantic_reference.read(text)
        assert {name: getattr(reading, name) for name in expected} == expected, text
        found.append(reading)
    return found


def assert_equal_comparisons(pairs: Sequence[tuple[QuestionWords, QuestionWords]]) -> None:
    counts, score, cosine = WordCounts(), Score(), random.Random(1).random
    for asked, stored in pairs:
        counts.add(asked)
        assert contradiction(asked, stored) == semantic_reference.contradiction(asked, stored)
        x = 0.6 + 0.4 * cosine()
        found = features(asked, stored, x, counts)
        assert found == semantic_reference.features(asked, stored, x, counts)
        assert score.risk(found) == semantic_reference.risk(score, found)
        score.add(found, cosine() < found[0])


def test_questions_of_the_benchmarks() -> None:
    found = assert_equal_readings([text for pair in near_pairs() for text in pair])
    assert_equal_comparisons(list(zip(found[::2], found[1::2], strict=True)))


@pytest.mark.parametrize(("count", "seed"), [(400, 5), pytest.param(20_000, 6, marks=pytest.mark.long)])
def test_any_text(count: int, seed: int) -> None:
    assert_equal_comparisons(list(pairwise(assert_equal_readings(texts(count, seed)))))


@pytest.mark.long
def test_questions_of_the_open_data() -> None:
    given = [text for text in open_questions("intents_clinc.jsonl.gz", "text") if not excluded(text)]
    assert_equal_comparisons(list(pairwise(assert_equal_readings(sorted(given)))))
