"""An entry as a row that certifies itself, and back.

A row carries a seal of two halves, 16 bytes each, truncated SHA-256 over everything with its length before it:

    head = key, size, cost, seconds, created, expires, tenant, model, meta
    seal = H(prefix, head), H(prefix, head, request, payload)      `heads` looks at the first half, `get` at the second

so that neither a flipped bit nor a page that belongs to another row can pass for an answer: SQLite's own format has
no checksums and hands out such bytes without a word. `prefix` comes from a secret of the deployment, where there is
one, and then nobody without it can write a row that is believed. SHA-256 rather than BLAKE2b: processors have
instructions for it, and it took less than half the time here.

A row's id is the first eight bytes of its key. Keys are digests, so ids are spread evenly: the tree needs no second
index, and the holes that evictions leave are filled by whatever comes next. Two keys with one id (at a million
entries a chance of 10⁻⁷) replace each other, and the one that is gone is a miss.
"""

from __future__ import annotations

import hashlib
import struct
from types import MappingProxyType
from typing import Any

import orjson

from knapcache.store.base import Entry, EntryInfo, encode_fields

COLUMNS = "seal, key, size, cost, seconds, created, expires, tenant, model, meta, request, payload"
HEAD_COLUMNS = "id, seal, key, size, cost, seconds, created, expires, tenant, model, meta"
INSERT = f"INSERT INTO entries (id, {COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
KEEP_STATE = "INSERT OR REPLACE INTO state (id, seal, value) VALUES (?, ?, ?)"
FIXED_BYTES = 32 + 32 + 5 * 8 + 48
"""An upper bound on what a row takes besides its five byte strings: seal, key, numbers, SQLite's record header."""

_NUMBERS = struct.Struct("<32sqddddIII")
_LENGTH = struct.Struct("<Q")
_ID = struct.Struct(">q")
_NEVER = float("inf")

_WRONG_TYPE = (TypeError, ValueError, OverflowError, struct.error)
"""What damage looks like that changed a value's type: a number where bytes should be, bytes that are no text."""


def row_id(key: bytes) -> int:
    """The id of the row under `key`."""
    number: int = _ID.unpack_from(key)[0]
    return number


class Sealer:
    """Packs, seals, and opens only what it sealed."""

    def __init__(self, secret: bytes = b"") -> None:
        self._prefix = hashlib.sha256(b"knapcache row 1\0" + secret).digest()

    def row(self, entry: Entry) -> tuple[Any, ...]:
        """The id, and COLUMNS."""
        tenant, model, meta = encode_fields(entry)
        numbers = (entry.size, entry.cost, entry.seconds, entry.created, entry.expires)
        head = self._head(entry.key, *numbers, tenant, model, meta)
        seal = hashlib.sha256(head).digest()[:16] + _body_seal(head, entry.request, entry.payload)
        return (row_id(entry.key), seal, entry.key, *numbers, tenant, model, meta, entry.request, entry.payload)

    def entry(self, row: tuple[Any, ...]) -> Entry | None:
        """COLUMNS → the entry; None when anything in it is not as it was sealed."""
        seal, key, size, cost, seconds, created, expires, tenant, model, meta, request, payload = row
        try:
            head = self._head(key, size, cost, seconds, created, expires, tenant, model, meta)
            if _body_seal(head, request, payload) != seal[16:]:
                return None
            return Entry(
                key, tenant.decode(), model.decode(), size, cost, seconds, created, expires,
                MappingProxyType(orjson.loads(meta)), request, payload,
            )  # fmt: skip
        except _WRONG_TYPE:
            return None

    def head(self, row: tuple[Any, ...]) -> EntryInfo | None:
        """HEAD_COLUMNS → the head; None when anything in it is not as it was sealed."""
        number, seal, key, size, cost, seconds, created, expires, tenant, model, meta = row
        try:
            head = self._head(key, size, cost, seconds, created, expires, tenant, model, meta)
            if hashlib.sha256(head).digest()[:16] != seal[:16] or row_id(key) != number:
                return None
            about = MappingProxyType(orjson.loads(meta))
            return EntryInfo(key, tenant.decode(), model.decode(), size, cost, seconds, created, expires, about)
        except _WRONG_TYPE:
            return None

    def seal(self, name: bytes, value: bytes) -> bytes:
        """The seal of what is not an entry."""
        return _body_seal(self._prefix, name, value)

    def _head(
        self,
        key: bytes,
        size: int,
        cost: float,
        seconds: float,
        created: float,
        expires: float | None,
        tenant: bytes,
        model: bytes,
        meta: bytes,
    ) -> bytes:
        until = _NEVER if expires is None else expires
        numbers = _NUMBERS.pack(key, size, cost, seconds, created, until, len(tenant), len(model), len(meta))
        return b"".join((self._prefix, numbers, tenant, model, meta))


def _body_seal(head: bytes, request: bytes, payload: bytes) -> bytes:
    digest = hashlib.sha256(b"".join((head, _LENGTH.pack(len(request)), request)))
    digest.update(payload)
    return digest.digest()[:16]
