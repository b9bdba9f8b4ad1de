"""Bytes of the records of the semantic tier's log: version, sealed content. Unknown versions are skipped.

    question   "Q1", build, frame, key, vector, time
    label      "L1", JSON
    drop       "D1", key

Contents are sealed with the deployment's secret, and encrypted if the store is (`Sealer`). So a record that was
damaged, or written without the secret, is not read.
"""

from __future__ import annotations

import struct
from typing import Any, get_args

import orjson

from knapcache.semantic.learner import Label, Source
from knapcache.serve.semantic.log import LabelRecord, QuestionRecord
from knapcache.store.sqlite.rows import Sealer

_QUESTION = struct.Struct("<dBBB")  # time, lengths of build, frame and key
_CONTEXT = b"semantic record"
_SEAL_BYTES = 16


class RecordCodec:
    """Encodes and seals records; decodes only those with a valid seal."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def names(self, key: bytes) -> tuple[bytes, ...]:
        """Return the names under which a question may be stored: first that of new ones. They hide encrypted keys."""
        encryption = self._sealer.encryption
        return (key,) if encryption is None else encryption.names(key)

    def question(self, record: QuestionRecord) -> bytes:
        """Return the bytes of a question."""
        build = record.build.encode()[:255]
        head = _QUESTION.pack(record.time, len(build), len(record.frame), len(record.key))
        return self._protect(b"".join((b"Q1", head, build, record.frame, record.key, record.vector)))

    def label(self, record: LabelRecord) -> bytes:
        """Return the bytes of a label."""
        key, *fields = record.label
        return self._protect(b"L1" + orjson.dumps([*record[:4], key.hex(), *fields]))

    def drop(self, key: bytes) -> bytes:
        """Return the bytes of a drop."""
        return self._protect(b"D1" + key)

    def read_question(self, content: Any) -> QuestionRecord | None:
        """Return the question; None if it cannot be read."""
        body = self._reveal(b"Q1", content)
        if body is None or len(body) < _QUESTION.size:
            return None
        time, *lengths = _QUESTION.unpack_from(body)
        parts, at = [], _QUESTION.size
        for length in lengths:
            parts.append(body[at : at + length])
            at += length
        build, frame, key = parts
        return QuestionRecord(build.decode(errors="replace"), frame, key, body[at:], time) if at < len(body) else None

    def read_label(self, content: Any) -> LabelRecord | None:
        """Return the label; None if it cannot be read."""
        body = self._reveal(b"L1", content)
        if body is None:
            return None
        try:
            build, scope, match_id, rung, key, features, score, risk, wrong, source, time = orjson.loads(body)
            label = Label(
                key=bytes.fromhex(key),
                features=tuple(map(_number, features)),
                score=_number(score),
                risk=_number(risk),
                wrong=wrong,
                source=source,
                time=_number(time),
            )
        except (TypeError, ValueError):
            return None
        texts = (build, scope, match_id, rung)
        valid = type(wrong) is bool and source in get_args(Source) and all(type(text) is str for text in texts)
        return LabelRecord(*texts, label) if valid else None

    def read_drop(self, content: Any) -> bytes | None:
        """Return the key of a drop; None if it cannot be read."""
        return self._reveal(b"D1", content)

    def _protect(self, content: bytes) -> bytes:
        return b"".join(self._sealer.protect(_CONTEXT, content))

    def _reveal(self, version: bytes, content: Any) -> bytes | None:
        if not isinstance(content, bytes):
            return None
        plain = self._sealer.reveal(_CONTEXT, content[:_SEAL_BYTES], content[_SEAL_BYTES:])
        return plain[2:] if plain is not None and plain[:2] == version else None


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"not a number: {value!r}")
    return float(value)
