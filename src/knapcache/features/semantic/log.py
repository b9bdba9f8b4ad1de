"""The log of the semantic tier: what all processes of a cache share.

    questions   vectors of stored questions, by frame and key; no text
    labels      what the judge or a person has found about matches
    drops       keys of questions whose entries are gone

They are lists to which any process appends, and which every process reads in the same order. Index, score and
certificate follow from them, so all processes decide alike, also after a restart. SqliteLog (sqlite_log.py) has them in
a file or in memory, RedisLog in a shared store.

    Invariant: at most `max_questions` questions, MAX_LABELS labels and MAX_DROPS drops are kept. Beyond that, the
    oldest question or label of the scope that has the most is removed, and the oldest drop. So of k scopes, one with
    at most 1/k of the limit loses none, whatever the others add. Of the questions with one key, only the last is kept.

A position names the log as well as the place in it. After a log was lost and begun again, a position in the old one is
taken for START, and `same_log` tells the two apart.
"""

from __future__ import annotations

import hashlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeVar, get_args

import orjson

from knapcache.features.semantic.learner import Label, Source
from knapcache.store.redis.record_logs import NO_RECORD, LogChange, RecordLogs
from knapcache.store.sqlite.rows import Sealer

T = TypeVar("T")

MAX_LABELS = 20_000
MAX_DROPS = 20_000
"""A process that has read none for longer may find questions whose entries are gone. It finds no answer then."""
START = b""
"""The position before the first record."""
_QUESTION = struct.Struct("<dBBBB")  # time, lengths of build, frame, key and scope
_QUESTION_1 = struct.Struct("<dBBB")
_CONTEXT = b"semantic record"
_SEAL_BYTES = 16


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


class SemanticLog(ABC):
    """The shared log. Every method may block, may be called by any thread, and may raise StoreError."""

    def __init__(self, sealer: Sealer, max_questions: int) -> None:
        self._codec, self._max_questions = RecordCodec(sealer), max_questions

    @abstractmethod
    def append(self, questions: Sequence[QuestionRecord] = (), labels: Sequence[LabelRecord] = ()) -> None:
        """Add records."""

    @abstractmethod
    def drop(self, keys: Collection[bytes]) -> None:
        """Remove the questions with these keys: their entries are gone. Other processes read the drop."""

    @abstractmethod
    def close(self) -> None:
        """Release files and connections."""

    @abstractmethod
    def _rows(self, part: str, after: bytes, limit: int) -> tuple[str, Sequence[tuple[int | str, Any]]]:
        """Return the log's epoch, and place and content of the records of a part after a position."""

    def read_questions(self, after: bytes = START, limit: int = 1000) -> tuple[list[QuestionRecord], bytes]:
        """Return the questions after a position, the oldest first, and the position after the last of them.

        Records that cannot be read are left out. So the end of the log is where the position does not change.
        """
        return self._read("questions", self._codec.read_question, after, limit)

    def read_labels(self, after: bytes = START, limit: int = 1000) -> tuple[list[LabelRecord], bytes]:
        """Return the labels after a position, the oldest first, and the position after the last of them."""
        return self._read("labels", self._codec.read_label, after, limit)

    def read_drops(self, after: bytes = START, limit: int = 1000) -> tuple[list[bytes], bytes]:
        """Return the keys of questions that were dropped after a position, and the position after the last of them.

        To be read before the questions: then one that was dropped and asked again is kept.
        """
        return self._read("drops", self._codec.read_drop, after, limit)

    def _read(self, part: str, decode: Callable[[Any], T | None], after: bytes, limit: int) -> tuple[list[T], bytes]:
        epoch, rows = self._rows(part, after, limit)
        found = [record for _, content in rows if (record := decode(content)) is not None]
        return found, next_position(epoch, after, rows[-1][0] if rows else None)


class RedisLog(SemanticLog):
    """The log in a store on Valkey or Redis, for all machines: three logs of records (store/redis/record_logs.py).

    sq   questions, by name of their entry     sl   labels     sd   drops
    """

    def __init__(self, logs: RecordLogs, max_questions: int) -> None:
        super().__init__(logs.sealer, max_questions)
        self._logs = logs

    def append(self, questions: Sequence[QuestionRecord] = (), labels: Sequence[LabelRecord] = ()) -> None:
        codec = self._codec
        if questions:
            records = [
                change
                for each in questions
                for change in self._replacing(each.key, codec.question(each), codec.scope_tag(each.scope))
            ]
            self._logs.append("sq", records, self._max_questions)
        if labels:
            changes = [LogChange(b"", codec.label(each), codec.scope_tag(each.scope)) for each in labels]
            self._logs.append("sl", changes, MAX_LABELS)

    def drop(self, keys: Collection[bytes]) -> None:
        if keys:
            removed = [change for key in keys for change in self._replacing(key, NO_RECORD)]
            self._logs.append("sq", removed, self._max_questions)
            self._logs.append("sd", [LogChange(b"", self._codec.drop(key)) for key in keys], MAX_DROPS)

    def close(self) -> None:
        """Do nothing: the store has the connections."""

    def _replacing(self, key: bytes, record: bytes, scope: bytes = b"") -> list[LogChange]:
        """Return what removes the questions with a key, under older names too, and appends a new record."""
        first, *older = self._codec.names(key)
        return [*(LogChange(name, NO_RECORD) for name in older), LogChange(first, record, scope)]

    def _rows(self, part: str, after: bytes, limit: int) -> tuple[str, Sequence[tuple[int | str, Any]]]:
        epoch = self._logs.epoch()
        return epoch, self._logs.read(f"s{part[0]}", place_in(epoch, after), limit)


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


