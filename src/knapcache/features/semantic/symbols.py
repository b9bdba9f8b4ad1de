"""Symbols in a question that are no word and no punctuation of a sentence: emoji, operators, brackets, currency signs.

Two questions must have the same ones. Of an ASCII symbol, the characters beside it count too: `a[2:]` is not `a[:2]`.
"""

from __future__ import annotations

import re

_SYMBOL = re.compile(
    r"""[^\w\s.,?!'"():;/=\-–—…`“”„«»‘’\0]    # none of a sentence
    |(?<![\w\0])/|/(?![\w\0])              # no "and/or"
    |(?<=\s)[.?!:;]+(?=\s+[\w\0])          # a mark by itself: "what does ? mean"
    |(?<=[\w\0])--(?![\w\0-])|(?<![\w\0-])--(?=[\w\0])|(?<=\d)!|[:-](?==)  # i--, --i, 5!, :=, -=""",
    re.VERBOSE,
)
_ENDS = ".,?!;:'\""


def symbols_of(text: str, words: re.Pattern[str], *, cased: bool) -> tuple[str, ...]:
    """Return the symbols outside of words, sorted. words: finds a word, which may contain symbols."""
    if not _SYMBOL.search(text):
        return ()
    rest = words.sub(lambda word: word[0] if word[0] == "=" or word[0].isdecimal() else "\0" * len(word[0]), text)
    found, after = [], 0
    for match in _SYMBOL.finditer(rest):
        if not text[match.start()].isascii():
            found.append(match[0])
        elif match.start() >= after:
            start, after = _chunk(text, match.start())
            chunk = text[start:after].strip(_ENDS) or text[start:after]
            found.append(chunk if cased and "\\" in chunk else chunk.lower())
    return tuple(sorted(found))


def _chunk(text: str, at: int) -> tuple[int, int]:
    """Return the bounds of the characters without a space around a position."""
    start = end = at
    while start and not text[start - 1].isspace():
        start -= 1
    while end < len(text) and not text[end].isspace():
        end += 1
    return start, end
