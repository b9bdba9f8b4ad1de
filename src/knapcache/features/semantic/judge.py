"""The judge: whether two answers say the same.

    equal       the normal forms (`read_answer`) are equal                                    same
    length      an answer is longer than is compared                                          undecided
    code        the code blocks differ                                                        undecided
    veto        short answers: another number, name or unit, a negation, an opposite          different
    embedding   the embeddings are far apart                                                  different
    embedding   every sentence has a partner in the other answer: cosine >= SAME, no veto,
                and the same content words in the same order                                  same
    open        none of these                                                                 undecided

The steps are tried in this order, and the first that applies decides; its name is the rung. An undecided label counts
as wrong, unless a model is asked (`judging.py`). So the ladder has to be sure when it says "same": each
false "same" adds to the error that the certificate does not see. A false "different" only delays the certificate.

Why the same content words: "turn left" and "turn right" have a cosine of .9, and so have "how much have I used" and
"how much do I have". The cosine does not tell a synonym from an opposite, nor a detail from a condition.

Work: at most 2 · MAX_SENTENCES embeddings, of MAX_WORDS words each.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from knapcache.features.semantic.differences import contradiction
from knapcache.features.semantic.word_facts import stem
from knapcache.features.semantic.words import read_words

Verdict = Literal["same", "different", "undecided"]

MAX_SENTENCES = 12
MAX_WORDS = 40
"""Words of a sentence that is compared: within the embedder's limit of 64 tokens."""
SHORT = 25
"""Words of a short answer: a veto between two of them means that they differ."""
SAME, FAR = 0.85, 0.4
"""Cosines: `same` from here on, `different` below. docs/background/semantic-judge.md has the measurements."""

POLARITY = {"yes": "yes", "yeah": "yes", "yep": "yes", "correct": "yes", "true": "yes", "right": "yes",
            "no": "no", "nope": "no", "incorrect": "no", "false": "no", "wrong": "no"}  # fmt: skip
"""First words of an answer to a yes-or-no question."""
EMPTY_WORDS = frozenset(
    ("a", "an", "the", "is", "are", "be", "been", "being", "it", "its", "it's", "this", "that", "these", "those",
     "there", "there's", "of", "and", "to", "in", "on", "at", "for", "as", "by", "with", "you", "your", "we", "our",
     "do", "does", "have", "has", "so", "then", "also", "please", "which", "would", "will", "can", "could")
)  # fmt: skip
"""Words that a different wording adds or leaves out. Negations among them are vetoes; tense and limits are not here."""


def compare_answers(stored: str, new: str, similarity: Callable[[str, str], float]) -> tuple[Verdict, str]:
    """Return whether two answers say the same, and the rung that decided.

    similarity   cosine of the embeddings of two texts of at most MAX_WORDS words
    """
    if stored.strip() == new.strip():
        return "same", "equal"
    if max(len(stored), len(new)) > MAX_TEXT:
        return "undecided", "length"
    a, b = read_answer(stored), read_answer(new)
    if (a.words, a.code) == (b.words, b.code):
        return "same", "equal"
    if a.code != b.code:
        return "undecided", "code"
    if not a.words or not b.words:
        return "undecided", "open"
    if max(len(a.words), len(b.words)) <= SHORT and contradict(a, b):
        return "different", "veto"
    if max(len(a.sentences), len(b.sentences)) > MAX_SENTENCES:
        return "undecided", "length"
    if any(len(sentence) > MAX_WORDS for sentence in (*a.sentences, *b.sentences)):
        return "undecided", "length"
    cosines = [[similarity(x, y) for y in b.texts] for x in a.texts]
    best = [max(row) for row in cosines] + [max(column) for column in zip(*cosines, strict=True)]
    if sum(best) / len(best) < FAR:
        return "different", "embedding"
    if min(best) >= SAME and all_paired(a, b, cosines):
        return "same", "embedding"
    return "undecided", "open"


def contradict(a: NormalAnswer, b: NormalAnswer) -> bool:
    """Return whether two short answers exclude each other: each has what the other lacks, or only one is negated."""
    polarities = {POLARITY.get(a.words[0], ""), POLARITY.get(b.words[0], "")}
    if polarities == {"yes", "no"}:
        return True
    ours, theirs = read_words(" ".join(a.texts)), read_words(" ".join(b.texts))
    reason = contradiction(ours, theirs)
    if reason == "number":
        return bool(ours.numbers and theirs.numbers)
    if reason == "name":
        return bool(ours.names - theirs.all_stems and theirs.names - ours.all_stems)
    return reason in ("unit", "negation")


def all_paired(a: NormalAnswer, b: NormalAnswer, cosines: Sequence[Sequence[float]]) -> bool:
    """Return whether every sentence of each answer has its nearest sentence of the other as a partner."""
    return all(agree(a, i, b, max(range(len(b.texts)), key=row.__getitem__)) for i, row in enumerate(cosines)) and all(
        agree(a, max(range(len(a.texts)), key=column.__getitem__), b, j)
        for j, column in enumerate(zip(*cosines, strict=True))
    )


def agree(a: NormalAnswer, i: int, b: NormalAnswer, j: int) -> bool:
    """Return whether two near sentences have the same content words in the same order, and no veto."""
    if not same_order(content_words(a.sentences[i]), content_words(b.sentences[j])):
        return False
    return contradiction(read_words(a.texts[i]), read_words(b.texts[j])) in ("", "order")


def content_words(words: Sequence[str]) -> list[str]:
    """Return the stems of the words that carry meaning, in order."""
    return [stem(word) for word in words if word not in EMPTY_WORDS]


def same_order(ours: list[str], theirs: list[str]) -> bool:
    """Return whether the words have the same order, or a clause of two words or more has moved to the other end.

    "Turn left after 5 metres" and "After 5 metres, turn left" say the same. "Anna reports to Brian" cannot become
    "Brian reports to Anna" in this way.
    """
    if ours == theirs:
        return True
    return len(ours) == len(theirs) and any(ours[k:] + ours[:k] == theirs for k in range(2, len(ours) - 1))


# The normal form of an answer.

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
        return tuple(word for sentence in self.sentences for word in sentence)


def read_answer(text: str) -> NormalAnswer:
    """Return the normal form of an answer: what is left when layout and politeness are removed.

        "Sure! The capital is **Paris**."   →   the capital is paris

    Removed: case, white space, sentence punctuation, Markdown of headings, emphasis, lists, links and quotes, polite
    words at the beginning ("Sure!") and polite sentences at the end ("Let me know if you need more."). Kept, because
    they carry meaning: signs and points in numbers, apostrophes in words, the case of inline code, and code blocks to
    the character. All work is linear in the text.
    """
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
