"""Reads a question: its words, and what two wordings of the same question must agree on.

`read_words` is called once per text. Comparisons (differences.py) use only its result, so they read no text.
Case carries information only where a text uses it: "WHAT IS NICE IN NICE" and its lower-case form give the same result.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from knapcache.features.semantic.vocabulary import (
    AMBIGUOUS_MONTHS,
    ANTONYM_SIDES,
    BEFORE_MONTH,
    FEASTS,
    FUNCTION_WORDS,
    MONTHS,
    MULTIPLIERS,
    NEGATIONS,
    NO_NEGATIONS,
    NUMBER_WORDS,
    QUESTION_WORDS,
    RELATIVE_DAYS,
    ROLES,
    SUFFIXES,
    UNITS,
    WEAK_SIDES,
    WEEKDAYS,
)

MAX_TEXT = 20_000
"""Characters that are read. Answers, which the judge compares, may be longer."""

_TOKEN = re.compile(
    r"""(?:https?://|www\.)\S+            # address
    |[\w.+-]+@[\w-]+\.[\w.]+              # mail address
    |(?<![\w-])--?[a-z][\w-]*=?(?=\s|$)   # option of a command
    |[$€£¥]|°[cf]\b|%                     # unit signs
    |\d+(?:[.,:/]\d+)*                    # number, time, date
    |c\+\+|[cf]\#(?!\w)|\.net\b
    |[^\W\d_](?:[\w]|['’.](?=\w\w)|['’](?=\w))*(?:\(\))?
    |_\w+(?:\(\))?""",
    re.VERBOSE | re.IGNORECASE,
)
_QUOTED = re.compile(
    r"(?<!\w)'((?:[^'\n]|(?<=\w)'(?=\w)){2,200})'(?!\w)|\"([^\"\n]{1,200})\"|[“„«]([^”“»\n]{1,200})[”“»]|‘([^’\n]{1,200})’"
    r"|`([^`\n]{1,200})`"
)
_NO_NEGATION = re.compile(rf"\b(?:{'|'.join(NO_NEGATIONS)})\b")
_NUMBER = re.compile(r"\d+(?:[.,:/]\d+)*")
_CAMEL = re.compile(r"[a-z][A-Z]")


class QuestionWords(NamedTuple):
    """What is compared of a question. Words are lower-case."""

    words: tuple[str, ...]
    """In order, with contractions expanded: "what's" is "what", "is"."""
    stems: tuple[str, ...]
    """Stems of the words that are not function words, in order."""
    stem_set: frozenset[str]
    all_stems: frozenset[str]
    """Stems of all words."""
    trigrams: frozenset[str]
    """Sequences of three characters of the words, joined with spaces."""
    kind: str
    """Kind of question: how, what, when, where, who, why; "" otherwise."""
    numbers: tuple[tuple[float, str], ...]
    """Values in order, each with the stem that follows. Without 1, which is often written as "a"."""
    ones: int
    """How often the digit 1 is written."""
    units: frozenset[str]
    dates: frozenset[str]
    negations: tuple[str, ...]
    """Kinds of the negations, sorted."""
    sides: frozenset[tuple[int, int]]
    """Antonyms: the pair's number and the side."""
    weak_sides: frozenset[tuple[int, int]]
    quotations: frozenset[str]
    code: frozenset[str]
    """Identifiers, options, addresses and the like."""
    names: frozenset[str]
    """Stems of capitalised words inside a sentence. Empty if the text does not use case."""
    roles: frozenset[tuple[str, str]]
    """Words of ROLES with the stem that follows each."""


@lru_cache(maxsize=20_000)
def stem(word: str) -> str:
    """Return a word without common endings. It serves comparison only, so the result need not be a word."""
    if len(word) > 4:
        for ending, replacement in (
            ("ies", "y"), ("sses", "ss"), ("ches", "ch"), ("shes", "sh"), ("xes", "x"), ("ing", ""), ("ied", "y"),
            ("ed", ""), ("ly", ""), ("s", ""),
        ):  # fmt: skip
            if word.endswith(ending) and not (ending == "s" and word.endswith(("ss", "us", "is"))):
                base = word[: len(word) - len(ending)] + replacement
                if len(base) < 3:
                    return word
                if ending in ("ing", "ed") and len(base) > 3 and base[-1] == base[-2] and base[-1] not in "lsz":
                    base = base[:-1]
                return base.removesuffix("e") if len(base) > 3 else base
        return word.removesuffix("e")
    return word.removesuffix("s") if len(word) > 3 and not word.endswith(("ss", "us", "is")) else word


def read_words(text: str) -> QuestionWords:
    """Return what is compared of a text."""
    text = text[:MAX_TEXT].replace("’", "'")
    letters = [character for character in text if character.isalpha()]
    upper = sum(character.isupper() for character in letters)
    cased = 0 < upper <= 0.5 * len(letters)
    words: list[str] = []
    names: set[str] = set()
    code: set[str] = set()
    for match in _TOKEN.finditer(text):
        raw = match.group()
        word = raw.lower()
        if _is_code(raw, word, cased):
            word = word.removesuffix("()").removesuffix("'s")
            code.add(word)
            words.append(word)
            continue
        parts = _expand(word)
        if cased and raw[0].isupper() and word not in {"i"} and parts[0] != "i" and not _initial(text, match.start()):
            names.update(stem(part) for part in parts[:1] if part not in _NOT_NAMES)
        words.extend(parts)
    quotations = (" ".join(_tokens(next(filter(None, found.groups())))) for found in _QUOTED.finditer(text))
    return _compare_form(words, frozenset(filter(None, quotations)), frozenset(code), frozenset(names))


_NOT_NAMES = MONTHS.keys() | WEEKDAYS | FEASTS | FUNCTION_WORDS | NEGATIONS.keys() | NUMBER_WORDS.keys()


def _initial(text: str, start: int) -> bool:
    """Whether a sentence or a quotation starts at a position."""
    before = text[:start].rstrip()
    return not before or before[-1] in ".!?:;\"'“(«‘-" or "\n" in text[len(before) : start]


def _is_code(raw: str, word: str, cased: bool) -> bool:
    if word in {"c++", "c#", "f#", ".net"} or raw.endswith("()") or "_" in raw or "@" in raw or "//" in raw:
        return True
    if raw[0] == "-" or word.startswith("www."):
        return True
    if "." in raw and raw[0].isalpha() and not raw.replace(".", "").isdigit():
        return min(len(part) for part in raw.split(".")) > 1
    if any(character.isdigit() for character in raw[1:]) and raw[0].isalpha():
        return True
    if any(character.isnumeric() and not character.isdecimal() for character in raw):  # "²", "①", "½": no digits
        return True
    return cased and bool(_CAMEL.search(raw)) and "'" not in raw


def _tokens(text: str) -> list[str]:
    return [word for match in _TOKEN.finditer(text.lower()) for word in _expand(match.group().removesuffix("()"))]


def _expand(word: str) -> list[str]:
    """Return the words of a contraction, also of one without its apostrophe."""
    if word in _CONTRACTIONS:
        return _CONTRACTIONS[word]
    base, apostrophe, end = word.partition("'")
    if not apostrophe or not base:
        return [word]
    if word.endswith("n't"):
        return [*filter(None, [word[:-3]]), "not"]
    return [base, *_ENDINGS.get(end, [])]


_ENDINGS = {"re": ["are"], "m": ["am"], "ve": ["have"], "ll": ["will"], "d": ["would"]}
_CONTRACTIONS = {
    "cannot": ["can", "not"],
    "whats": ["what"],
    "hows": ["how"],
    "im": ["i", "am"],
    "ive": ["i", "have"],
    "ain't": ["is", "not"],
}
for _short, _verb in {"ca": "can", "wo": "will", "sha": "shall"}.items():
    _CONTRACTIONS |= {f"{_short}n't": [_verb, "not"], f"{_short}nt": [_verb, "not"]}
for _verb in ("do", "does", "did", "is", "are", "was", "were", "has", "have", "could", "should", "would"):
    _CONTRACTIONS[f"{_verb}nt"] = [_verb, "not"]


def _compare_form(
    words: list[str], quotations: frozenset[str], code: frozenset[str], names: frozenset[str]
) -> QuestionWords:
    stems = tuple(stem(word) for word in words if word not in FUNCTION_WORDS)
    numbers, ones = _numbers(words)
    units: set[str] = set()
    dates: set[str] = set()
    roles: set[tuple[str, str]] = set()
    strong: set[tuple[int, int]] = set()
    weak: set[tuple[int, int]] = set()
    for at, word in enumerate(words):
        if word in UNITS:
            units.add(UNITS[word])
        if word in MONTHS and (word not in AMBIGUOUS_MONTHS or _names_month(words, at)):
            dates.add(f"month {MONTHS[word]}")
        elif word.removesuffix("s") in WEEKDAYS:
            dates.add(word.removesuffix("s"))
        elif word in RELATIVE_DAYS or word in FEASTS:
            dates.add(word)
        elif word in ("next", "last") and at + 1 < len(words) and words[at + 1] in UNITS:
            dates.add(f"{word} {UNITS[words[at + 1]]}")
        for side in ANTONYM_SIDES.get(word, ()):
            (weak if word in WEAK_SIDES else strong).add(side)
        if word in ROLES:
            follower = next((follower for follower in words[at + 1 : at + 4] if follower not in FUNCTION_WORDS), "")
            if follower:
                roles.add((word, stem(follower)))
    joined = " ".join(words)
    return QuestionWords(
        words=tuple(words),
        stems=stems,
        stem_set=frozenset(stems),
        all_stems=frozenset(map(stem, words)),
        trigrams=frozenset(joined[at : at + 3] for at in range(max(1, len(joined) - 2))),
        kind=next((QUESTION_WORDS[word] for word in words if word in QUESTION_WORDS), ""),
        numbers=numbers,
        ones=ones,
        units=frozenset(units),
        dates=frozenset(dates),
        negations=_negations(joined),
        sides=frozenset(strong),
        weak_sides=frozenset(weak - strong),
        quotations=quotations,
        code=code,
        names=names,
        roles=frozenset(roles),
    )


def _negations(joined: str) -> tuple[str, ...]:
    words = _NO_NEGATION.sub("", joined).split(" ")
    found = [NEGATIONS[word] for word in words if word in NEGATIONS]
    if words[0] == "no" and len(found) > 1:
        found.remove("not")  # "No, it does not" is one negation
    return tuple(sorted(found))


def _names_month(words: list[str], at: int) -> bool:
    near = words[max(0, at - 1) : at + 2]
    return (at > 0 and words[at - 1] in BEFORE_MONTH) or any(word[0].isdecimal() for word in near)


def _numbers(words: list[str]) -> tuple[tuple[tuple[float, str], ...], int]:
    """Return the numbers of a text with the stem that follows each, and how often the digit 1 is written."""
    found: list[tuple[float, str]] = []
    ones, at = 0, 0
    while at < len(words):
        word = words[at]
        if _NUMBER.fullmatch(word):  # not a mail address that begins with a digit
            at += 1
            values = _digits(word)
            if len(values) == 1 and at < len(words) and words[at] in (MULTIPLIERS | SUFFIXES):
                values = [values[0] * (MULTIPLIERS | SUFFIXES)[words[at]]]
                at += 1
            if at < len(words) and words[at] in ("st", "nd", "rd", "th"):
                at += 1
        elif word in NUMBER_WORDS:
            value, at = _spelled(words, at)
            values = [value]
            if value == 1:
                continue
        else:
            at += 1
            continue
        follower = stem(words[at]) if at < len(words) else ""
        for value in values:
            if value == 1:
                ones += 1
            else:
                found.append((value, follower))
    return tuple(found), ones


def _digits(word: str) -> list[float]:
    """Return the values of a number, a time or a date in digits."""
    if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", word):
        return [float(word.replace(",", ""))]
    if re.fullmatch(r"\d+([.,]\d+)?", word):
        return [float(word.replace(",", "."))]
    return [float(part) for part in re.split(r"[.,:/]", word)]


def _spelled(words: list[str], at: int) -> tuple[float, int]:
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
