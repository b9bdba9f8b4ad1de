"""Encode an entry as the value of a key, and decode it. Values authenticate themselves (sqlite/rows.py).

    value = head, request, payload
    head  = version (1 byte), seal (32), name (32), size, cost, seconds, created, expires, lengths, tenant, model, meta

The head is the beginning of the value, so scripts need no second copy of it. They read the size, at offset 65.
"""

from __future__ import annotations

import itertools
import struct
from typing import Any, NamedTuple

from knapcache.store.base import Entry, EntryInfo
from knapcache.store.sqlite.rows import Sealer, row_id

VERSION = 1
SIZE_OFFSET = 65
_HEAD = struct.Struct("<B32s32sQddddIIII")
_NEVER = float("inf")


class Record(NamedTuple):
    """An entry as it is stored."""

    name: bytes
    size: int
    value: bytes
    head_length: int

    @property
    def head(self) -> bytes:
        return self.value[: self.head_length]


def encode(sealer: Sealer, entry: Entry, fields: tuple[bytes, bytes, bytes] | None = None) -> Record:
    """Return the record of an entry. fields: `encode_fields` of the entry, if it is known."""
    row = sealer.row(entry, fields)
    _id, seal, name, size, cost, seconds, created, expires, tenant, model, meta, request, payload = row
    until = _NEVER if expires is None else expires
    lengths = len(tenant), len(model), len(meta), len(request)
    start = _HEAD.pack(VERSION, seal, name, size, cost, seconds, created, until, *lengths)
    value = b"".join((start, tenant, model, meta, request, payload))
    return Record(name, size, value, len(start) + sum(lengths[:3]))


def stored_record(value: bytes) -> Record:
    """Return the record of a value that `decode` accepted."""
    _version, _seal, name, size, _cost, _seconds, _created, _until, tenant, model, meta, _ = _HEAD.unpack_from(value)
    return Record(name, size, value, _HEAD.size + tenant + model + meta)


def head_length(content: int, request: int, payload: int) -> int:
    """Return the length of a head, from the bytes of the whole content, request and payload."""
    return _HEAD.size + content - request - payload


def value_length(content: int) -> int:
    return _HEAD.size + content


def decode(sealer: Sealer, value: Any) -> Entry | None:
    """Return the entry of a value; None if it is damaged."""
    parts = _split(value)
    if parts is None:
        return None
    row, rest, request = parts
    return sealer.entry((*row, rest[:request], rest[request:]))


def decode_head(sealer: Sealer, head: Any) -> EntryInfo | None:
    """Return the metadata of a head; None if it is damaged."""
    parts = _split(head)
    if parts is None or parts[1]:
        return None
    row = parts[0]
    return sealer.info((row_id(row[1]), *row))


def _split(value: Any) -> tuple[tuple[Any, ...], bytes, int] | None:
    """Return the columns up to `meta`, what follows them, and the length of the request."""
    if not isinstance(value, bytes) or len(value) < _HEAD.size:
        return None
    version, seal, name, size, cost, seconds, created, until, tenant, model, meta, request = _HEAD.unpack_from(value)
    ends = [_HEAD.size, _HEAD.size + tenant, _HEAD.size + tenant + model, _HEAD.size + tenant + model + meta]
    if version != VERSION or len(value) < ends[3]:
        return None
    strings = (value[start:end] for start, end in itertools.pairwise(ends))
    expires = None if until == _NEVER else until
    return (seal, name, size, cost, seconds, created, expires, *strings), value[ends[3] :], request
