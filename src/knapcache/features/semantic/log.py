"""The log of the semantic tier: what all processes of a cache share.

    questions   vectors of stored questions, by frame and key; no text
    labels      what the judge or a person has found about matches
    drops       keys of questions whose entries are gone

They are lists to which any process appends, and which every process reads in the same order. Index, score and
certificate follow from them, so all processes decide alike, also after a restart. sqlite_log.py has them in a file,
redis_log.py in a shared store, MemoryLog in this process alone.

    Invariant: at most `max_questions` questions, MAX_LABELS labels and MAX_DROPS drops are kept. Beyond that, the
    oldest question or label of the scope that has the most is removed (shares.py), and the oldest drop. Of the
    questions with one key, only the last is kept.

A position names the log as well as the place in it. After a log was lost and begun again, a position in the old one is
taken for START, and `same_log` tells the two apart.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from knapcache.features.semantic.learner import Label
from knapcache.features.semantic.shares import FairShares

T = TypeVar("T")

MAX_LABELS = 20_000
MAX_DROPS = 20_000
"""A process that has read none for longer may find questions whose entries are gone. It finds no answer then."""
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
    scope: str = ""
    """Of the caller: its questions have a share of the log."""


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
        """Return the questions after a position, the oldest first, and the position after the last of them.

        Records that cannot be read are left out. So the end of the log is where the position does not change.
        """

    def read_labels(self, after: bytes = START, limit: int = 1000) -> tuple[list[LabelRecord], bytes]:
        """Return the labels after a position, the oldest first, and the position after the last of them."""

    def read_drops(self, after: bytes = START, limit: int = 1000) -> tuple[list[bytes], bytes]:
        """Return the keys of questions that were dropped after a position, and the position after the last of them.

        To be read before the questions: then one that was dropped and asked again is kept.
        """

    def drop(self, keys: Collection[bytes]) -> None:
        """Remove the questions with these keys: their entries are gone. Other processes read the drop."""

    def close(self) -> None:
        """Release files and connections."""


def position_in(epoch: str, place: int | str) -> bytes:
    """Return a position. epoch: the identity of a log."""
    return f"{epoch}/{place}".encode()


def place_in(epoch: str, position: bytes) -> str:
    """Return the place of a position; empty for START, and for a position in another log."""
    log, _, place = position.decode("ascii", "replace").partition("/")
    return place if log == epoch else ""


def next_position(epoch: str, after: bytes, last: int | str | None) -> bytes:
    """Return the position after a read. last: the place of the last record; None: there was none."""
    if last is not None:
        return position_in(epoch, last)
    return after if after == START or place_in(epoch, after) else position_in(epoch, 0)


def same_log(one: bytes, other: bytes) -> bool:
    """Return whether two positions are in the same log. START is in every log."""
    return START in (one, other) or one.partition(b"/")[0] == other.partition(b"/")[0]


class MemoryLog:
    """The log of a cache in memory."""

    def __init__(self, max_questions: int) -> None:
        self._lock = threading.Lock()
        self._epoch = os.urandom(8).hex()
        self._questions: _Numbered[QuestionRecord] = _Numbered(self._epoch, max_questions)
        self._labels: _Numbered[LabelRecord] = _Numbered(self._epoch, MAX_LABELS)
        self._drops: _Numbered[bytes] = _Numbered(self._epoch, MAX_DROPS)
        self._numbers: dict[bytes, int] = {}
        """Number of the question with a key."""

    def append(self, questions: Sequence[QuestionRecord] = (), labels: Sequence[LabelRecord] = ()) -> None:
        """Add records."""
        with self._lock:
            for question in questions:
                self._forget(question.key)
                self._numbers[question.key] = self._questions.add(question, question.scope)
                for removed in self._questions.bound():
                    del self._numbers[removed.key]
            for label in labels:
                self._labels.add(label, label.scope)
                self._labels.bound()

    def read_questions(self, after: bytes = START, limit: int = 1000) -> tuple[list[QuestionRecord], bytes]:
        """Return the questions after a position."""
        with self._lock:
            return self._questions.after(after, limit)

    def read_labels(self, after: bytes = START, limit: int = 1000) -> tuple[list[LabelRecord], bytes]:
        """Return the labels after a position."""
        with self._lock:
            return self._labels.after(after, limit)

    def read_drops(self, after: bytes = START, limit: int = 1000) -> tuple[list[bytes], bytes]:
        """Return the dropped keys after a position."""
        with self._lock:
            return self._drops.after(after, limit)

    def drop(self, keys: Collection[bytes]) -> None:
        """Remove the questions with these keys."""
        with self._lock:
            for key in keys:
                self._forget(key)
                self._drops.add(key)
                self._drops.bound()

    def close(self) -> None:
        """Do nothing."""

    def _forget(self, key: bytes) -> None:
        if (number := self._numbers.pop(key, None)) is not None:
            self._questions.remove(number)


class _Numbered(Generic[T]):
    """Records by increasing numbers, at most `limit` of them."""

    def __init__(self, epoch: str, limit: int) -> None:
        self._epoch, self._limit = epoch, limit
        self._records: OrderedDict[int, T] = OrderedDict()
        self._shares: FairShares[int] = FairShares()
        self._last = 0

    def add(self, record: T, scope: str = "") -> int:
        self._last += 1
        self._records[self._last] = record
        self._shares.add(scope, self._last)
        return self._last

    def bound(self) -> list[T]:
        """Remove what is beyond the limit, and return it."""
        excess = [self._shares.excess()] if len(self._records) > self._limit else []
        return [self.remove(number) for number in excess]

    def remove(self, number: int) -> T:
        self._shares.remove(number)
        return self._records.pop(number)

    def after(self, position: bytes, limit: int) -> tuple[list[T], bytes]:
        place, numbers = place_in(self._epoch, position), []
        last = int(place) if place.isdigit() else 0
        for number in reversed(self._records):  # few are new, of many
            if number <= last:
                break
            numbers.append(number)
        numbers = numbers[::-1][:limit]
        last_read = numbers[-1] if numbers else None
        return [self._records[number] for number in numbers], next_position(self._epoch, position, last_read)
