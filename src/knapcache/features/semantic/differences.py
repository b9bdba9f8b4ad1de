"""How two questions differ: vetoes, and numbers for the score (score.py).

A veto says that two questions are never taken for the same, whatever their similarity. An embedding hardly sees the
reasons: "lose 5 kg" and "lose 7 kg", or "should" and "should not", have cosines above .95. A veto costs a hit; the
score decides on everything else.

The first len(FEATURES) numbers are measurements. The ids of the words follow: positive for a word that only one of the
two questions has, negative for a word that both have. An id is a hash of WORD_BITS bits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b

from knapcache.errors import CorruptState
from knapcache.features.semantic.vocabulary import (
    CONTRAST_PREFIXES,
    CONTRAST_SUFFIXES,
    FUNCTION_WORDS,
    MOVABLE,
    NEGATING_PREFIXES,
    YES_NO_MODALS,
)
from knapcache.features.semantic.word_facts import stem
from knapcache.features.semantic.words import QuestionWords

FEATURES = (
    "distance",
    "near",
    "word overlap",
    "character overlap",
    "rare words asked only",
    "rare words stored only",
    "rarest word unmatched on both sides",
    "spelling of unmatched words",
    "unmatched words",
    "length ratio",
    "length",
    "question word",
    "last word",
    "order of common words",
)

WORD_BITS = 40
PAIR_IDS = 2.0**WORD_BITS
MAX_IDS = 32
"""Ids that a pair of questions has at most. The words of a longer pair that come first in the alphabet are taken."""

MAX_SUBSTITUTED = 3
"""Words of a substitution, both sides together. Questions that differ in more are other wordings."""
MIN_STEM = 3
"""Letters that two words must share beside an opposite prefix or suffix."""

MAX_WORDS = 50_000
"""Different words that are counted. When there are more, counts are halved and words with 0 dropped."""


def veto(asked: QuestionWords, stored: QuestionWords) -> str:
    """Return the first reason against answering one question with the other's answer, or "".

    "word", the last of them, is no contradiction: one word stands where the other question has another one, or function
    words and their order differ. It holds until labels say that the two may be exchanged.
    """
    if reason := contradiction(asked, stored):
        return reason
    return "word" if substituted(asked, stored) and not _same_quantity(asked, stored) else ""


def contradiction(asked: QuestionWords, stored: QuestionWords) -> str:
    """Return the name of the first veto that no label can lift, or ""."""
    if _numbers_differ(asked, stored):
        return "number"
    if asked.units - stored.units and stored.units - asked.units and not _same_quantity(asked, stored):
        return "unit"
    if asked.dates != stored.dates:
        return "date"
    if asked.negations != stored.negations or _opposed(asked, stored) or _contrasted(asked, stored):
        return "negation"
    ours, theirs = _modality(asked), _modality(stored)
    if ours and theirs and ours != theirs:
        return "modality"
    if not (_quoted_in(asked, stored) and _quoted_in(stored, asked)):
        return "quotation"
    if asked.symbols != stored.symbols or not (_code_in(asked, stored) and _code_in(stored, asked)):
        return "code"
    if asked.names != stored.names and not (asked.names <= stored.all_stems and stored.names <= asked.all_stems):
        return "name"
    return "order" if _reordered(asked, stored) else ""


def substituted(asked: QuestionWords, stored: QuestionWords) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return the words that stand in the same place of two questions that are equal otherwise; None: there are none.

    Function words do not count, except those that are not in HARMLESS_WORDS. At most MAX_SUBSTITUTED words differ. If
    the content is the same, all words count, and in any number: "do we owe them" is not "do they owe us". One side may
    then be empty. If one function word is too many, and the others have another order, the content counts as a whole.
    """
    if {*asked.content} == {*stored.content}:
        return None if asked.exact == stored.exact else _between(asked.exact, stored.exact)
    found = _exchanged(asked.content, stored.content)
    if found is not None and len(found[0]) + len(found[1]) <= MAX_SUBSTITUTED:
        return found
    found = _exchanged(asked.words, stored.words)  # "all snakes" and "any snakes": only one of the two needs a label
    if found is not None and len(found[0]) + len(found[1]) <= 2:
        return found
    odd = {*asked.content} ^ {*stored.content}
    if len(odd) == 1 and odd <= FUNCTION_WORDS and _common_order_differs(asked.content, stored.content):
        return _between(asked.content, stored.content)  # "does A sue B" and "did B sue A": not "did" alone
    return None


