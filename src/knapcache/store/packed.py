"""An entry as one bytes object: the form in which a store in memory keeps it.

    record = size, cost, seconds, created, expires, lengths, tenant, model, meta, request, payload

As Python objects an entry takes 0.8 to 2 kB beside its bytes, and the garbage collector visits each of them in every
full collection. It does not visit bytes, nor a dict that holds only bytes. So a full collection takes the same time for
ten entries and for a million. Decoding takes one to two microseconds, so entries that are read again and again are also
kept decoded (decoded_entries.py).
"""

from __future__ import annotations

import struct
from types import MappingProxyType

import orjson

from knapcache.store.base import Entry, EntryInfo
from knapcache.store.validation import encode_fields

_HEAD = struct.Struct("<qddddIIIQ")
_START = _HEAD.size
_NEVER = float("inf")
_unpack_head, _tuple, _loads = _HEAD.unpack_from, tuple.__new__, orjson.loads

RECORD_OVERHEAD = 288
"""Bytes charged for a record in a dict, beside tenant, model, meta, request and payload: the head above, 60; the
headers of two bytes objects, 66; the key, 32; a slot of the dict, 40 to 60; what the allocator adds to each object."""


def pack(entry: Entry, fields: tuple[bytes, bytes, bytes] | None = None) -> bytes:
    """Return the record of an entry. fields: `encode_fields` of the entry, if it is known."""
    _, _, _, size, cost, seconds, created, expires, _, request, payload = entry
    tenant, model, meta = fields or encode_fields(entry)
    until = _NEVER if expires is None else expires
    head = _HEAD.pack(size, cost, seconds, created, until, len(tenant), len(model), len(meta), len(request))
    return b"".join((head, tenant, model, meta, request, payload))


def unpack(key: bytes, record: bytes) -> Entry:
    """Return the entry of a record. Positional, and no helper calls: a hit may take this."""
    size, cost, seconds, created, until, tenant, model, meta, request = _unpack_head(record)
    tenant += _START
    model += tenant
    meta += model
    request += meta
    return _tuple(
        Entry,
        (
            key, record[_START:tenant].decode(), record[tenant:model].decode(), size, cost, seconds, created,
            None if until == _NEVER else until, MappingProxyType(_loads(record[model:meta])),
            record[meta:request], record[request:],
        ),
    )  # fmt: skip


def unpack_info(key: bytes, record: bytes) -> EntryInfo:
    """Return the metadata of a record, without a copy of its request and payload."""
    end = _START + sum(_unpack_head(record)[5:8])
    return unpack(key, record[:end]).info


def size_of(record: bytes) -> int:
    """Return the size that was charged for the entry of a record."""
    size: int = _unpack_head(record)[0]
    return size


def expiry_of(record: bytes) -> float:
    """Return when the entry of a record expires; infinity: never."""
    until: float = _unpack_head(record)[4]
    return until
