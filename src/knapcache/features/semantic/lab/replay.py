"""Replay of a question log with the semantic tier's own code: what would be served, and how much of it is wrong.

Requests come in the order of the log. A request that equals a stored one is an exact hit. Otherwise the nearest stored
questions of the same frame are candidates, and the learner chooses one of them, the match. If its level of risk is
certified, the request is served, unless it is drawn for an audit. Every other request is a miss: its question is
stored, and if it had a match, the comparison of the two is a label. So the tier learns from what it could learn live.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from knapcache.errors import CorruptState, InvalidInput
from knapcache.features.semantic.index import FrameIndexes
from knapcache.features.semantic.lab.read import LoggedQuestion
from knapcache.features.semantic.learner import AUDIT_RATE, CANDIDATES, MIN_COSINE, Candidate, Match, SemanticLearner
from knapcache.features.semantic.vetoes import veto
from knapcache.features.semantic.words import read_words

Compare = Callable[[LoggedQuestion, LoggedQuestion], bool]
"""Return whether the answer to the second question, which is stored, would be wrong for the first."""


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


class ServedWrong(NamedTuple):
    """A request that was served with a wrong answer."""

    asked: LoggedQuestion
    stored: LoggedQuestion
    match: Match


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
    served_wrong: list[ServedWrong] = field(default_factory=list)
    learned: dict[str, Any] = field(default_factory=dict)
    """The learner's report at the end."""
    seconds: float = 0.0

    def count(self, *outcomes: ReplayOutcome) -> int:
        return int(np.isin(self.outcomes, outcomes).sum())

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
) -> SemanticReplay:
    """Replay a log.

    vectors   one normalised vector for each question; those of excluded questions are not used
    compare   says whether an answer is wrong; None: it cannot be known, so no match is a label
    audit     share of the requests that could be served which are labelled instead; the learner raises it after a
              wrong label
    """
    if not 0.0 <= audit <= 1.0:
        raise InvalidInput(f"audit must be from 0 to 1, not {audit}")
    learner, draw = SemanticLearner(error), random.Random(seed).random
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
                found.vetoed[veto(read_words(question.text), read_words(near[0].text))] += 1
        elif compare is None:
            outcome = ReplayOutcome.SHADOW
        else:
            other = questions[int.from_bytes(match.key)]
            wrong = found.wrong[number] = compare(question, other)
            serves = learner.serves(match)
            rate = learner.audit_rate if learner.certificate.suspicious else audit
            if serves and draw() >= rate:
                found.outcomes[number] = ReplayOutcome.SERVED
                if wrong:
                    found.served_wrong.append(ServedWrong(question, other, match))
                continue  # the answer came from the other entry: nothing is stored
            outcome = ReplayOutcome.AUDIT if serves else ReplayOutcome.SHADOW
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
