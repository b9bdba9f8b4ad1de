"""Changes a question so that it asks for something else, by rules that share no code with the semantic tier.

A rule returns the changed question, or None where it does not apply. Rules look at words between spaces only.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPELLED = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve", "twenty", "fifty")
VERBS = ("is", "are", "was", "were", "can", "could", "should", "would", "will", "do", "does", "did", "has", "have")
SMALL_WORDS = """
    a about all am an and any are as at be been but by can could did do does for from give had has have he help
    her his how i if in into is it its let like may me might must my need no not of on or our please shall she
    should so some tell than that the their them there they this to us want was we were what when where which
    who why will with would you your"""
OPPOSITES = (
    ("increase", "decrease"), ("increase", "reduce"), ("raise", "lower"), ("enable", "disable"), ("before", "after"),
    ("activate", "deactivate"), ("open", "close"), ("start", "stop"), ("add", "remove"), ("largest", "smallest"),
    ("highest", "lowest"), ("best", "worst"), ("oldest", "newest"), ("cheap", "expensive"), ("cheapest", "fastest"),
    ("buy", "sell"), ("lock", "unlock"), ("install", "uninstall"), ("first", "last"), ("maximum", "minimum"),
    ("good", "bad"), ("high", "low"), ("long", "short"), ("more", "less"), ("most", "least"), ("hot", "cold"),
    ("arrive", "depart"), ("accept", "reject"), ("allow", "forbid"), ("hide", "reveal"), ("upload", "download"),
    ("with", "without"), ("always", "never"), ("safe", "dangerous"), ("possible", "impossible"), ("legal", "illegal"),
)  # fmt: skip
OPPOSITE = {word: other for pair in OPPOSITES for word, other in (pair, pair[::-1])}

Rule = Callable[[str, random.Random], "str | None"]


def other_number(text: str, rng: random.Random) -> str | None:
    """Replace one number, in digits or in words, by another."""
    words = text.split(" ")
    places = [at for at, word in enumerate(words) if re.search(r"\d", word) or word.lower() in SPELLED]
    if not places:
        return None
    at = rng.choice(places)
    if words[at].lower() in SPELLED:
        words[at] = rng.choice([word for word in SPELLED if word != words[at].lower()])
    else:
        digits = re.search(r"\d+", words[at])
        assert digits is not None
        value = int(digits.group())
        other = rng.choice([value + 1, value + 5, value * 10 or 3, value * 2 or 7])
        words[at] = words[at][: digits.start()] + str(other) + words[at][digits.end() :]
    return " ".join(words)


def negated(text: str, rng: random.Random) -> str | None:
    """Remove a negation if there is one; otherwise insert one with the first auxiliary verb."""
    words = text.split(" ")
    for at, word in enumerate(words):
        lower = word.lower()
        if lower in ("not", "never"):
            return " ".join(words[:at] + words[at + 1 :])
        if lower.endswith("n't") and lower[:-3] in VERBS:
            return " ".join([*words[:at], word[:-3], *words[at + 1 :]])
    for at, word in enumerate(words):
        if word.lower() in VERBS:
            short = {"can": "can't", "will": "won't"}.get(word.lower(), word + "n't")
            inserted = rng.choice([[word, "not"], [word, "never"], [short]])
            return " ".join([*words[:at], *inserted, *words[at + 1 :]])
    return None


def swapped(text: str, rng: random.Random) -> str | None:
    """Exchange two words: the names if the text has two, else two words that are not small words."""
    words = text.split(" ")
    bare = [word.strip("?.,!:'\"") for word in words]
    names = [at for at, word in enumerate(bare) if at and word[:1].isupper() and not _small(word)]
    places = names if len(names) > 1 else [at for at, word in enumerate(bare) if not _small(word)]
    places = [at for at in places if bare[at]]
    pairs = [
        (one, other) for one in places for other in places if one < other and bare[one].lower() != bare[other].lower()
    ]
    if not pairs:
        return None
    one, other = rng.choice(pairs)
    words[one], words[other] = (
        words[one].replace(bare[one], bare[other]),
        words[other].replace(bare[other], bare[one]),
    )
    return " ".join(words)


def _small(word: str) -> bool:
    return f" {word.lower()} " in f" {' '.join(SMALL_WORDS.split())} "


def opposite(text: str, rng: random.Random) -> str | None:
    """Replace a word by its opposite."""
    words = text.split(" ")
    places = [at for at, word in enumerate(words) if word.lower() in OPPOSITE]
    if not places:
        return None
    at = rng.choice(places)
    words[at] = OPPOSITE[words[at].lower()]
    return " ".join(words)


RULES: dict[str, Rule] = {"number": other_number, "negation": negated, "swap": swapped, "antonym": opposite}


def open_questions(name: str, field: str, unique: bool = True) -> list[str]:
    """Return the texts of a field of an open data set. Skips the test where the file is absent."""
    path = Path(os.environ.get("KNAPCACHE_TRACES") or ROOT.parent / "shared" / "data") / name
    if not path.exists():
        pytest.skip(f"{path} is absent: KNAPCACHE_TRACES names the folder of the data")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)[field] for line in lines]
    return list(dict.fromkeys(texts)) if unique else texts
