"""Drift drill for bench/semantic.py: the answers of some intents change while the tier serves.

Questions of INTENTS intents come in random order. From a request on, CHANGED of the intents have another answer, so
that their stored answers are wrong. When the tier has stopped, the cause is repaired: by a purge of all stored answers,
or because the upstream gives the former answers again. Truth is the intent and the version of its answer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from knapcache.features.semantic.index import FrameIndexes
from knapcache.features.semantic.learner import CANDIDATES, MIN_COSINE, Candidate, Label, SemanticLearner
from knapcache.features.semantic.question import excluded

INTENTS, CHANGED = 40, 10
SERVED_BEFORE = 500
"""Answers that are served before the drift."""


class Stored(NamedTuple):
    """A stored question."""

    text: str
    answer: tuple[str, int]


class Drill:
    """One run. questions: texts and intents, in the order of the requests."""

    def __init__(
        self,
        questions: Sequence[tuple[str, str]],
        vectors: npt.NDArray[np.float32],
        error: float,
        repair: str,
        seed: int,
    ) -> None:
        self.learner, self.error, self.repair = SemanticLearner(error), error, repair
        self.draw = random.Random(f"{seed} audits").random
        intents = sorted({intent for _, intent in questions})
        self.changed = set(random.Random(f"{seed} changed").sample(intents, CHANGED))
        self.questions, self.vectors = questions, vectors
        self.index = FrameIndexes(vectors.shape[1], limit=len(questions))
        self.stored: dict[bytes, Stored] = {}
        self.version = 0
        self.phase = "learning"
        self.counts: dict[str, int] = {}

    def run(self) -> dict[str, Any]:
        """Return counts by phase: learning, serving, drifted, repaired."""
        for number, (text, intent) in enumerate(self.questions):
            if excluded(text):
                continue
            self._request(number, text, (intent, self.version if intent in self.changed else 0))
            self._next_phase()
            if self.phase == "done":
                break
        count = self.counts.get
        before = [count(f"{phase} served", 0) + count(f"{phase} audit", 0) for phase in ("serving", "drifted")]
        audits = count("serving audit", 0) + count("drifted audit", 0)
        return {
            "repair": self.repair,
            "labels_to_certify": count("learning label", 0),
            "served": count("serving served", 0) + count("drifted served", 0),
            "wrong_before": count("serving wrong", 0),
            "wrong_after_drift": count("drifted wrong", 0),
            "served_after_drift": count("drifted served", 0),
            "audit_share": audits / max(1, sum(before)),
            "stopped": self.phase in ("repaired", "done"),
            "labels_to_recover": count("repaired label", 0) if self.phase == "done" else None,
        }

    def _request(self, number: int, text: str, truth: tuple[str, int]) -> None:
        found = self.index.search(b"", self.vectors[number], CANDIDATES)
        near = [Candidate(key, self.stored[key].text, cosine) for key, cosine in found if cosine >= MIN_COSINE]
        match, learner = self.learner.match(text, near), self.learner
        if match is not None:
            wrong, serves = self.stored[match.key].answer != truth, learner.serves(match)
            if serves and not learner.is_audit(match, self.draw):
                learner.count_served(match)
                self._count("served")
                self._count("wrong", wrong)
                return
            self._count("audit", serves)
            self._count("label")
            learner.add(match.label(wrong, "audit" if serves else "shadow"))
        key = number.to_bytes(8)
        self.stored[key] = Stored(text, truth)
        self.index.add(b"", key, self.vectors[number])

    def _count(self, what: str, number: int = 1) -> None:
        name = f"{self.phase} {what}"
        self.counts[name] = self.counts.get(name, 0) + number

    def _next_phase(self) -> None:
        serving = self.learner.certificate.level >= 0
        if self.phase == "learning" and serving:
            self.phase = "serving"
        elif self.phase == "serving" and self.counts.get("serving served", 0) >= SERVED_BEFORE:
            self.phase, self.version = "drifted", 1
        elif self.phase == "drifted" and not serving:
            self.phase = "repaired"
            if self.repair == "purge":
                self.index, self.stored = FrameIndexes(self.vectors.shape[1], limit=len(self.questions)), {}
                self.learner.add(RESTART)
            else:
                self.version = 0
        elif self.phase == "repaired" and serving:
            self.phase = "done"


RESTART = Label(key=b"", features=(), score=0.0, risk=1.0, wrong=False, source="restart")


def intent_questions(rows: Sequence[tuple[str, str]], seed: int) -> list[tuple[str, str]]:
    """Return the questions of INTENTS intents, in random order."""
    draw = random.Random(f"{seed} intents")
    chosen = set(draw.sample(sorted({intent for _, intent in rows}), INTENTS))
    found = [row for row in rows if row[1] in chosen]
    draw.shuffle(found)
    return found
