"""How two questions differ: vetoes, and numbers for the score (score.py).

A veto says that two questions are never taken for the same, whatever their similarity. An embedding hardly sees the
reasons: "lose 5 kg" and "lose 7 kg", or "should" and "should not", have cosines above .95. A veto costs a hit; the
score decides on everything else.

The first len(FEATURES) numbers are measurements. The ids of the words follow: positive for a word that only one of the
two questions has, negative for a word that both have. An id is a hash of WORD_BITS bits.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from functools import lru_cache

from knapcache.errors import CorruptState
from knapcache.features.semantic.vocabulary import MOVABLE
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

WORD_BITS = 20
MAX_IDS = 32
"""Ids that a pair of questions has at most. The words of a longer pair that come first in the alphabet are taken."""

MAX_WORDS = 50_000
"""Different words that are counted. When there are more, counts are halved and words with 0 dropped."""


def veto(asked: QuestionWords, stored: QuestionWords) -> str:
    """Return the name of the first veto against answering one question with the other's answer, or ""."""
    if _numbers_differ(asked, stored):
        return "number"
    if asked.units - stored.units and stored.units - asked.units:
        return "unit"
    if asked.dates != stored.dates:
        return "date"
    if asked.negations != stored.negations or _opposed(asked, stored):
        return "negation"
    if not (_quoted_in(asked, stored) and _quoted_in(stored, asked)):
        return "quotation"
    if not (_code_in(asked, stored) and _code_in(stored, asked)):
        return "code"
    if not (asked.names <= stored.all_stems and stored.names <= asked.all_stems):
        return "name"
    return "order" if _reordered(asked, stored) else ""


def _numbers_differ(asked: QuestionWords, stored: QuestionWords) -> bool:
    ours, theirs = asked.numbers, stored.numbers
    if [value for value, _ in ours] != [value for value, _ in theirs] and sorted(ours) != sorted(theirs):
        return True
    if asked.ones == stored.ones:
        return False
    fewer = asked if asked.ones < stored.ones else stored
    return not {"a", "an", "one", "single", "first"}.intersection(fewer.words)


def _opposed(asked: QuestionWords, stored: QuestionWords) -> bool:
    """Whether one text has a side of an antonym pair that the other lacks, and the other has the opposite side."""
    for one, other in ((asked, stored), (stored, asked)):
        held = other.sides | other.weak_sides
        axes = {axis for axis, _ in held}
        if any(side not in held and side[0] in axes for side in one.sides):
            return True
    return False


def _quoted_in(one: QuestionWords, other: QuestionWords) -> bool:
    text = f" {' '.join(other.words)} "
    return all(f" {quotation} " in text for quotation in one.quotations)


def _code_in(one: QuestionWords, other: QuestionWords) -> bool:
    """Whether the other text has all identifiers. A qualified one may be written as its parts."""
    words = {part for word in other.words for part in (word, *word.split("."))}
    return all(each in words or words.issuperset(each.split(".")) for each in one.code)


def _reordered(asked: QuestionWords, stored: QuestionWords) -> bool:
    """Whether the words are the same in another order, or two words have exchanged their parts."""
    if len(asked.words) == len(stored.words) and sorted(asked.words) == sorted(stored.words):
        fixed = [[word for word in question.words if word not in MOVABLE] for question in (asked, stored)]
        return fixed[0] != fixed[1]
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

    def rarity(self, word: str) -> float:
        """Return between 0 (in every question) and 1 (in none): ln((n + 50)/(count + 1)) / ln(n + 50), n questions."""
        size = self._questions + 50
        return math.log(size / (min(self._counts.get(word, 0), self._questions) + 1)) / math.log(size)

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
    rare_ours = [counts.rarity(word) for word in sorted(ours_only)]
    rare_theirs = [counts.rarity(word) for word in sorted(theirs_only)]
    words = sorted(ours | theirs)[:MAX_IDS]
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
        *[word_id(word) if word not in ours or word not in theirs else -word_id(word) for word in words],
    )


@lru_cache(maxsize=20_000)
def word_id(word: str) -> float:
    """Return the id of a word, between 1 and 2^WORD_BITS. It is the same in every process."""
    return float((zlib.crc32(word.encode(errors="surrogatepass")) & ((1 << WORD_BITS) - 1)) + 1)


def overlap(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the Dice coefficient of two sets: 2·|A ∩ B| / (|A| + |B|), and 1 for two empty sets."""
    total = len(one) + len(other)
    return 2 * len(one & other) / total if total else 1.0


def _spelling(ours: Iterable[str], theirs: frozenset[str]) -> float:
    """Return the mean, over our words, of the best overlap in letter pairs with one of theirs; 1 if there are none."""
    best = [max((overlap(_pairs(word), _pairs(other)) for other in theirs), default=0.0) for word in sorted(ours)]
    return sum(best) / len(best) if best else 1.0


def _pairs(word: str) -> frozenset[str]:
    word = f" {word} "
    return frozenset(word[at : at + 2] for at in range(len(word) - 1))


def _inversions(ours: tuple[str, ...], theirs: tuple[str, ...]) -> float:
    """Return the share of pairs of common words whose order differs."""
    places = {word: at for at, word in enumerate(theirs)}
    order = [places[word] for word in dict.fromkeys(ours) if word in places]
    pairs = len(order) * (len(order) - 1) // 2
    inverted = sum(order[i] > order[j] for j in range(len(order)) for i in range(j))
    return inverted / pairs if pairs else 0.0
