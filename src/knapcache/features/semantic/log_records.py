"""Bytes of the records of the semantic tier's log: version, sealed content. Unknown versions are skipped.

    question   "Q2", time, build, frame, key, scope, vector; "Q1" of earlier versions has no scope
    label      "L1", JSON
    drop       "D1", key

Contents are sealed with the deployment's secret, and encrypted if the store is (`Sealer`). So a record that was
damaged, or written without the secret, is not read.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, get_args

import orjson

from knapcache.features.semantic.learner import Label, Source
from knapcache.features.semantic.log import LabelRecord, QuestionRecord
from knapcache.store.sqlite.rows import Sealer

_QUESTION = struct.Struct("<dBBBB")  # time, lengths of build, frame, key and scope
_QUESTION_1 = struct.Struct("<dBBB")
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

    def scope_tag(self, scope: str) -> bytes:
        """Return 16 characters that stand for a scope. With encryption, its name cannot be guessed from them."""
        return self.names(hashlib.sha256(b"scope " + scope.encode()).digest())[0][:8].hex().encode()

    def question(self, record: QuestionRecord) -> bytes:
        """Return the bytes of a question."""
        texts = record.build.encode()[:255], record.frame, record.key, record.scope.encode()[:255]
        head = _QUESTION.pack(record.time, *map(len, texts))
        return self._protect(b"".join((b"Q2", head, *texts, record.vector)))

    def label(self, record: LabelRecord) -> bytes:
        """Return the bytes of a label."""
        key, *fields = record.label
        return self._protect(b"L1" + orjson.dumps([*record[:4], key.hex(), *fields]))

    def drop(self, key: bytes) -> bytes:
        """Return the bytes of a drop."""
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
        decrypted = self._sealer.reveal(_CONTEXT, content[:_SEAL_BYTES], content[_SEAL_BYTES:])
        return decrypted[2:] if decrypted is not None and decrypted[:2] == version else None


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"not a number: {value!r}")
    return float(value)
