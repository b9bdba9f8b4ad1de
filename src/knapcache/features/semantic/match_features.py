"""Numbers that describe how two questions differ, for the score (score.py).

The first len(FEATURES) numbers are measurements. The ids of the words follow: positive for a word that only one of the
two questions has, negative for a word that both have. An id is a hash of WORD_BITS bits.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from functools import lru_cache

from knapcache.errors import CorruptState
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


class WordCounts:
    """In how many questions each word occurred: a rare word says more about a question than a frequent one."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._questions = 0

    def add(self, words: QuestionWords) -> None:
        """Count the words of a question."""
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
