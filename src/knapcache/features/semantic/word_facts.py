"""Facts about single words: one lookup for each word of a question."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from knapcache.features.semantic.quantities import may_be_number
from knapcache.features.semantic.units import read_unit
from knapcache.features.semantic.vocabulary import (
    ANTONYM_SIDES,
    DECADES,
    FEASTS,
    FUNCTION_WORDS,
    HARMLESS_WORDS,
    KEEPS_E,
    MONTHS,
    NEGATIONS,
    RELATIVE_DAYS,
    ROLES,
    WEEKDAYS,
)

MAX_WORDS = 20_000
"""Words whose facts are remembered."""
_DECADE = re.compile(r"(\d\d)?(\d0)s")
NEGATING = NEGATIONS.keys() | {
    "rid", "free", "fail", "fails", "failed", "failing", "refuse", "refuses", "refused", "refusing", "stay", "stays",
    "staying", "keep", "keeps", "keeping",
}  # fmt: skip
"""A text without any of these words negates nothing: negations, and first words of phrases that negate."""
_VOWEL = re.compile(r"[aeiouyà-öø-ÿ]")


class WordFacts(NamedTuple):
    """Facts about one word."""

    word: str
    """The word itself: the questions that are in memory share it."""
    stem: str
    content: str
    """The stem, but of another one if the word ends in "ed" or "ly": "bored" is not "boring"."""
    exact: str
    """The word without the ending of a plural."""
    decade: int | None
    is_function: bool
    is_harmless: bool
    may_be_number: bool
    may_negate: bool
    is_special: bool
    """Whether it may be a unit, a date, a side of an antonym, or the beginning of a role."""


@lru_cache(maxsize=MAX_WORDS)
def facts_of(word: str) -> WordFacts:
    """Return what is known of a word, in lower case."""
    weekday = word.removesuffix("s")
    tables = (MONTHS, RELATIVE_DAYS, FEASTS, DECADES, ANTONYM_SIDES, ROLES, ("to", "next", "last"))
    is_date = weekday in WEEKDAYS or decade_of(word) is not None
    is_unit = read_unit(word) is not None or read_unit(word, after_number=True) is not None
    return WordFacts(
        word=word,
        stem=stem(word),
        content=_content(word),
        exact=word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")) else word,
        decade=decade_of(word),
        is_function=word in FUNCTION_WORDS,
        is_harmless=word in HARMLESS_WORDS,
        may_be_number=may_be_number(word),
        may_negate=word in NEGATING,
        is_special=is_unit or is_date or any(word in table for table in tables),
    )


def decade_of(word: str) -> int | None:
    """Return the first year of a decade: "eighties", "80s" and "1980s" are 1980. None: the word is none."""
    if word in DECADES:
        return 1900 + DECADES[word]
    found = _DECADE.fullmatch(word)
    return int((found[1] or "19") + found[2]) if found else None


def _content(word: str) -> str:
    base = stem(word)
    return f"{base}+{word[-2:]}" if word.endswith(("ed", "ly")) and base != word else base


_ONE_SYLLABLE = re.compile(r"[^aeiouy]+[aeiouy][^aeiouywx]e?")


@lru_cache(maxsize=MAX_WORDS)
def stem(word: str) -> str:
    """Return a word without common endings. It serves comparison only, so the result need not be a word."""
    if not _VOWEL.search(word):  # an abbreviation: "https" is not the plural of "http"
        return word
    if len(word) > 4:
        for ending, replacement in (
            ("ies", "y"), ("sses", "ss"), ("ches", "ch"), ("shes", "sh"), ("xes", "x"), ("ing", ""), ("ied", "y"),
            ("ed", ""), ("ly", ""), ("s", ""),
        ):  # fmt: skip
            if word.endswith(ending) and not (ending == "s" and word.endswith(("ss", "us", "is"))):
                base = word[: len(word) - len(ending)] + replacement
                if len(base) < 3:
                    return word
                if ending in ("ing", "ed"):
                    if len(base) > 3 and base[-1] == base[-2] and base[-1] not in "lsz":
                        return base[:-1]
                    if _ONE_SYLLABLE.fullmatch(base) and base[-1] != "e":
                        return base + "e"  # "planing" is of "plane", "planning" of "plan"
                return _without_e(base) if len(base) > 3 else base
        return _without_e(word)
    return word.removesuffix("s") if len(word) > 3 and not word.endswith(("ss", "us", "is")) else word


def _without_e(word: str) -> str:
    return word if word in KEEPS_E or _ONE_SYLLABLE.fullmatch(word) else word.removesuffix("e")
