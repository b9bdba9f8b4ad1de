"""Reads a question: its words, and what two wordings of the same question must agree on.

`read_words` is called once per text. Comparisons (differences.py) use only its result, so they read no text.
Case carries information only where a text uses it: "WHAT IS NICE IN NICE" and its lower-case form give the same result.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from knapcache.features.semantic.plain_text import plain_text
from knapcache.features.semantic.quantities import NO_NUMBERS, is_numeral, read_numbers
from knapcache.features.semantic.symbols import symbols_of
from knapcache.features.semantic.units import CASED_UNITS, read_unit
from knapcache.features.semantic.vocabulary import (
    AMBIGUOUS_MONTHS,
    ANTONYM_SIDES,
    BEFORE_MONTH,
    FEASTS,
    FUNCTION_WORDS,
    INERT_WORDS,
    LETTERED_NOUNS,
    MONTHS,
    NEGATING_PHRASES,
    NEGATIONS,
    NO_NEGATIONS,
    NUMBER_WORDS,
    QUESTION_WORDS,
    RELATIVE_DAYS,
    ROLES,
    WEAK_SIDES,
    WEEKDAYS,
)
from knapcache.features.semantic.word_facts import WordFacts, facts_of, stem

MAX_TEXT = 20_000
"""Characters that are read. Answers, which the judge compares, may be longer."""

_TOKEN = re.compile(
    r"""[a-z]+(?![^\s?,!])              # most words
    |(?:https?://|www\.)\S+            # address
    |[\w.+-]+@[\w-]+\.[\w.]+              # mail address
    |(?<![\w-])--?[a-z][\w-]*=?(?=\s|$)   # option of a command
    |[$€£¥₹₽₩₺₪฿₱]|°[cf]\b|%                     # unit signs
    |(?:1\d|20)?\d0s\b                     # decade
    |(?:(?<![\w)])-)?\d+(?:[.,:/]\d+)*|(?<![\w.])\.\d+  # number, time, date
    |c\+\+|[cf]\#(?!\w)|\.net\b
    |[^\W\d_](?:[\w]|['’.](?=\w\w)|['’](?=\w))*(?:\(\))?
    |_\w+(?:\(\))?
    |\^-?\w+|&&|\|\|?|[!=<>]=|->|=>|<<|>>|\+\+?|[=<>]|!(?=\w)  # operators
    |(?<=\s)\*(?=\s)|(?<=\d)\*\*?(?=\d)|(?<=\b[a-z])(?:\*\*?|-|/)(?=[a-z]\b)|(?<=\s)[/-](?=\s\d)""",
    re.VERBOSE | re.IGNORECASE,
)
OPERATORS = {
    "+": "plus", "-": "minus", "*": "times", "/": "divided", "=": "equals", "<": "less", ">": "greater",
    "^2": "squared", "^3": "cubed",
}  # fmt: skip
"""Operators that may be written as words."""
_QUOTED = re.compile(
    r"(?<!\w)'((?:[^'\n]|(?<=\w)'(?=\w)){2,200})'(?!\w)|\"([^\"\n]{1,200})\"|[“„«]([^”“»\n]{1,200})[”“»]|‘([^’\n]{1,200})’"
    r"|`([^`\n]{1,200})`"
)
_NO_NEGATION = re.compile(rf"\b(?:{'|'.join(NO_NEGATIONS)})\b")
_NEGATING = [(re.compile(rf"\b{phrase}\b"), word) for phrase, word in NEGATING_PHRASES]
_PLAIN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_CAMEL = re.compile(r"[a-z][A-Z]")


NONE: frozenset[Any] = frozenset()
T = TypeVar("T")


def _shared(found: set[T]) -> frozenset[T]:
    """Return a frozen set; the same one for all that are empty."""
    return frozenset(found) if found else NONE


class QuestionWords(NamedTuple):
    """What is compared of a question. Words are lower-case.

    Readings of many questions are in memory. They share the words, and what follows from the words in a microsecond is
    not stored: so a reading takes about 1 kB.
    """

    words: tuple[str, ...]
    """In order, with contractions expanded: "what's" is "what", "is"."""
    stems: tuple[str, ...]
    """Stems of the words that are not function words, in order."""
    content: tuple[str, ...]
    """Stems of the words that are not in HARMLESS_WORDS, in order: none of them may differ before a label allows it."""
    exact: tuple[str, ...]
    """All words but INERT_WORDS, in order, as singulars. Numbers and units are written in one way."""
    kind: str
    """Kind of question: how, what, when, where, who, why; "" otherwise."""
    numbers: tuple[tuple[float, str], ...]
    """Values in order, each with the stem that follows. Without 1, which is often written as "a"."""
    number_kinds: tuple[str, ...]
    ones: int
    """How often the digit 1 is written."""
    quantities: tuple[tuple[str, float], ...]
    """Dimension and size of the numbers that a unit follows."""
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
    symbols: tuple[str, ...]
    """Those of symbols.py."""
    names: frozenset[str]
    """Stems of capitalised words inside a sentence. Empty if the text does not use case."""
    roles: frozenset[tuple[str, str]]
    """Words of ROLES with the stem that follows each."""
    goals: frozenset[str]
    """Stems that follow "to" or "into"."""

    @property
    def stem_set(self) -> frozenset[str]:
        return frozenset(self.stems)

    @property
    def all_stems(self) -> frozenset[str]:
        """Stems of all words."""
        return frozenset(map(stem, self.words))

    @property
    def trigrams(self) -> frozenset[str]:
        return trigrams(self.words)


@lru_cache(maxsize=64)
def trigrams(words: tuple[str, ...]) -> frozenset[str]:
    """Return the sequences of three characters of words that are joined with spaces."""
    joined = " ".join(words)
    count = max(1, len(joined) - 2)
    places = _PLACES[:count] if count <= len(_PLACES) else [slice(at, at + 3) for at in range(count)]
    return frozenset(map(joined.__getitem__, places))


_PLACES = [slice(at, at + 3) for at in range(1000)]


def read_words(text: str) -> QuestionWords:
    """Return what is compared of a text."""
    text = plain_text(text[:MAX_TEXT])
    upper = 0 if text.islower() else sum(map(str.isupper, text))
    cased = 0 < upper <= 0.5 * sum(map(str.isalpha, text))
    words: list[str] = []
    written: list[str] = []
    names: set[str] = set()
    code: set[str] = set()
    for match in _TOKEN.finditer(text):
        raw = match.group()
        if raw.isascii() and ((raw.isalpha() and raw.islower()) or raw.isdigit()) and raw not in _CONTRACTIONS:
            words.append(raw)
            written.append(raw)
            continue
        word = raw.lower()
        if cased and _depends_on_case(raw, written[-1:], initial=_initial(text, match.start())):
            parts = [CASED_UNITS.get(raw, raw)]
        elif not _WORD_START.match(raw):
            word = OPERATORS.get(word, word)
            code.add(word)
            parts = [word]
        elif _is_code(raw, word, cased):
            word = raw if _is_option(raw) else word.removesuffix("()").removesuffix("'s")
            code.add(word)
            parts = [word]
        else:
            parts = _expand(word)
            is_name = cased and raw[0].isupper() and parts[0] != "i" and not _initial(text, match.start())
            if is_name and parts[0] not in _NOT_NAMES and not is_numeral(raw):
                names.add(stem(parts[0]))
        words += parts
        written += [raw] * len(parts)
    quotations = {" ".join(_tokens(next(filter(None, found.groups())))) for found in _QUOTED.finditer(text)}
    symbols = symbols_of(text, _TOKEN, cased=cased)
    return _compare_form(words, written, _shared(quotations - {""}), _shared(code), symbols, _shared(names))


_WORD_START = re.compile(r"[\w.$€£¥₹₽₩₺₪฿₱°%]|-+\w")
_ACRONYMS = frozenset({"AM", "HE", "IN", "IT", "ME", "OR", "US", "WHO"})
"""They stay in capitals: in lower case they are other words."""
_NAMES_AND_NOUNS = frozenset({"Chile", "China", "Jordan", "Mercury", "Polish", "Shell", "Target", "Turkey", "Windows"})


def _depends_on_case(raw: str, before: list[str], *, initial: bool) -> bool:
    """Whether a word is another one in lower case, in a text that uses case."""
    is_unit = raw in CASED_UNITS and before != [] and before[0][-1:].isdigit()
    return raw in _ACRONYMS or is_unit or (raw in _NAMES_AND_NOUNS and not initial)


def _is_option(raw: str) -> bool:
    return raw[0] == "-" and raw.lstrip("-")[:1].isalpha()


_NOT_NAMES = MONTHS.keys() | WEEKDAYS | FEASTS | FUNCTION_WORDS | NEGATIONS.keys() | NUMBER_WORDS.keys()


def _initial(text: str, start: int) -> bool:
    """Whether a sentence or a quotation starts at a position."""
    before = text[:start].rstrip()
    return not before or before[-1] in ".!?:;\"'“(«‘-" or "\n" in text[len(before) : start]


def _is_code(raw: str, word: str, cased: bool) -> bool:
    if _PLAIN.fullmatch(raw):  # most words
        return False
    if word in {"c++", "c#", "f#", ".net"} or raw.endswith("()") or "_" in raw or "@" in raw or "//" in raw:
        return True
    if _is_option(raw) or word.startswith("www."):
        return True
    if "." in raw and raw[0].isalpha() and not raw.replace(".", "").isdigit():
        return min(len(part) for part in raw.split(".")) > 1
    if any(character.isdigit() for character in raw[1:]) and raw[0].isalpha():
        return True
    if any(character.isnumeric() and not character.isdecimal() for character in raw):  # "²", "①", "½": no digits
        return True
    return cased and bool(_CAMEL.search(raw)) and "'" not in raw


def _tokens(text: str) -> list[str]:
    found = (match.group().removesuffix("()") for match in _TOKEN.finditer(text.lower()))
    return [word for each in found for word in _expand(OPERATORS.get(each, each))]


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
    words: list[str],
    written: list[str],
    quotations: frozenset[str],
    code: frozenset[str],
    symbols: tuple[str, ...],
    names: frozenset[str],
) -> QuestionWords:
    known = [facts_of(word) for word in words]
    begins = [at for at, each in enumerate(known) if each.may_be_number]
    numbers = read_numbers(words, written, begins) if begins else NO_NUMBERS
    units: set[str] = set()
    dates: set[str] = set()
    roles: set[tuple[str, str]] = set()
    goals: set[str] = set()
    strong: set[tuple[int, int]] = set()
    weak: set[tuple[int, int]] = set()
    for at, each in enumerate(known):
        if not each.is_special:
            continue
        word = each.word
        if (unit := read_unit(word, after_number=at - 1 in numbers.places)) is not None:
            units.add(unit.name)
        if word in MONTHS and (word not in AMBIGUOUS_MONTHS or _names_month(words, at)):
            dates.add(f"month {MONTHS[word]}")
        elif word.removesuffix("s") in WEEKDAYS:
            dates.add(word.removesuffix("s"))
        elif word in RELATIVE_DAYS or word in FEASTS:
            dates.add(word)
        elif each.decade is not None:
            dates.add(f"decade {each.decade}")
        elif word in ("next", "last") and at + 1 < len(words) and (unit := read_unit(words[at + 1])) is not None:
            dates.add(f"{word} {unit.name}")
        for side in ANTONYM_SIDES.get(word, ()):
            (weak if word in WEAK_SIDES else strong).add(side)
        if word in ROLES or word == "to":
            follower = next((follower for follower in known[at + 1 : at + 4] if not follower.is_function), None)
            if follower and word in ROLES:
                roles.add((word, follower.stem))
            if follower and word in ("to", "into"):
                goals.add(follower.stem)
    return QuestionWords(
        words=tuple([each.word for each in known]),
        stems=tuple([each.stem for each in known if not each.is_function]),
        content=_content(known, numbers.places),
        exact=_exact(known, numbers.written),
        kind=next((QUESTION_WORDS[word] for word in words if word in QUESTION_WORDS), ""),
        numbers=tuple((value, stem(follower)) for value, follower in numbers.values),
        number_kinds=numbers.kinds,
        ones=numbers.ones,
        quantities=numbers.quantities,
        units=_shared(units),
        dates=_shared(dates),
        negations=_negations(" ".join(words)) if any(each.may_negate for each in known) else (),
        sides=_shared(strong),
        weak_sides=_shared(weak - strong),
        quotations=quotations,
        code=code,
        symbols=symbols,
        names=names,
        roles=_shared(roles),
        goals=_shared(goals),
    )


def _content(known: list[WordFacts], numbers: frozenset[int]) -> tuple[str, ...]:
    """Return the stems that must not differ before a label allows it. Numbers and decades are compared by value."""
    found = []
    for at, each in enumerate(known):
        if at in numbers:
            continue
        if each.is_special:
            if each.decade is not None:
                continue
            unit = read_unit(each.word, after_number=at - 1 in numbers)
            if unit is not None and not each.word.endswith("ly"):  # "hourly" is not "in an hour"
                found.append(unit.name)
                continue
        if not each.is_harmless or _is_designator(known, at):
            found.append(each.content)
    return tuple(found)


def _exact(known: list[WordFacts], numbers: dict[int, str]) -> tuple[str, ...]:
    """Return all words that may change a question, wherever they stand. numbers: the texts of their places."""
    found: list[str] = []
    for at, each in enumerate(known):
        if at in numbers:
            found += filter(None, [numbers[at]])
            continue
        if each.is_special:
            unit = read_unit(each.word, after_number=at - 1 in numbers)
            if unit is not None and not each.word.endswith("ly"):
                found.append(unit.name)
                continue
            if each.decade is not None:
                found.append(f"{each.decade}s")
                continue
        if each.word not in INERT_WORDS or _is_designator(known, at):
            found.append("one" if each.word == "1" else each.exact)
    return tuple(found)


def _is_designator(known: list[WordFacts], at: int) -> bool:
    """Whether a word is the letter that names one of several: "type a", "vitamin a"."""
    if at == 0 or known[at].word not in ("a", "i") or known[at - 1].word not in LETTERED_NOUNS:
        return False
    return at + 1 == len(known) or known[at + 1].word != "the"


def _negations(joined: str) -> tuple[str, ...]:
    for phrase, word in _NEGATING:
        joined = phrase.sub(word, joined)
    words = _NO_NEGATION.sub("", joined).split(" ")
    found = [NEGATIONS.get(word, word) for word in words if word in NEGATIONS or word == "rid"]
    if words[0] == "no" and len(found) > 1:
        found.remove("not")  # "No, it does not" is one negation
    return tuple(sorted(found))


def _names_month(words: list[str], at: int) -> bool:
    near = words[max(0, at - 1) : at + 2]
    return (at > 0 and words[at - 1] in BEFORE_MONTH) or any(word[0].isdecimal() for word in near)
