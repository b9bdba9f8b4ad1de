"""No pair of questions that differ in meaning is served before a label has judged its difference.

Each line of unlabelled_pairs.tsv is a kind and two questions with different answers. Many differ in function words,
their order, symbols or numbers alone.
"""

from __future__ import annotations

import pytest

from knapcache.features.semantic.differences import WordCounts, contradiction, features, split_ids
from knapcache.features.semantic.harmless import HarmlessDifferences
from knapcache.features.semantic.question import excluded
from knapcache.features.semantic.words import read_words
from tests.support import ROOT

LINES = (ROOT / "tests/features/semantic/unlabelled_pairs.tsv").read_text(encoding="utf-8").splitlines()
SAME = [
    ("How do I bake the bread?", "Hi, how do I bake bread please"),
    ("How do I park a car exactly?", "how do i park the cars"),
    ("Is 5 kg too much?", "is five kilograms too much"),
    ("How long is a 6' snake?", "How long is a 6 feet snake?"),
    ("Is 50° too hot?", "Is 50 degrees too hot?"),
    ("Who painted in the 1980s?", "who painted in the eighties"),
    ("Is the second dose on May 2?", "is the 2nd dose on may 2nd"),
    ("Is 5 MB a large file?", "is 5 mb a large file"),
    ("What is 1/5 of the cake?", "What is a fifth of the cake?"),
]


def allowed_unlabelled(one: str, other: str) -> bool:
    """Return whether a match of two questions could be served before any label."""
    ours, theirs = read_words(one), read_words(other)
    unmatched, _, pair = split_ids(features(ours, theirs, 0.95, WordCounts()))
    return not contradiction(ours, theirs) and HarmlessDifferences().allow(unmatched, pair)


@pytest.mark.parametrize("line", LINES)
def test_a_pair_that_differs_in_meaning_needs_a_label(line: str) -> None:
    _, one, other = line.split("\t")
    assert excluded(one) or excluded(other) or not allowed_unlabelled(one, other)


@pytest.mark.parametrize(("one", "other"), SAME)
def test_a_pair_that_differs_in_nothing_needs_none(one: str, other: str) -> None:
    assert allowed_unlabelled(one, other)
    assert allowed_unlabelled(other, one)


@pytest.mark.parametrize(
    ("veto", "one", "other"),
    [
        ("code", "What does 💀 mean?", "What does 🍆 mean?"),
        ("code", "What does x *= 2 do?", "What does x /= 2 do?"),
        ("code", r"What does \d match?", r"What does \D match?"),
        ("code", "What is a[2:] in Python?", "What is a[:2] in Python?"),
        ("code", "What does i-- do?", "What does i do?"),
        ("number", "Is 120/80 normal?", "Is 80/120 normal?"),
        ("number", "Does the train leave at 10:05?", "Does the train leave at 5:10?"),
        ("number", "Can I take 1 tablet every 2 hours?", "Can I take 2 tablets every 1 hour?"),
        ("number", "Can I take the third tablet?", "Can I take three tablets?"),
        ("number", "Is a double dose ok?", "Is the second dose ok?"),
        ("number", "Is a fifth of the bottle too much?", "Are five of the bottles too much?"),
        ("date", "What was worn in the 1920s?", "What was worn in the 2020s?"),
        ("number", "What happened in 1820?", "What happened in the 1820s?"),
        ("unit", "Is a 5 mW laser safe?", "Is a 5 MW laser safe?"),
        ("unit", "How long is a 6' snake?", "How long is a 6'' snake?"),
        ("unit", "What can 100 ₹ buy?", "What can 100 ₽ buy?"),
    ],
)
def test_what_no_label_can_lift(veto: str, one: str, other: str) -> None:
    assert contradiction(read_words(one), read_words(other)) == veto
    assert contradiction(read_words(other), read_words(one)) == veto
