"""Reasons for which two questions are never taken for the same, whatever their similarity.

An embedding hardly sees them: "lose 5 kg" and "lose 7 kg", or "should" and "should not", have cosines above .95. A veto
costs a hit; the score (score.py) decides on everything else.
"""

from __future__ import annotations

from knapcache.features.semantic.vocabulary import MOVABLE
from knapcache.features.semantic.words import QuestionWords

VETOES = ("number", "unit", "date", "negation", "quotation", "code", "name", "order")


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
