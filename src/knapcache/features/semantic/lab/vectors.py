"""Vectors of the questions of a log: each text is embedded once, in batches of texts of similar length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from knapcache.features.semantic.lab.read import LoggedQuestion
from knapcache.features.semantic.question import MAX_TOKENS

if TYPE_CHECKING:
    from knapcache.features.semantic.embedding import Embedder

BATCH = 32
LONG_TEXT = "long text"


def exclude_long(questions: Sequence[LoggedQuestion], tokens: Callable[[str], int]) -> list[LoggedQuestion]:
    """Return the questions; those of more than MAX_TOKENS are excluded, because the tier does not embed them."""
    count = {question.text: tokens(question.text) for question in questions if not question.excluded}
    return [
        question._replace(excluded=LONG_TEXT)
        if not question.excluded and count[question.text] > MAX_TOKENS
        else question
        for question in questions
    ]


def embed_questions(
    questions: Sequence[LoggedQuestion], embedder: Embedder, progress: Callable[[int, int], None] | None = None
) -> npt.NDArray[np.float32]:
    """Return one vector for each question. Excluded ones have a vector of zeros."""
    texts = list(dict.fromkeys(question.text for question in questions if not question.excluded))
    texts.sort(key=len)  # padding a batch to its longest text costs as much as tokens do
    rows = {text: row for row, text in enumerate(texts, 1)}
    found = np.zeros((len(texts) + 1, embedder.dimensions), dtype=np.float32)
    for start, batch in batches(texts):
        found[start + 1 : start + 1 + len(batch)] = embedder.embed(batch)
        if progress:
            progress(start + len(batch), len(texts))
    return found[[0 if question.excluded else rows[question.text] for question in questions]]


def batches(texts: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    for start in range(0, len(texts), BATCH):
        yield start, texts[start : start + BATCH]
