"""The label of two answers: what is equal without a judge, and what a judge's word means."""

from __future__ import annotations

import pytest

from knapcache.features.swap.judge import LOSS, TIE, WIN, are_equal, read_verdict


@pytest.mark.parametrize(
    ("asked", "cheaper", "equal"),
    [
        ("Yes, it is.", " yes,  it\nIS. ", True),
        ("Yes", "No", False),
        ('{"a": 1, "b": [2]}', '{"b":[2],"a":1}', True),
        ('```json\n{"a": 1}\n```', '{"a":1}', True),
        ("```\n[1, 2]\n```", "[1,2]", True),
        ("```[1, 2]", "[1,2]", False),
        ("[1, 2]", "[2, 1]", False),
        ('{"a": 1}', "[1]", False),
        ('"a"', "a", False),
        ("5", "5.0", True),
        ("$1,234.50", "1234.5 €.", True),
        ("12 %", "12", True),
        ("1e3", "1000", True),
        ("5", "-5", False),
        ("5", "five", False),
        ("1.0000000001", "1", True),
        ("1.00000001", "1", False),
        (f"1{'0' * 79}", f"1{'0' * 79}.0", False),
    ],
)
def test_equal_answers(asked: str, cheaper: str, equal: bool) -> None:
    assert are_equal(asked, cheaper) is are_equal(cheaper, asked) is equal


@pytest.mark.parametrize("word", ["{}", " {}. ", "{}.\n"])
@pytest.mark.parametrize("change", [str.upper, str.lower, str.title])
def test_the_three_words(word: str, change: type[str]) -> None:
    for text, labels in (("first", (LOSS, WIN)), ("second", (WIN, LOSS)), ("tie", (TIE, TIE))):
        said = word.format(change(text))
        assert tuple(read_verdict(said, asked_first=asked_first) for asked_first in (True, False)) == labels


@pytest.mark.parametrize("text", [None, "", "FIRST is better", "neither", "TIE..", "FIRSTSECOND"])
def test_other_words_are_a_loss(text: str | None) -> None:
    assert read_verdict(text, asked_first=True) == read_verdict(text, asked_first=False) == LOSS