def _common_order_differs(ours: tuple[str, ...], theirs: tuple[str, ...]) -> bool:
    common = {*ours} & {*theirs}
    return [word for word in ours if word in common] != [word for word in theirs if word in common]


def _exchanged(ours: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return what is between the common ends of two sequences; None: nothing on one side, or a word on both."""
    one, other = _between(ours, theirs)
    return None if not one or not other or {*one} & {*other} else (one, other)


def _between(ours: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what is between the common beginning and the common end of two sequences."""
    shorter, start, end = min(len(ours), len(theirs)), 0, 0
    while start < shorter and ours[start] == theirs[start]:
        start += 1
    while end < shorter - start and ours[-1 - end] == theirs[-1 - end]:
        end += 1
    return ours[start : len(ours) - end], theirs[start : len(theirs) - end]


def _numbers_differ(asked: QuestionWords, stored: QuestionWords) -> bool:
    ours, theirs = asked.numbers, stored.numbers
    if [value for value, _ in ours] != [value for value, _ in theirs]:
        if sorted(ours) != sorted(theirs):
            return not _same_quantity(asked, stored)
    elif _exchange_followers(asked, stored):
        return True
    if _kinds_differ(asked, stored):
        return True
    if asked.ones == stored.ones:
        return False
    fewer = asked if asked.ones < stored.ones else stored
    return not {"a", "an", "one", "single", "first"}.intersection(fewer.words)


def _exchange_followers(asked: QuestionWords, stored: QuestionWords) -> bool:
    """Whether a number counts something else that both texts have: 2 mg in 5 ml, and 2 ml in 5 mg."""
    pairs = zip(asked.numbers, stored.numbers, strict=True)
    followers = [(ours, theirs) for (_, ours), (_, theirs) in pairs if ours != theirs and ours and theirs]
    return any(ours in stored.stems and theirs in asked.stems for ours, theirs in followers)


def _kinds_differ(asked: QuestionWords, stored: QuestionWords) -> bool:
    """Whether one has "two" or "twice" and the other "second"."""
    ours, theirs = (sorted(zip(each.numbers, each.number_kinds, strict=True)) for each in (asked, stored))
    return any(kind != other and kind and other for (_, kind), (_, other) in zip(ours, theirs, strict=False))


def _same_quantity(asked: QuestionWords, stored: QuestionWords) -> bool:
    """Whether each text has one number and one unit, and both are the same quantity: 5 kg and 5,000 g.

    A text with two units asks for a conversion.
    """
    if len(asked.quantities) != 1 or len(stored.quantities) != 1:
        return False
    if max(len(asked.numbers), len(stored.numbers), len(asked.units), len(stored.units)) > 1:
        return False
    (ours, size), (theirs, other_size) = asked.quantities[0], stored.quantities[0]
    return ours == theirs and math.isclose(size, other_size, rel_tol=1e-6)


def _modality(question: QuestionWords) -> str:
    """Return what a question asks for that starts with a verb: duty, permission, future or past; "" otherwise."""
    return YES_NO_MODALS.get(question.words[0], "") if question.words else ""


def _contrasted(asked: QuestionWords, stored: QuestionWords) -> bool:
    """Whether one has a word that begins or ends in the opposite way: mutable and immutable, employer and employee."""
    ours, theirs = {*asked.words} - {*stored.words}, {*stored.words} - {*asked.words}
    if not ours or not theirs:
        return False
    affixes: dict[str, set[str]] = {}
    for rest, affix in itertools.chain.from_iterable(map(contrast_affixes, ours)):
        affixes.setdefault(rest, set()).add(affix)
    others = itertools.chain.from_iterable(map(contrast_affixes, theirs))
    return any(rest in affixes and affixes[rest] - {affix} for rest, affix in others)


_PREFIXES = (*NEGATING_PREFIXES, *itertools.chain.from_iterable(CONTRAST_PREFIXES))


@lru_cache(maxsize=20_000)
def contrast_affixes(word: str) -> tuple[tuple[str, str], ...]:
    """Return the affixes of a word that have opposites, each with the group of opposites and the rest of the word.

    Two words are in contrast if they have the same rest in the same group and another affix. The empty prefix is in
    contrast with one that negates.
    """
    base = stem(word)
    found = [(f"not {base}", "")] if len(base) >= MIN_STEM else []
    if base.startswith(_PREFIXES):
        found += [(f"not {rest}", affix) for affix in NEGATING_PREFIXES if (rest := _rest(base, affix))]
        for number, group in enumerate(CONTRAST_PREFIXES):
            found += [(f"{number} {rest}", affix) for affix in group if (rest := _rest(base, affix))]
    for number, group in enumerate(CONTRAST_SUFFIXES):
        if word.endswith(group):
            ends = (affix for affix in group if word.endswith(affix) and len(word) >= len(affix) + MIN_STEM)
            found += [(f"-{number} {word.removesuffix(affix)}", affix) for affix in ends]
    return tuple(found)


def _rest(word: str, prefix: str) -> str:
    """Return a word without a prefix; empty if it has another beginning, or too little is left."""
    return word.removeprefix(prefix) if word.startswith(prefix) and len(word) >= len(prefix) + MIN_STEM else ""


def _opposed(asked: QuestionWords, stored: QuestionWords) -> bool:
    """Whether one text has a side of an antonym pair that the other lacks, and the other has the opposite side."""
    for one, other in ((asked, stored), (stored, asked)):
        if not one.sides:
            continue
        held = other.sides | other.weak_sides
        axes = {axis for axis, _ in held}
        if any(side not in held and side[0] in axes for side in one.sides):
            return True
    return False


def _quoted_in(one: QuestionWords, other: QuestionWords) -> bool:
    if not one.quotations:
        return True
    text = f" {' '.join(other.words)} "
    return all(f" {quotation} " in text for quotation in one.quotations)


def _code_in(one: QuestionWords, other: QuestionWords) -> bool:
    """Whether the other text has all identifiers. A qualified one may be written as its parts."""
    if not one.code:
        return True
    words = {part for word in other.words for part in (word, *word.split("."))}
    return all(each in words or words.issuperset(each.split(".")) for each in one.code)


def _reordered(asked: QuestionWords, stored: QuestionWords) -> bool:
    """Whether the words are the same in another order, or two words have exchanged their parts."""
    if len(asked.words) == len(stored.words) and sorted(asked.words) == sorted(stored.words):
        fixed = [[word for word in question.words if word not in MOVABLE] for question in (asked, stored)]
        return fixed[0] != fixed[1]
    if not (asked.roles and (stored.roles or stored.goals)) and not (stored.roles and asked.goals):
        return False
    for one, other in ((asked, stored), (stored, asked)):
        origins = {word for role, word in one.roles if role == "from"}
        if origins & other.goals and not origins & {word for role, word in other.roles if role == "from"}:
            return True  # to Rome, from Rome
    for role in {role for role, _ in asked.roles}:
        ours, theirs = ({word for each, word in question.roles if each == role} for question in (asked, stored))
        if theirs and not ours & theirs and ours & stored.stem_set and theirs & asked.stem_set:
            return True
    return False


class WordCounts:
    """In how many questions each word occurred: a rare word says more about a question than a frequent one."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._questions = 0

    def add(self, words: QuestionWords) -> None:
        self._questions += 1
        counts = self._counts
        for word in words.stem_set:
            counts[word] = counts.get(word, 0) + 1
        if len(counts) > MAX_WORDS:
            self._questions //= 2
            self._counts = {word: count // 2 for word, count in counts.items() if count > 1}

    def rarities(self, words: Iterable[str]) -> list[float]:
        """Return between 0 (in every question) and 1 (in none): ln((n + 50)/(count + 1)) / ln(n + 50), n questions."""
        questions, count_of = self._questions, self._counts.get
        size, most = questions + 50, math.log(questions + 50)
        return [math.log(size / (min(count_of(word, 0), questions) + 1)) / most for word in words]

    def check(self) -> None:
        """Raise CorruptState if the counts are out of bounds."""
        if len(self._counts) > MAX_WORDS or min(self._counts.values(), default=1) < 1:
            raise CorruptState(
                f"{len(self._counts)} word counts, of which at most {MAX_WORDS} are allowed, all above 0"
            )


def features(asked: QuestionWords, stored: QuestionWords, cosine: float, counts: WordCounts) -> tuple[float, ...]:
    """Return the numbers named in FEATURES for a pair of questions, and then the ids of their words."""
    ours, theirs = asked.stem_set, stored.stem_set
    ours_only, theirs_only = ours - theirs, theirs - ours
    rare_ours, rare_theirs = counts.rarities(sorted(ours_only)), counts.rarities(sorted(theirs_only))
    one, other = {*asked.content}, {*stored.content}
    ids = [word_id(word) for word in sorted(one ^ other)] + [-word_id(word) for word in sorted(one & other)]
    exchanged = substituted(asked, stored)
    distance = max(0.0, 1 - cosine)
    return (
        math.sqrt(distance),
        math.log(distance + 0.02),
        overlap(ours, theirs),
        overlap(asked.trigrams, stored.trigrams),
        sum(rare_ours),
        sum(rare_theirs),
        min(max(rare_ours, default=0.0), max(rare_theirs, default=0.0)),
        _spelling(ours_only, theirs_only),
        float(min(len(ours_only), len(theirs_only))),
        abs(math.log((len(asked.words) + 1) / (len(stored.words) + 1))),
        math.log(min(len(ours), len(theirs)) + 1),
        float(asked.kind != stored.kind),
        float(asked.stems[-1:] != stored.stems[-1:]),
        _inversions(asked.stems, stored.stems),
        *ids[:MAX_IDS],
        *([] if exchanged is None else [pair_id(*exchanged)]),
    )


@lru_cache(maxsize=20_000)
def word_id(word: str) -> float:
    """Return the id of a word, between 1 and 2^WORD_BITS. It is the same in every process."""
    digest = blake2b(word.encode(errors="surrogatepass"), digest_size=WORD_BITS // 8).digest()
    return float(int.from_bytes(digest) + 1)


def pair_id(one: Sequence[str], other: Sequence[str]) -> float:
    """Return the id of a substitution, above those of words. Which question has which words does not matter."""
    return word_id("|".join(sorted((" ".join(one), " ".join(other))))) + PAIR_IDS


def split_ids(x: Sequence[float]) -> tuple[list[float], list[float], float | None]:
    """Return the ids after the measurements: of unmatched words, of shared words, and of a substitution or None."""
    ids = x[len(FEATURES) :]
    pair = next((each for each in ids if each > PAIR_IDS), None)
    return [each for each in ids if 0 < each <= PAIR_IDS], [each for each in ids if each < 0], pair


def overlap(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the Dice coefficient of two sets: 2·|A ∩ B| / (|A| + |B|), and 1 for two empty sets."""
    total = len(one) + len(other)
    return 2 * len(one & other) / total if total else 1.0


def _spelling(ours: Iterable[str], theirs: frozenset[str]) -> float:
    """Return the mean, over our words, of the best overlap in letter pairs with one of theirs; 1 if there are none."""
    others = [_pairs(word) for word in theirs]
    best = [max([overlap(_pairs(word), other) for other in others], default=0.0) for word in sorted(ours)]
    return sum(best) / len(best) if best else 1.0


@lru_cache(maxsize=1000)
def _pairs(word: str) -> frozenset[str]:
    word = f" {word} "
    return frozenset(word[at : at + 2] for at in range(len(word) - 1))


def _inversions(ours: tuple[str, ...], theirs: tuple[str, ...]) -> float:
    """Return the share of pairs of common words whose order differs."""
    places = {word: at for at, word in enumerate(theirs)}
    order = [places[word] for word in dict.fromkeys(ours) if word in places]
    if order == sorted(order):
        return 0.0
    pairs = len(order) * (len(order) - 1) // 2
    inverted = sum(order[i] > order[j] for j in range(len(order)) for i in range(j))
    return inverted / pairs
