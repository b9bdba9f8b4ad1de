"""Replay of a question log with the semantic tier's own code: what would be served, and how much of it is wrong.

Requests come in the order of the log. A request that equals a stored one is an exact hit. Otherwise the nearest stored
questions of the same frame are candidates, and the learner chooses one of them, the match. If its level of risk is
certified, the request is served, unless it is drawn for an audit. Every other request is a miss: its question is
stored, and if it had a match, the comparison of the two is a label. So the tier learns from what it could learn live.
The truth of the log, or its answers, stand in for the judge (`comparison_for`).
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from knapcache.errors import CorruptState, InvalidInput
from knapcache.features.semantic.audits import AUDIT_RATE
from knapcache.features.semantic.differences import contradiction
from knapcache.features.semantic.embedding import Embedder
from knapcache.features.semantic.index import FrameIndexes
from knapcache.features.semantic.judge import compare_answers
from knapcache.features.semantic.lab.read import LoggedQuestion
from knapcache.features.semantic.learner import CANDIDATES, MIN_COSINE, Candidate, Match, SemanticLearner
from knapcache.features.semantic.question import MAX_TOKENS
from knapcache.features.semantic.words import read_words

Compare = Callable[[LoggedQuestion, LoggedQuestion], bool]
"""Return whether the answer to the second question, which is stored, would be wrong for the first."""
MAX_CACHED = 20_000
"""Sentences of answers whose vectors are remembered."""
BATCH = 32
"""Texts that are embedded together."""


class ReplayOutcome(IntEnum):
    """What became of a request."""

    EXACT = 0
    """The same request is stored."""
    EXCLUDED = 1
    """The request is never matched."""
    NEW = 2
    """No stored question is near, or the near ones are vetoed."""
    SHADOW = 3
    """A match whose level is not certified: a label."""
    AUDIT = 4
    """A match that could be served and was drawn for an audit: a label."""
    SERVED = 5


class LabelledPair(NamedTuple):
    """A request with a match, and whether the answer of the match is wrong for it."""

    asked: LoggedQuestion
    stored: LoggedQuestion
    match: Match
    outcome: ReplayOutcome
    wrong: bool


@dataclass(kw_only=True)
class SemanticReplay:
    """What a replay found."""

    error: float
    """The allowed error."""
    outcomes: npt.NDArray[np.int8]
    """A ReplayOutcome for each request."""
    wrong: npt.NDArray[np.bool_]
    """Whether the matched answer is wrong, for served requests and for labels. Never set if nothing can be compared."""
    compared: bool
    """Whether matches could be compared. If not, there are no labels, and nothing is served."""
    excluded: Counter[str] = field(default_factory=Counter)
    """Requests that are never matched, by reason."""
    vetoed: Counter[str] = field(default_factory=Counter)
    """Requests whose candidates were all vetoed, by the veto of the nearest one."""
    pairs: list[LabelledPair] = field(default_factory=list)
    """All requests with a match that could be compared."""
    learned: dict[str, Any] = field(default_factory=dict)
    """The learner's report at the end."""
    seconds: float = 0.0

    def count(self, *outcomes: ReplayOutcome) -> int:
        return int(np.isin(self.outcomes, outcomes).sum())

    @property
    def served_wrong(self) -> list[LabelledPair]:
        """Requests that were served with a wrong answer."""
        return [pair for pair in self.pairs if pair.wrong and pair.outcome == ReplayOutcome.SERVED]

    @property
    def wrong_served(self) -> int:
        return int(self.wrong[self.outcomes == ReplayOutcome.SERVED].sum())

    def check(self) -> None:
        """Raise CorruptState if the counts contradict each other."""
        if (
            self.count(ReplayOutcome.EXCLUDED) != self.excluded.total()
            or self.wrong_served != len(self.served_wrong)
            or self.vetoed.total() > self.count(ReplayOutcome.NEW)
            or (not self.compared and (self.count(ReplayOutcome.SERVED, ReplayOutcome.AUDIT) or self.wrong.any()))
        ):
            raise CorruptState("the counts of a replay contradict each other")


