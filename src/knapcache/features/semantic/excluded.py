"""Texts that are never answered by similarity, because their meaning depends on more than their words.

deixis     refers to something outside the text: "this", "the text below", "as above"
date       relative to the time of asking: "tomorrow", "next week", "on Friday"
code       contains a code block
language   is not in English: the score and the vetoes were not measured there
"""

from __future__ import annotations

import re

from knapcache.features.semantic.vocabulary import AMBIGUOUS_WORDS, COMMON_WORDS, FOREIGN_WORDS

_TIMES = (
    r"(?:seconds?|minutes?|hours?|days?|weeks?|weekends?|months?|quarters?|years?|decades?|morning|afternoon|evening|night"
    r"|noon|time|mon(?:day)?|tue(?:s|sday)?|wed(?:nesday)?|thu(?:rs|rsday)?|fri(?:day)?|sat(?:urday)?|sun(?:day)?"
    r"|january|february|march|april|may|june|july|august|september|october|november|december"
    r"|spring|summer|autumn|fall|winter|christmas|easter|semester|term|season)"
)
_DATE = re.compile(
    rf"\b(?:today|tonight|tomorrow|yesterday|nowadays|now|currently|recently|lately|right away|at the moment"
    rf"|(?:this|these|next|last|past|coming|following|previous|upcoming) (?:few |couple of |\d+ |two |three )?{_TIMES}"
    rf"|the weekend|{_TIMES} (?:ago|from now)|day (?:after|before)"
    rf"|(?:on|by|until|till|since|for|from|to|is|due|after|before) "
    rf"(?:mon|tues|wednes|thurs|fri|satur|sun)day(?! ?\d))\b",
    re.IGNORECASE,
)
_DEIXIS = re.compile(
    r"""\b(?:this|these)\b(?!\s+(?:way|kind|sort|type)\b)
    |\b(?:below|above|attached|aforementioned)\b\s*(?:[.:?!,;]|$)
    |\b(?:the|my|as|see|from|with)\s+(?:above|below|following|attached|foregoing|aforementioned)\b(?!\s+\d)
    |\bhere(?:'s|\s+is|\s+are)\b
    |\b(?:previous|last|earlier|preceding|former)\s+(?:message|answer|question|response|reply|text|paragraph|sentence)\b
    |\byou\s+(?:just\s+)?(?:said|wrote|mentioned|told)\b""",
    re.IGNORECASE | re.VERBOSE,
)
_CODE_LINE = re.compile(
    r"[{};]\s*$|^\s*(?:def|class|import|from|return|if|for|while|#include|<\w+).*[:;>)]\s*$|^\s*\S+ = .+"
)
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
MIN_WORDS = 4
"""Of a shorter text, only foreign words and scripts tell the language."""


def excluded(text: str) -> str:
    """Return why a text is never answered by similarity: "deixis", "date", "code" or "language"; "" if it may be."""
    text = text.replace("’", "'")
    if "```" in text or sum(bool(_CODE_LINE.search(line)) for line in text.splitlines()) > 1:
        return "code"
    if not _is_english(text):
        return "language"
    if _DATE.search(text):
        return "date"
    return "deixis" if _DEIXIS.search(text) else ""


def _is_english(text: str) -> bool:
    """Whether the letters are Latin, and common English words outnumber the common words of other languages."""
    letters = [character for character in text if character.isalpha()]
    if sum(character > "\u024f" for character in letters) * 5 > len(letters):
        return False
    words = [word.lower() for word in _WORD.findall(text)]
    bases = [word.partition("'")[0] for word in words]
    english = sum((base in COMMON_WORDS) - 0.5 * (base in AMBIGUOUS_WORDS) for base in bases)
    foreign = sum(word in FOREIGN_WORDS for word in words)
    return foreign <= english if len(words) < MIN_WORDS else foreign < english