class RecordCodec:
    """Bytes of the records: version, sealed content. Unknown versions are skipped.

        question   "Q2", time, build, frame, key, scope, vector; "Q1" of earlier versions has no scope
        label      "L2", JSON; "L1" of earlier versions has no principal
        drop       "D1", key

    Contents are sealed with the deployment's secret, and encrypted if the store is (`Sealer`). So a record that was
    damaged, or written without the secret, is not read.
    """

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def names(self, key: bytes) -> tuple[bytes, ...]:
        """Return the names under which a question may be stored: first that of new ones. They hide encrypted keys."""
        encryption = self._sealer.encryption
        return (key,) if encryption is None else encryption.names(key)

    def scope_tag(self, scope: str) -> bytes:
        """Return 16 characters that stand for a scope. With encryption, its name cannot be guessed from them."""
        return self.names(hashlib.sha256(b"scope " + scope.encode()).digest())[0][:8].hex().encode()

    def question(self, record: QuestionRecord) -> bytes:
        texts = record.build.encode()[:255], record.frame, record.key, record.scope.encode()[:255]
        head = _QUESTION.pack(record.time, *map(len, texts))
        return self._protect(b"".join((b"Q2", head, *texts, record.vector)))

    def label(self, record: LabelRecord) -> bytes:
        key, *fields = record.label
        return self._protect(b"L2" + orjson.dumps([*record[:4], key.hex(), *fields]))

    def drop(self, key: bytes) -> bytes:
        return self._protect(b"D1" + key)

    def read_question(self, content: Any) -> QuestionRecord | None:
        """Return the question; None if it cannot be read."""
        head, body = _QUESTION, self._reveal(b"Q2", content)
        if body is None:
            head, body = _QUESTION_1, self._reveal(b"Q1", content)
        if body is None or len(body) < head.size:
            return None
        time, *lengths = head.unpack_from(body)
        parts, at = [], head.size
        for length in lengths:
            parts.append(body[at : at + length])
            at += length
        build, frame, key, scope = (*parts, b"")[:4]
        if at >= len(body):
            return None
        return QuestionRecord(
            build=build.decode(errors="replace"),
            frame=frame,
            key=key,
            vector=body[at:],
            time=time,
            scope=scope.decode(errors="replace"),
        )

    def read_label(self, content: Any) -> LabelRecord | None:
        """Return the label; None if it cannot be read."""
        body = self._reveal(b"L2", content) or self._reveal(b"L1", content)
        if body is None:
            return None
        try:
            build, scope, match_id, rung, key, features, score, risk, wrong, source, time, *more = orjson.loads(body)
            (principal,) = more or ("",)
            label = Label(
                key=bytes.fromhex(key),
                features=tuple(map(_number, features)),
                score=_number(score),
                risk=_number(risk),
                wrong=wrong,
                source=source,
                time=_number(time),
                principal=principal,
            )
        except (TypeError, ValueError):
            return None
        texts = (build, scope, match_id, rung)
        valid = (
            type(wrong) is bool
            and source in get_args(Source)
            and all(type(text) is str for text in (*texts, principal))
        )
        return LabelRecord(*texts, label) if valid else None

    def read_drop(self, content: Any) -> bytes | None:
        """Return the key of a drop; None if it cannot be read."""
        return self._reveal(b"D1", content)

    def _protect(self, content: bytes) -> bytes:
        return b"".join(self._sealer.protect(_CONTEXT, content))

    def _reveal(self, version: bytes, content: Any) -> bytes | None:
        if not isinstance(content, bytes):
            return None
        decrypted = self._sealer.reveal(_CONTEXT, content[:_SEAL_BYTES], content[_SEAL_BYTES:])
        return decrypted[2:] if decrypted is not None and decrypted[:2] == version else None


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"not a number: {value!r}")
    return float(value)