def replay(
    questions: Sequence[LoggedQuestion],
    vectors: npt.NDArray[np.float32],
    *,
    error: float,
    compare: Compare | None,
    audit: float = AUDIT_RATE,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    learner: SemanticLearner | None = None,
) -> SemanticReplay:
    """Replay a log.

    vectors   one normalised vector for each question; those of excluded questions are not used
    compare   says whether an answer is wrong; None: it cannot be known, so no match is a label
    audit     share of the requests that could be served which are labelled instead, about; the learner raises it
              where more is at stake and after wrong labels
    learner   one of the same error, without labels; None: a new one
    """
    if not 0.0 <= audit <= 1.0:
        raise InvalidInput(f"audit must be from 0 to 1, not {audit}")
    learner, draw = learner or SemanticLearner(error), random.Random(seed).random
    index = FrameIndexes(vectors.shape[1], limit=max(1, len(questions)))
    found = SemanticReplay(
        error=error,
        outcomes=np.zeros(len(questions), dtype=np.int8),
        wrong=np.zeros(len(questions), dtype=np.bool_),
        compared=compare is not None,
    )
    start, stored = time.perf_counter(), set[bytes]()
    for number, question in enumerate(questions):
        if progress and number % 64 == 0:
            progress(number)
        if question.key in stored:
            found.outcomes[number] = ReplayOutcome.EXACT
            continue
        if question.excluded:
            found.outcomes[number] = ReplayOutcome.EXCLUDED
            found.excluded[question.excluded] += 1
            stored.add(question.key)
            continue
        near = candidates(index, questions, question, vectors[number])
        match = learner.match(question.text, near)
        outcome = ReplayOutcome.NEW
        if match is None:
            if near:
                found.vetoed[contradiction(read_words(question.text), read_words(near[0].text))] += 1
        elif compare is None:
            outcome = ReplayOutcome.SHADOW
        else:
            other = questions[int.from_bytes(match.key)]
            wrong = found.wrong[number] = compare(question, other)
            serves = learner.serves(match)
            if serves and not learner.is_audit(match, draw, base=audit):
                learner.count_served(match)
                found.outcomes[number] = ReplayOutcome.SERVED
                found.pairs.append(LabelledPair(question, other, match, ReplayOutcome.SERVED, bool(wrong)))
                continue  # the answer came from the other entry: nothing is stored
            outcome = ReplayOutcome.AUDIT if serves else ReplayOutcome.SHADOW
            found.pairs.append(LabelledPair(question, other, match, outcome, bool(wrong)))
            learner.add(match.label(bool(wrong), "audit" if serves else "shadow", float(number)))
        found.outcomes[number] = outcome
        stored.add(question.key)
        index.add(question.frame, number.to_bytes(8), vectors[number])
    found.learned, found.seconds = learner.report(), time.perf_counter() - start
    if progress:
        progress(len(questions))
    return found


def candidates(
    index: FrameIndexes, questions: Sequence[LoggedQuestion], asked: LoggedQuestion, vector: npt.NDArray[np.float32]
) -> list[Candidate]:
    """Return the nearest stored questions of the same frame, the nearest first."""
    return [
        Candidate(key, questions[int.from_bytes(key)].text, cosine)
        for key, cosine in index.search(asked.frame, vector, CANDIDATES)
        if cosine >= MIN_COSINE
    ]


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


def exclude_long(questions: Sequence[LoggedQuestion], tokens: Callable[[str], int]) -> list[LoggedQuestion]:
    """Return the questions; those of more than MAX_TOKENS are excluded, because the tier does not embed them."""
    count = {question.text: tokens(question.text) for question in questions if not question.excluded}
    return [
        question._replace(excluded="long text")
        if not question.excluded and count[question.text] > MAX_TOKENS
        else question
        for question in questions
    ]


def embed_questions(
    questions: Sequence[LoggedQuestion], embedder: Embedder, progress: Callable[[int, int], None] | None = None
) -> npt.NDArray[np.float32]:
    """Return one vector for each question. Excluded ones have a vector of zeros."""
    texts = list(dict.fromkeys(question.text for question in questions if not question.excluded))
    texts.sort(key=len)  # texts of equal length are embedded in one run
    rows = {text: row for row, text in enumerate(texts, 1)}
    found = np.zeros((len(texts) + 1, embedder.dimensions), dtype=np.float32)
    for start in range(0, len(texts), BATCH):
        batch = texts[start : start + BATCH]
        found[start + 1 : start + 1 + len(batch)] = embedder.embed(batch)
        if progress:
            progress(start + len(batch), len(texts))
    return found[[0 if question.excluded else rows[question.text] for question in questions]]
