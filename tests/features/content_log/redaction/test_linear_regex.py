"""Patterns that run as an automaton: they cover what `re` matches, in linear time."""

from __future__ import annotations

import re
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from knapcache import InvalidInput
from knapcache.features.content_log.redaction import LinearRegex
from tests.support.timing import check_linear

PATTERNS = (
    r"(a+)+b", r"a{2,3}", r"(?:ab|a)(?:c|bcd)", r"[^\s,]+@b", r"<.*?>", r"(?i)bA", r"\d{2}-\d", r"(?s)a.b",
    r"[a-c\d]+d", r"\D\S\W", r"a|", r"(?:)a*", r"(?P<name>a)b?", r"x{0}b", r"(?a:\w)@",
)  # fmt: skip
REGEXES = {pattern: LinearRegex(pattern) for pattern in PATTERNS}
CONDITIONS = (r"\bab", r"a\b", r"\Bb", r"^a", r"b$", r"\Aa", r"b\Z", r"^a+$", r"\ba\b|^b")
CONDITIONAL = {pattern: LinearRegex(pattern) for pattern in CONDITIONS}


def covered(regex: LinearRegex, text: str) -> set[int]:
    return {place for start, end in regex.spans(text) for place in range(start, end)}


@given(st.sampled_from(PATTERNS), st.text("abcABd19-@<>, \nüÜ", max_size=12))
def test_the_characters_of_all_matches_are_covered(pattern: str, text: str) -> None:
    expected: set[int] = set()
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            if re.fullmatch(pattern, text[start:end]):
                expected |= set(range(start, end))
    assert covered(REGEXES[pattern], text) == expected


@given(st.sampled_from(CONDITIONS), st.text("ab_ \n-", max_size=12))
@example(r"^a+$", "aa\naa b\naaa")
def test_conditions_hold_at_lines_and_words(pattern: str, text: str) -> None:
    expected: set[int] = set()
    for found in re.finditer(pattern, text, re.MULTILINE):  # no pattern has overlapping matches of different length
        expected |= set(range(*found.span()))
    assert covered(CONDITIONAL[pattern], text) == expected


def test_a_replaced_text_keeps_the_rest() -> None:
    assert LinearRegex(r"\bEMP-\d{4,6}\b").replace("EMP-1234, EMP-123 and xEMP-1234 EMP-999999", "[r]") == (
        "[r], EMP-123 and xEMP-1234 [r]"
    )


@pytest.mark.parametrize("pattern", [r"(a+)+b", r"(a|aa)+$b", r"a*a*a*a*a*b", r"(.*)(.*)(.*)x"])
def test_patterns_that_make_re_backtrack_take_linear_time(pattern: str) -> None:
    regex = LinearRegex(pattern)
    assert regex.spans("a" * 4_000) == []
    check_linear(lambda length: partial(regex.spans, "a" * length), 4_000, pattern)


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        (r"(?=a)b", "has lookahead and lookbehind, which cannot be matched in linear time"),
        (r"(?<!a)b", "has lookahead and lookbehind, which cannot be matched in linear time"),
        (r"(a)\1", "has back references, which cannot be matched in linear time"),
        (r"a++", "has possessive quantifiers, which cannot be matched in linear time"),
        (r"(?>a)", "has atomic groups, which cannot be matched in linear time"),
        (r"(a", "is not a regular expression: missing ), unterminated subpattern at position 0"),
        (r"a{1000}", "is too long: with its counted repetitions written out it may have 256 characters"),
        (r"(?:(?:a{9}){9}){9}", "is too long: with its counted repetitions written out it may have 256 characters"),
        ("a" * 1001, "a pattern may have 1000 characters, not 1001"),
    ],
)
def test_other_patterns_are_refused(pattern: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as error:
        LinearRegex(pattern)
    assert str(error.value) == problem


def test_empty_repetitions_end() -> None:
    assert LinearRegex(r"(?:){100000}a").spans("ba") == [(1, 2)]
    assert LinearRegex(r"(?:a*)*b").spans("aab") == [(0, 3)]
