"""The normal form of an answer: what is left when layout and politeness are removed.

    "Sure! The capital is **Paris**."   →   the capital is paris

Removed: case, white space, sentence punctuation, Markdown of headings, emphasis, lists, links and quotes, polite words
at the beginning ("Sure!") and polite sentences at the end ("Let me know if you need more."). Kept, because they carry
meaning: signs and points in numbers, apostrophes in words, the case of inline code, and code blocks to the character.

All work is linear in the text; `read_answer` is meant for texts of at most MAX_TEXT characters.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

MAX_TEXT = 20_000
"""Characters of an answer that is normalised."""
SPAN = 200
"""Characters of an emphasised or quoted span. A bound on the work for a text of unpaired marks."""

PLAIN = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "…": " ", "—": " ", "–": "-", "−": "-", "\u00a0": " "})
FENCE = re.compile(r"^[ \t]*(?:```|~~~)[^\n]*$", re.MULTILINE)
INLINE_CODE = re.compile(rf"`([^`\n]{{1,{SPAN}}})`")
EMPHASIS = re.compile(rf"(?<![\w*])(\*{{1,3}})(?=[^\s*])([^*\n]{{1,{SPAN}}})(?<=\S)\1(?![\w*])")
LINK = re.compile(rf"!?\[([^\]\n]{{1,{SPAN}}})\]\(([^)\s]{{1,500}})\)")
BLOCK_MARK = re.compile(r"^[ \t]*(?:#{1,6}[ \t]+|>[ \t]?|[-*+•][ \t]+|(?:[-*_][ \t]*){3,}$)", re.MULTILINE)
NUMBERED = re.compile(r"^[ \t]*(\d{1,3})[.)][ \t]+", re.MULTILINE)
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])|\n+")
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
LEADING = "\"'([{"
TRAILING = "\"')]}.,;:?"

OPENERS = re.compile(
    r"(?:(?:sure(?: thing)?|certainly|of course|absolutely|definitely|great question|good question|no problem|"
    r"thanks for asking|thank you for (?:asking|your question)|(?:i'd be |i'm )?(?:happy|glad) to help|"
    r"here(?: you go|'s (?:the|your) answer| is (?:the|your) answer)|answer|hello|hi|hi there)[!.,:]+\s+){1,3}",
    re.IGNORECASE,
)
"""Polite beginnings. Each must end in punctuation: "Of course not." begins with none."""
CARRIER = re.compile(
    r"(?:the (?:correct |final )?answer is|it is|it's|that is|that's)(?: the)?:? +(?=\S)", re.IGNORECASE
)
"""Beginnings of a short answer that add nothing: "It's Paris." """
CLOSER = re.compile(
    r"(?:(?:please )?(?:let me know|feel free to (?:ask|reach out|let me know))\b|"
    r"(?:i )?hope (?:this|that|it) helps?\b|"
    r"(?:is there )?anything else\b|if you (?:have|need|want|would like)\b.{0,80}\b(?:let me know|ask|happy to help)\b|"
    r"i'm happy to help\b|have a (?:great|nice|good) day\b)[^0-9]{0,120}$",
    re.IGNORECASE,
)
"""Polite last sentences. One with a digit is kept: it may be an address or a telephone number."""


class NormalAnswer(NamedTuple):
    """An answer in normal form."""

    sentences: tuple[tuple[str, ...], ...]
    """The words of each sentence that has words."""
    texts: tuple[str, ...]
    """The sentences as text, for the embedding."""
    code: tuple[str, ...]
    """Code blocks, without white space at the ends of lines."""

    @property
    def words(self) -> tuple[str, ...]:
        """All words, in their order."""
        return tuple(word for sentence in self.sentences for word in sentence)


def read_answer(text: str) -> NormalAnswer:
    """Return the normal form of an answer."""
    pieces = FENCE.split(text.replace("\r\n", "\n"))
    code = tuple("\n".join(line.rstrip() for line in piece.splitlines()).strip("\n") for piece in pieces[1::2])
    prose = without_marks(unicodedata.normalize("NFC", "\n".join(pieces[::2])).translate(PLAIN)).strip()
    opener = OPENERS.match(prose)
    if opener is not None and opener.end() < len(prose):
        prose = prose[opener.end() :]
    carrier = CARRIER.match(prose)
    if carrier is not None:
        prose = prose[carrier.end() :]
    texts = [" ".join(sentence.split()) for sentence in SENTENCE_END.split(prose) if sentence and sentence.strip()]
    while len(texts) > 1 and CLOSER.match(texts[-1]):
        texts.pop()
    split = [(words_of(sentence), sentence.replace("`", "")) for sentence in texts]
    kept = [(words, sentence) for words, sentence in split if words]
    return NormalAnswer(tuple(words for words, _ in kept), tuple(sentence for _, sentence in kept), code)


def without_marks(prose: str) -> str:
    """Return a text without its Markdown, except for the marks of inline code."""
    prose = BLOCK_MARK.sub("", prose)
    numbers = NUMBERED.findall(prose)
    if len(numbers) > 1 and list(map(int, numbers)) == list(range(1, len(numbers) + 1)):
        prose = NUMBERED.sub("", prose)  # the numbers of a list; a single number may be the answer
    prose = LINK.sub(lambda link: link[1] if link[1] == link[2] else f"{link[1]} {link[2]}", prose)
    for _ in range(2):  # bold inside italics
        prose = EMPHASIS.sub(r"\2", prose)
    return prose


def words_of(sentence: str) -> tuple[str, ...]:
    """Return the words of a sentence. Those of inline code keep their case."""
    words: list[str] = []
    for k, piece in enumerate(INLINE_CODE.split(sentence)):
        for raw in THOUSANDS.sub("", piece).split():
            word = raw if k % 2 else strip_punctuation(raw).casefold()
            if word:
                words.append(word)
    return tuple(words)


def strip_punctuation(word: str) -> str:
    """Return a word without punctuation around it. An exclamation mark after a digit is a factorial, and stays."""
    word = word.lstrip(LEADING).rstrip(TRAILING)
    stripped = word.rstrip(TRAILING + "!")
    return word if stripped[-1:].isdigit() and stripped != word else stripped
