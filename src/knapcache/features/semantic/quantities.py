"""Numbers in the words of a question: digits, number words, fractions, multiples, Roman numerals.

    seven, 7, VII after a name       7            a dozen, a couple           12, 2
    twice, double                    2            half, 1/2, ½                0.5
    -5, minus 5                      -5           the eighties, the 1980s     the decade 80

    a fifth of               0.2          one and a half             1.5

A number with a unit (units.py) is a quantity: 5 kg and 5,000 g are the same one. The parts of 120/80 and of 10:05 have
places: they are not 80/120 and 5:10.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from knapcache.features.semantic.units import read_unit
from knapcache.features.semantic.vocabulary import (
    MONTHS,
    MULTIPLICATIVES,
    MULTIPLIERS,
    NUMBER_WORDS,
    NUMBERED_NOUNS,
    ORDINALS,
    SUFFIXES,
)

NUMBER = re.compile(r"-?(?:\d+(?:[.,:/]\d+)*|\.\d+)")
_ROMAN = re.compile(r"(?=[ivx])x{0,3}(?:ix|iv|v?i{0,3})", re.IGNORECASE)
_ROMAN_VALUES = {"i": 1, "v": 5, "x": 10}
_ROMAN_WORDS = frozenset({"i", "v", "x", "vi", "iv", "ix", "xi", "xx", "xxx"})
"""Numerals that are also words. They count after one of NUMBERED_NOUNS, or in capitals after a capitalised word."""
_SCALES = MULTIPLIERS | SUFFIXES
_BEFORE_SECOND = frozenset({"a", "per", "each", "every", "one", "split"})


class Numbers(NamedTuple):
    """The numbers of a text."""

    values: tuple[tuple[float, str], ...]
    """Values in order, each with the word that follows, or its place among the parts of one number. Without 1, which is
    often written as "a"."""
    kinds: tuple[str, ...]
    """Of each value: count, times ("twice"), rank ("second"); "" if it may be two of them, as in "May 2"."""
    written: dict[int, str]
    """The text to compare for each of the places; empty for those after the first of a number."""
    ones: int
    """How often the digit 1, or the numeral I, is written."""
    quantities: tuple[tuple[str, float], ...]
    """Dimension and size of each number that a unit follows."""
    places: frozenset[int]
    """Positions of the words of these values, and of a minus sign."""


NO_NUMBERS = Numbers((), (), {}, 0, (), frozenset())


def may_be_number(word: str) -> bool:
    """Return whether a number may begin with a word."""
    return may_be_plain(word) or _ROMAN.fullmatch(word) is not None


def read_numbers(words: Sequence[str], raw: Sequence[str], places_to_look: Sequence[int]) -> Numbers:
    """Return the numbers of a text.

    raw              the words as they are written
    places_to_look   positions of the words with which a number may begin (`may_be_number`)
    """
    found: list[tuple[float, str]] = []
    quantities: list[tuple[str, float]] = []
    places: set[int] = set()
    kinds: list[str] = []
    texts: dict[int, str] = {}
    ones, after = 0, 0
    for at in places_to_look:
        if at < after:  # a word of the number before
            continue
        values, end, counts_one = _number_at(words, raw, at)
        if not values:
            continue
        after = end
        negative = at > 0 and words[at - 1] in ("minus", "negative") and not (at > 1 and _is_number(words[at - 2]))
        values = [-value for value in values] if negative else values
        if values != [1]:
            places.update(range(at - negative, after))
            texts |= dict.fromkeys(range(at - negative, after), "")
            texts[at] = words[at] if _ZEROS.fullmatch(words[at]) else " ".join(f"{value:g}" for value in values)
            texts[at] += " m" if words[after - 1] == "m" else ""  # 5 m are five million, or five metres
        follower = words[after] if after < len(words) else ""
        unit = read_unit(follower, after_number=True)
        if unit is not None and len(values) == 1:
            quantities.append((unit.dimension, values[0] * unit.factor))
        kind = _kind(words, at, after)
        for place, value in enumerate(values):
            if value == 1 and len(values) == 1:
                ones += counts_one
            else:
                found.append((value, follower if len(values) == 1 else f"part {place}"))
                kinds.append(kind)
    return Numbers(tuple(found), tuple(kinds), texts, ones, tuple(quantities), frozenset(places))


_ZEROS = re.compile(r"\d+\.\d*0")
"""A version may be written so: 3.10 is not 3.1."""


def _kind(words: Sequence[str], at: int, after: int) -> str:
    """Return what the number between two positions tells: count, times or rank; "" if it may be two of them."""
    word, last = words[at], words[after - 1]
    follower, before = words[after] if after < len(words) else "", words[at - 1] if at else ""
    if follower in MONTHS or before in MONTHS or before in NUMBERED_NOUNS or not may_be_plain(word):
        return ""
    if follower == "of" and after + 1 < len(words) and words[after + 1] in MONTHS:
        return ""
    if word in MULTIPLICATIVES or follower == "times":
        return "times"
    is_rank = last in ("st", "nd", "rd", "th") or last in ORDINALS or last.endswith("tieth")
    return "rank" if is_rank and not _is_share(words, at, after) else "count"


def may_be_plain(word: str) -> bool:
    """Return whether a number is written in digits or words. A Roman numeral may be a count or a rank."""
    return (
        word in NUMBER_WORDS or word in MULTIPLIERS or word in ("couple", "pair") or NUMBER.fullmatch(word) is not None
    )


def _is_share(words: Sequence[str], at: int, after: int) -> bool:
    """Whether an ordinal is a fraction: "a fifth of"."""
    return words[at] in ORDINALS and at > 0 and words[at - 1] in ("a", "one") and words[after : after + 1] == ["of"]


def _is_number(word: str) -> bool:
    return word in NUMBER_WORDS or NUMBER.fullmatch(word) is not None


def _number_at(words: Sequence[str], raw: Sequence[str], at: int) -> tuple[list[float], int, bool]:
    """Return the values of the number at a position, the position after it, and whether a 1 is written as such."""
    word = words[at]
    if NUMBER.fullmatch(word):  # not a mail address that begins with a digit
        values, at = digit_values(word), at + 1
        if len(values) == 1 and at < len(words) and words[at] in _SCALES:
            values, at = [values[0] * _SCALES[words[at]]], at + 1
        if at < len(words) and words[at] in ("st", "nd", "rd", "th"):
            at += 1
        return *_with_half(words, values, at), True
    if word == "second" and at > 0 and (words[at - 1] in _BEFORE_SECOND or _is_number(words[at - 1])):
        return [], at, False  # of time
    if word in NUMBER_WORDS:
        value, end = _spelled(words, at)
        value = round(1 / value, 6) if _is_share(words, at, end) else value
        return *_with_half(words, [value], end), False
    if word in ("couple", "pair") and words[at + 1 : at + 2] == ["of"]:
        return [2.0], at + 1, False
    if word in MULTIPLIERS:  # "a hundred"
        return [float(MULTIPLIERS[word])], at + 1, False
    if value := roman_value(words, raw, at):
        return [float(value)], at + 1, True
    return [], at, False


def _with_half(words: Sequence[str], values: list[float], at: int) -> tuple[list[float], int]:
    """Return the values, with the half that follows: "one and a half"."""
    is_mixed = len(values) == 1 and list(words[at : at + 3]) == ["and", "a", "half"]
    return ([values[0] + 0.5], at + 3) if is_mixed else (values, at)


def digit_values(word: str) -> list[float]:
    """Return the values of a number, a time or a date in digits."""
    if re.fullmatch(r"-?\d{1,3}(,\d{3})+(\.\d+)?", word):
        return [float(word.replace(",", ""))]
    if re.fullmatch(r"-?(\d+([.,]\d+)?|\.\d+)", word):
        return [float(word.replace(",", "."))]
    return [float(part) for part in re.split(r"[.,:/]", word.removeprefix("-"))]


def roman_value(words: Sequence[str], raw: Sequence[str], at: int) -> int:
    """Return the value of a Roman numeral that follows a name or a noun that is numbered; 0: it is none."""
    word = words[at]
    if at == 0 or not _ROMAN.fullmatch(word):
        return 0
    before = words[at - 1]
    capitals = raw[at].isupper() and raw[at - 1][:1].isupper() and not raw[at - 1].isupper()
    after_name = capitals and (word != "i" or _ends_name(raw, at))
    if word in _ROMAN_WORDS and not after_name and before not in NUMBERED_NOUNS:
        return 0
    values = [_ROMAN_VALUES[letter] for letter in word]
    return sum(-one if one < following else one for one, following in zip(values, [*values[1:], 0], strict=True))


def is_numeral(raw: str) -> bool:
    """Return whether a word in capitals is a Roman numeral."""
    return raw.isupper() and bool(raw) and _ROMAN.fullmatch(raw) is not None


def _ends_name(raw: Sequence[str], at: int) -> bool:
    """Whether "I" after a capitalised word is a numeral: another capitalised word stands before, or nothing follows."""
    return (at > 1 and raw[at - 2][:1].isupper() and raw[at - 2] != "I") or at + 1 == len(raw)


def _spelled(words: Sequence[str], at: int) -> tuple[float, int]:
    """Return the value of a number in words, and the position after it."""
    total, current, seen = 0.0, 0.0, ""
    while at < len(words):
        word = words[at]
        if word in NUMBER_WORDS:
            value = NUMBER_WORDS[word]
            if seen == "small" or (seen == "tens" and value >= 10):
                break
            current += value
            seen = "tens" if value >= 20 else "small"
        elif word in MULTIPLIERS and seen:
            if word == "hundred":
                current *= 100
            else:
                total, current = total + current * MULTIPLIERS[word], 0.0
            seen = "multiplier"
        elif not (word == "and" and seen == "multiplier" and at + 1 < len(words) and words[at + 1] in NUMBER_WORDS):
            break
        at += 1
    return total + current, at
