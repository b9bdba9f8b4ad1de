"""Reading and comparing of questions without shortcuts: each step for every word, as its definition says.

src/knapcache/features/semantic/ looks words up once, skips what cannot apply and stores little of a reading. Its
results must be equal to these, to the bit. Tables and the parts that have no shortcut are the tier's own.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np

from knapcache.features.semantic import differences, plain_text, quantities, symbols, units, vocabulary, words
from knapcache.features.semantic.differences import WordCounts, contrast_affixes, overlap
from knapcache.features.semantic.score import CENTRE, SCALE, Score
from knapcache.features.semantic.units import read_unit
from knapcache.features.semantic.word_facts import decade_of, stem
from knapcache.features.semantic.words import QuestionWords

MOST_WORDS = r"[a-z]+(?![^\s?,!])              # most words" + "\n    |"
assert MOST_WORDS in words._TOKEN.pattern
TOKEN = re.compile(words._TOKEN.pattern.replace(MOST_WORDS, ""), words._TOKEN.flags)


def read(text: str) -> dict[str, Any]:
    """Return the fields of a reading, and its sets."""
    text = text[: words.MAX_TEXT]
    text = plain_text._FRACTION.sub(plain_text._decimal, plain(text))
    text = plain_text._SPACED.sub(plain_text._joined, plain_text._measures(text))
    cased = 0 < sum(map(str.isupper, text)) <= 0.5 * sum(map(str.isalpha, text))
    found: list[str] = []
    written: list[str] = []
    names, code = set(), set()
    for match in TOKEN.finditer(text):
        raw = match.group()
        word = raw.lower()
        initial = words._initial(text, match.start())
        if cased and words._depends_on_case(raw, written[-1:], initial=initial):
            parts = [units.CASED_UNITS.get(raw, raw)]
        elif not words._WORD_START.match(raw):
            word = words.OPERATORS.get(word, word)
            code.add(word)
            parts = [word]
        elif words._is_code(raw, word, cased):
            word = raw if words._is_option(raw) else word.removesuffix("()").removesuffix("'s")
            code.add(word)
            parts = [word]
        else:
            parts = words._expand(word)
            is_name = cased and raw[0].isupper() and parts[0] != "i" and not initial
            if is_name and parts[0] not in words._NOT_NAMES and not quantities.is_numeral(raw):
                names.add(stem(parts[0]))
        found += parts
        written += [raw] * len(parts)
    quotations = {" ".join(words._tokens(next(filter(None, q.groups())))) for q in words._QUOTED.finditer(text)}
    numbers = quantities.read_numbers(found, written, range(len(found)))
    joined = " ".join(found)
    stems = tuple(stem(word) for word in found if word not in vocabulary.FUNCTION_WORDS)
    sets = by_word(found, numbers.places)
    return sets | {
        "words": tuple(found),
        "stems": stems,
        "stem_set": set(stems),
        "all_stems": set(map(stem, found)),
        "content": content(found, numbers.places),
        "exact": exact(found, numbers.written),
        "symbols": symbols.symbols_of(text, TOKEN, cased=cased),
        "trigrams": {joined[at : at + 3] for at in range(max(1, len(joined) - 2))},
        "kind": next((vocabulary.QUESTION_WORDS[word] for word in found if word in vocabulary.QUESTION_WORDS), ""),
        "numbers": tuple((value, stem(follower)) for value, follower in numbers.values),
        "number_kinds": numbers.kinds,
        "ones": numbers.ones,
        "quantities": numbers.quantities,
        "negations": words._negations(joined),
        "quotations": quotations - {""},
        "code": code,
        "names": names,
    }


def plain(text: str) -> str:
    """Return a text with the characters of the plain form; fractions and letters with points are as they were."""
    kept = text if plain_text._ASCII.fullmatch(text) else None
    if kept is not None:
        return kept
    text = "".join(map(plain_text._character, plain_text._SUPERSCRIPT.sub(plain_text._power, text)))
    text = unicodedata.normalize("NFKC", text.translate(plain_text._SIGNS)).translate(plain_text._SIGNS)
    text = plain_text._MICRO.sub("u", text)
    text = "".join(char for char in text if unicodedata.category(char) not in ("Cf", "Mn", "Me"))
    return plain_text._WORD.sub(lambda word: plain_text._latin(word[0]), text)


def by_word(found: list[str], numbers: frozenset[int]) -> dict[str, Any]:
    """Return what follows from each word in its place."""
    sets: dict[str, set[Any]] = {name: set() for name in ("units", "dates", "roles", "goals", "sides", "weak_sides")}
    dates = sets["dates"]
    for at, word in enumerate(found):
        if (unit := read_unit(word, after_number=at - 1 in numbers)) is not None:
            sets["units"].add(unit.name)
        if word in vocabulary.MONTHS and (word not in vocabulary.AMBIGUOUS_MONTHS or words._names_month(found, at)):
            dates.add(f"month {vocabulary.MONTHS[word]}")
        elif word.removesuffix("s") in vocabulary.WEEKDAYS:
            dates.add(word.removesuffix("s"))
        elif word in vocabulary.RELATIVE_DAYS or word in vocabulary.FEASTS:
            dates.add(word)
        elif (decade := decade_of(word)) is not None:
            dates.add(f"decade {decade}")
        elif word in ("next", "last") and at + 1 < len(found) and (unit := read_unit(found[at + 1])) is not None:
            dates.add(f"{word} {unit.name}")
        for side in vocabulary.ANTONYM_SIDES.get(word, ()):
            sets["weak_sides" if word in vocabulary.WEAK_SIDES else "sides"].add(side)
        near = (follower for follower in found[at + 1 : at + 4] if follower not in vocabulary.FUNCTION_WORDS)
        follower = next(near, "")
        if follower and word in vocabulary.ROLES:
            sets["roles"].add((word, stem(follower)))
        if follower and word in ("to", "into"):
            sets["goals"].add(stem(follower))
    sets["weak_sides"] -= sets["sides"]
    return dict(sets)


def content(found: list[str], numbers: frozenset[int]) -> tuple[str, ...]:
    kept = []
    for at, word in enumerate(found):
        if at in numbers or decade_of(word) is not None:
            continue
        unit = units.read_unit(word, after_number=at - 1 in numbers)
        letter = at > 0 and word in ("a", "i") and found[at - 1] in vocabulary.LETTERED_NOUNS
        if unit is not None and word[-2:] != "ly":
            kept.append(unit.name)
        elif word not in vocabulary.HARMLESS_WORDS or (letter and found[at + 1 : at + 2] != ["the"]):
            base = stem(word)
            kept.append(f"{base}+{word[-2:]}" if word[-2:] in ("ed", "ly") and base != word else base)
    return tuple(kept)


def exact(found: list[str], numbers: dict[int, str]) -> tuple[str, ...]:
    kept = []
    for at, word in enumerate(found):
        unit = units.read_unit(word, after_number=at - 1 in numbers)
        letter = at > 0 and word in ("a", "i") and found[at - 1] in vocabulary.LETTERED_NOUNS
        plural = len(word) > 3 and word.endswith("s") and word[-2:] not in ("ss", "us", "is")
        if at in numbers:
            kept += [numbers[at]] if numbers[at] else []
        elif unit is not None and word[-2:] != "ly":
            kept.append(unit.name)
        elif (decade := decade_of(word)) is not None:
            kept.append(f"{decade}s")
        elif word not in vocabulary.INERT_WORDS or (letter and found[at + 1 : at + 2] != ["the"]):
            kept.append("one" if word == "1" else word.removesuffix("s") if plural else word)
    return tuple(kept)


def contradiction(asked: QuestionWords, stored: QuestionWords) -> str:
    """Return the name of the first veto that no label can lift, or ""."""
    modalities = {differences._modality(asked), differences._modality(stored)}
    exchanged = any(
        one_rest == rest and one_affix != affix
        for one in {*asked.words} - {*stored.words}
        for other in {*stored.words} - {*asked.words}
        for one_rest, one_affix in contrast_affixes(one)
        for rest, affix in contrast_affixes(other)
    )
    opposed = any(
        side not in other.sides | other.weak_sides and side[0] in {axis for axis, _ in other.sides | other.weak_sides}
        for one, other in ((asked, stored), (stored, asked))
        for side in one.sides
    )
    units_differ = asked.units - stored.units and stored.units - asked.units
    checks = {
        "number": differences._numbers_differ(asked, stored),
        "unit": units_differ and not differences._same_quantity(asked, stored),
        "date": asked.dates != stored.dates,
        "negation": asked.negations != stored.negations or opposed or exchanged,
        "modality": len(modalities) == 2 and "" not in modalities,
        "quotation": not (quoted_in(asked, stored) and quoted_in(stored, asked)),
        "code": asked.symbols != stored.symbols or not (code_in(asked, stored) and code_in(stored, asked)),
        "name": not (asked.names <= stored.all_stems and stored.names <= asked.all_stems),
        "order": reordered(asked, stored),
    }
    return next((name for name, found in checks.items() if found), "")


def quoted_in(one: QuestionWords, other: QuestionWords) -> bool:
    return all(f" {quotation} " in f" {' '.join(other.words)} " for quotation in one.quotations)


def code_in(one: QuestionWords, other: QuestionWords) -> bool:
    parts = {part for word in other.words for part in (word, *word.split("."))}
    return all(each in parts or parts.issuperset(each.split(".")) for each in one.code)


def reordered(asked: QuestionWords, stored: QuestionWords) -> bool:
    if len(asked.words) == len(stored.words) and sorted(asked.words) == sorted(stored.words):
        fixed = [[word for word in each.words if word not in vocabulary.MOVABLE] for each in (asked, stored)]
        return fixed[0] != fixed[1]

    def follow(question: QuestionWords, role: str) -> set[str]:
        return {word for each, word in question.roles if each == role}

    for one, other in ((asked, stored), (stored, asked)):
        if follow(one, "from") & other.goals and not follow(one, "from") & follow(other, "from"):
            return True
    for role in vocabulary.ROLES:
        ours, theirs = follow(asked, role), follow(stored, role)
        if ours and theirs and not ours & theirs and ours & {*stored.stems} and theirs & {*asked.stems}:
            return True
    return False


def features(asked: QuestionWords, stored: QuestionWords, cosine: float, counts: WordCounts) -> tuple[float, ...]:
    """Return the measurements of a pair, and the ids of its words."""
    ours, theirs = set(asked.stems), set(stored.stems)
    rare_ours = [rarity(counts, word) for word in sorted(ours - theirs)]
    rare_theirs = [rarity(counts, word) for word in sorted(theirs - ours)]
    one, other = {*asked.content}, {*stored.content}
    ids = [differences.word_id(word) for word in sorted(one ^ other)]
    ids += [-differences.word_id(word) for word in sorted(one & other)]
    exchanged = differences.substituted(asked, stored)
    distance = max(0.0, 1 - cosine)
    return (
        math.sqrt(distance),
        math.log(distance + 0.02),
        overlap(frozenset(ours), frozenset(theirs)),
        overlap(asked.trigrams, stored.trigrams),
        sum(rare_ours),
        sum(rare_theirs),
        min(max(rare_ours, default=0.0), max(rare_theirs, default=0.0)),
        spelling(ours - theirs, theirs - ours),
        float(min(len(ours - theirs), len(theirs - ours))),
        abs(math.log((len(asked.words) + 1) / (len(stored.words) + 1))),
        math.log(min(len(ours), len(theirs)) + 1),
        float(asked.kind != stored.kind),
        float(asked.stems[-1:] != stored.stems[-1:]),
        inversions(asked.stems, stored.stems),
        *ids[: differences.MAX_IDS],
        *([] if exchanged is None else [differences.pair_id(*exchanged)]),
    )


def rarity(counts: WordCounts, word: str) -> float:
    size = counts._questions + 50
    return math.log(size / (min(counts._counts.get(word, 0), counts._questions) + 1)) / math.log(size)


def spelling(ours: set[str], theirs: set[str]) -> float:
    def pairs(word: str) -> frozenset[str]:
        return frozenset(f" {word} "[at : at + 2] for at in range(len(word) + 1))

    best = [max((overlap(pairs(one), pairs(other)) for other in theirs), default=0.0) for one in sorted(ours)]
    return sum(best) / len(best) if best else 1.0


def inversions(ours: Sequence[str], theirs: Sequence[str]) -> float:
    places = {word: at for at, word in enumerate(theirs)}
    order = [places[word] for word in dict.fromkeys(ours) if word in places]
    inverted = sum(order[i] > order[j] for j in range(len(order)) for i in range(j))
    return inverted / (len(order) * (len(order) - 1) / 2) if len(order) > 1 else 0.0


def risk(score: Score, x: Sequence[float]) -> float:
    """Return the score's estimate for a pair with these features."""
    z = np.concatenate(([1.0], (np.asarray(x[: len(CENTRE)], float) - CENTRE) / SCALE))
    linear = np.asarray(float(z @ score._weights) + score._words.shift(*differences.split_ids(x)[:2]))
    return float(1 / (1 + np.exp(-np.clip(linear, -40, 40))))
