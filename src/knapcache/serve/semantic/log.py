"""The log of the semantic tier: what all processes of a cache share.

    questions   vectors of stored questions, by frame and key; no text
    labels      what the judge or a person has found about matches

Both are lists to which any process appends, and which every process reads in the same order. Index, score and
certificate follow from them, so all processes decide alike, also after a restart.

    Invariant: at most `max_questions` questions and MAX_LABELS labels are kept; the oldest are removed first.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol, TypeVar

from knapcache.semantic.learner import Label

T = TypeVar("T")

MAX_LABELS = 20_000
START = b""
"""The position before the first record."""


class QuestionRecord(NamedTuple):
    """A question whose answer was stored."""

    build: str
    """Of the embedding model."""
    frame: bytes
    key: bytes
    vector: bytes
    """As int8, by `index.pack_vector`."""
    time: float


class LabelRecord(NamedTuple):
    """A label of a match."""

    build: str
    scope: str
    match_id: str
    rung: str
    """What decided it: a rung of the judge, or `feedback`."""
    label: Label


class SemanticLog(Protocol):
    """The shared log. Every method may block, may be called by any thread, and may raise StoreError."""

    def append(self, questions: Sequence[QuestionRecord] = (), labels: Sequence[LabelRecord] = ()) -> None:
        """Add records."""

    def read_questions(self, after: bytes = START, limit: int = 1000) -> tuple[list[QuestionRecord], bytes]:
        """Return the questions after a position, the oldest first, and the position after the last of them."""

    def read_labels(self, after: bytes = START, limit: int = 1000) -> tuple[list[LabelRecord], bytes]:
        """Return the labels after a position, the oldest first, and the position after the last of them."""

    def drop(self, keys: Collection[bytes]) -> None:
        """Remove the questions with these keys: their entries are gone."""

    def close(self) -> None:
        """Release files and connections."""


class MemoryLog:
    """The log of a cache in memory."""

    def __init__(self, max_questions: int) -> None:
        self._lock = threading.Lock()
        self._max_questions = max_questions
        self._questions: dict[int, QuestionRecord] = {}
        self._labels: dict[int, LabelRecord] = {}
        self._next = 1

    def append(self, questions: Sequence[QuestionRecord] = (), labels: Sequence[LabelRecord] = ()) -> None:
        with self._lock:
            for question in questions:
                self._questions[self._next] = question
                self._next += 1
            for label in labels:
                self._labels[self._next] = label
                self._next += 1
            while len(self._questions) > self._max_questions:
                del self._questions[next(iter(self._questions))]
            while len(self._labels) > MAX_LABELS:
                del self._labels[next(iter(self._labels))]

    def read_questions(self, after: bytes = START, limit: int = 1000) -> tuple[list[QuestionRecord], bytes]:
        with self._lock:
            return _after(self._questions, after, limit)

    def read_labels(self, after: bytes = START, limit: int = 1000) -> tuple[list[LabelRecord], bytes]:
        with self._lock:
            return _after(self._labels, after, limit)

    def drop(self, keys: Collection[bytes]) -> None:
        gone = set(keys)
        with self._lock:
            self._questions = {number: each for number, each in self._questions.items() if each.key not in gone}

    def close(self) -> None:
        pass


def _after(records: dict[int, T], after: bytes, limit: int) -> tuple[list[T], bytes]:
    """Return the records after a position, and the position after them."""
    last = int(after or b"0")
    found = [(number, record) for number, record in records.items() if number > last][:limit]
    return [record for _, record in found], str(found[-1][0]).encode() if found else after
