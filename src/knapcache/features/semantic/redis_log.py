"""The log of the semantic tier in a shared store, for all machines: three logs of records (store/redis/record_logs.py).

    sq   questions, by name of their entry     sl   labels     sd   drops

Records are sealed and perhaps encrypted (log_records.py). Those that cannot be read, because they are damaged or were
written with another secret or key, are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from knapcache.features.semantic.log import (
    MAX_DROPS,
    MAX_LABELS,
    START,
    LabelRecord,
    QuestionRecord,
    next_position,
    place_in,
)
from knapcache.features.semantic.log_records import RecordCodec
from knapcache.store.redis.record_logs import NO_RECORD, LogChange, RecordLogs

QUESTIONS, LABELS, DROPS = "sq", "sl", "sd"
T = TypeVar("T")


class RedisLog:
    """The log in a store on Valkey or Redis."""

    def __init__(self, logs: RecordLogs, max_questions: int) -> None:
        self._logs, self._max_questions = logs, max_questions
        self._codec = RecordCodec(logs.sealer)

    def append(self, questions: Sequence[QuestionRecord] = (), labels: Sequence[LabelRecord] = ()) -> None:
        """Add records."""
        if questions:
            records = [
                change
                for each in questions
                for change in self._replacing(each.key, self._codec.question(each), self._codec.scope_tag(each.scope))
            ]
            self._logs.append(QUESTIONS, records, self._max_questions)
        if labels:
            changes = [LogChange(b"", self._codec.label(each), self._codec.scope_tag(each.scope)) for each in labels]
            self._logs.append(LABELS, changes, MAX_LABELS)

    def read_questions(self, after: bytes = START, limit: int = 1000) -> tuple[list[QuestionRecord], bytes]:
        """Return the questions after a position."""
        return self._read(QUESTIONS, self._codec.read_question, after, limit)

    def read_labels(self, after: bytes = START, limit: int = 1000) -> tuple[list[LabelRecord], bytes]:
        """Return the labels after a position."""
        return self._read(LABELS, self._codec.read_label, after, limit)

    def read_drops(self, after: bytes = START, limit: int = 1000) -> tuple[list[bytes], bytes]:
        """Return the dropped keys after a position."""
        return self._read(DROPS, self._codec.read_drop, after, limit)

    def drop(self, keys: Collection[bytes]) -> None:
        """Remove the questions with these keys."""
        if keys:
            removed = [change for key in keys for change in self._replacing(key, NO_RECORD)]
            self._logs.append(QUESTIONS, removed, self._max_questions)
            self._logs.append(DROPS, [LogChange(b"", self._codec.drop(key)) for key in keys], MAX_DROPS)

    def close(self) -> None:
        """Do nothing: the store has the connections."""

    def _replacing(self, key: bytes, record: bytes, scope: bytes = b"") -> list[LogChange]:
        """Return what removes the questions with a key, under older names too, and appends a new record."""
        first, *older = self._codec.names(key)
        return [*(LogChange(name, NO_RECORD) for name in older), LogChange(first, record, scope)]

    def _read(self, kind: str, decode: Callable[[Any], T | None], after: bytes, limit: int) -> tuple[list[T], bytes]:
        epoch = self._logs.epoch()
        rows = self._logs.read(kind, place_in(epoch, after), limit)
        found = [record for _, content in rows if (record := decode(content)) is not None]
        return found, next_position(epoch, after, rows[-1][0] if rows else None)
