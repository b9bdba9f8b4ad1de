"""What stands in for the judge in a replay: the truth of the log, or its answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from knapcache.features.semantic.judge import compare_answers
from knapcache.features.semantic.lab.read import LoggedQuestion

if TYPE_CHECKING:
    from knapcache.features.semantic.embedding import Embedder
    from knapcache.features.semantic.lab.replay import Compare

MAX_CACHED = 20_000
"""Sentences of answers whose vectors are remembered."""


def truth_differs(asked: LoggedQuestion, stored: LoggedQuestion) -> bool:
    """Return whether two questions mean something else by the truth of the log."""
    return asked.truth != stored.truth


class AnswersDiffer:
    """Compares the answers of the log by the steps of the judge that need no model. Undecided counts as wrong."""

    def __init__(self, embedder: Embedder) -> None:
        self.verdicts: Counter[str] = Counter()
        """Comparisons, by verdict and the rung that decided."""

        @lru_cache(maxsize=MAX_CACHED)
        def vector(text: str) -> Any:
            return embedder.embed([text])[0]

        self._vector = vector

    def __call__(self, asked: LoggedQuestion, stored: LoggedQuestion) -> bool:
        if asked.answer is None or stored.answer is None:
            self.verdicts["undecided (no text)"] += 1
            return True
        verdict, rung = compare_answers(stored.answer, asked.answer, self._similarity)
        self.verdicts[f"{verdict} ({rung})"] += 1
        return verdict != "same"

    def _similarity(self, one: str, other: str) -> float:
        return float(self._vector(one) @ self._vector(other))


def comparison_for(questions: Sequence[LoggedQuestion], embedder: Embedder) -> Compare | None:
    """Return how matches of these questions are compared: by truth, else by answers; None if the log has neither."""
    if questions[0].truth is not None:
        return truth_differs
    return AnswersDiffer(embedder) if any(question.answer is not None for question in questions) else None
