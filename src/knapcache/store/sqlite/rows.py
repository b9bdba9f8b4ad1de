"""Encode an entry as a row that authenticates itself, and decode it.

A row carries a seal of two halves, 16 bytes each, truncated SHA-256 over all fields and their lengths:

    header = prefix, key, size, cost, seconds, created, expires, tenant, model, meta
    seal   = H(header), H(header, request, payload)      `scan` verifies the first half, `get` the second

So neither a flipped bit nor a page of another row can pass for an answer: SQLite's own format has no checksums and
returns such bytes without an error. `prefix` is derived from the deployment's secret. A row that is
written without the secret is not accepted. SHA-256 rather than BLAKE2b: processors have instructions for it, and it
took less than half the time here.

With encryption (store/encryption.py), a row is stored under another name than its key, and its columns are

    key      the name                     tenant, model, request   empty
    meta     Enc(key, tenant, model, meta)        payload   Enc(request, payload), the second part of the same value

The numbers stay unencrypted, because SQL needs them, and are part of the context: changed ones do not decrypt. The seal
covers the encrypted columns. Its prefix differs, so an encrypted row is never taken for an unencrypted one.

A row's id is the first eight bytes of its key. Two keys with one id (probability 10⁻⁷ at a million entries) replace
each other, and the replaced one is a miss.

Rows are stored in the order in which they are written, and an index finds them by their ids. Rejected: rows in the
order of their ids, without an index, as 0.2 stored them. Keys are digests, so each new row belongs between two others.
With rows of more than half a page, SQLite then distributes three leaves anew and writes four or five pages, not two.
"""

from __future__ import annotations

import hashlib
import struct
from types import MappingProxyType
from typing import Any

import orjson

from knapcache.store.base import KEY_BYTES, Entry, EntryInfo
from knapcache.store.encryption import Encryption, value_overhead
from knapcache.store.validation import Fields, encode_fields

COLUMNS = "seal, key, size, cost, seconds, created, expires, tenant, model, meta, request, payload"
INFO_COLUMNS = "id, seal, key, size, cost, seconds, created, expires, tenant, model, meta"
INSERT = f"INSERT INTO entries (id, {COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
PUT_STATE = "INSERT OR REPLACE INTO state (id, seal, value) VALUES (?, ?, ?)"
GET_STATE = "SELECT seal, value FROM state WHERE id = ?"
FIXED_BYTES = 32 + 32 + 6 * 8 + 48
"""An upper bound on a row's bytes besides its five byte strings: seal, key, numbers, SQLite's record header."""

MAX_HELD = 1 << 16
"""Bytes whose digest takes 50 µs."""

_MAX_PIECE = 2047
_NUMBERS = struct.Struct("<32sqddddIII")
_LENGTH = struct.Struct("<Q")
_ID = struct.Struct(">q")
_NEVER = float("inf")
_CONTEXT = struct.Struct("<5s32sqdddd")
_NAMES = struct.Struct("<II")

_WRONG_TYPE = (TypeError, ValueError, OverflowError, struct.error)
"""Raised when damage has changed the type of a value: a number instead of bytes, bytes that are not text."""


def row_id(key: bytes) -> int:
    number: int = _ID.unpack_from(key)[0]
    return number


class Sealer:
    """Encodes and seals rows; decodes only rows with a valid seal."""

    def __init__(self, secret: bytes = b"", encryption: Encryption | None = None) -> None:
        kind = b"knapcache row 1\0" if encryption is None else b"knapcache encrypted row 1\0"
        self._prefix = hashlib.sha256(kind + secret).digest()
        self.encryption = encryption
        self.overhead = 0 if encryption is None else value_overhead(2) + KEY_BYTES + _NAMES.size + _LENGTH.size
        """Bytes by which an encrypted row is longer."""
        self.ids_per_key = 1 if encryption is None else len(encryption.key_ids)

        self.secret_mark = _body_seal(hashlib.sha256(b"knapcache row 1\0" + secret).digest(), b"secret", b"")
        """Tells files of different secrets apart. It does not depend on the encryption."""

    def row_ids(self, *keys: bytes) -> list[int]:
        """Return the ids of the rows in which entries may be, the same number for each: first that of new rows."""
        if self.encryption is None:
            return list(map(row_id, keys))
        return [row_id(name) for key in keys for name in self.encryption.names(key)]

    def row(self, entry: Entry, fields: Fields | None = None) -> tuple[Any, ...]:
        """Return the row: id, then COLUMNS. fields: `encode_fields` of the entry, if it is known."""
        tenant, model, meta = fields or encode_fields(entry)
        numbers = (entry.size, entry.cost, entry.seconds, entry.created, entry.expires)
        key, request, payload = entry.key, entry.request, entry.payload
        if self.encryption is not None:
            names = b"".join((key, _NAMES.pack(len(tenant), len(model)), tenant, model, meta))
            content = b"".join((_LENGTH.pack(len(request)), request, payload))
            key = self.encryption.names(key)[0]
            meta, payload = self.encryption.encrypt(_context(key, *numbers), names, content)
            tenant = model = request = b""
        digest = hashlib.sha256(self._header(key, *numbers, tenant, model, meta))
        seal = digest.digest()[:16]
        _add_body(digest, request, payload)
        seal += digest.digest()[:16]
        return (row_id(key), seal, key, *numbers, tenant, model, meta, request, payload)

    def entry(self, row: tuple[Any, ...]) -> Entry | None:
        """Return the entry of a row of COLUMNS; None if its seal is invalid."""
        seal, key, size, cost, seconds, created, expires, tenant, model, meta, request, payload = row
        try:
            header = self._header(key, size, cost, seconds, created, expires, tenant, model, meta)
            if _body_seal(header, request, payload) != seal[16:]:
                return None
            if self.encryption is not None:
                decrypted = self.encryption.decrypt(_context(key, size, cost, seconds, created, expires), meta, payload)
                if decrypted is None:
                    return None
                key, tenant, model, meta = _split_names(decrypted[0])
                end = _LENGTH.size + _LENGTH.unpack_from(decrypted[1])[0]
                request, payload = decrypted[1][_LENGTH.size : end], decrypted[1][end:]
            return Entry(
                key, tenant.decode(), model.decode(), size, cost, seconds, created, expires,
                MappingProxyType(orjson.loads(meta)), request, payload,
            )  # fmt: skip
        except _WRONG_TYPE:
            return None

    def info(self, row: tuple[Any, ...]) -> EntryInfo | None:
        """Return the metadata of a row of INFO_COLUMNS; None if its seal is invalid."""
        number, seal, key, size, cost, seconds, created, expires, tenant, model, meta = row
        try:
            header = self._header(key, size, cost, seconds, created, expires, tenant, model, meta)
            if hashlib.sha256(header).digest()[:16] != seal[:16] or row_id(key) != number:
                return None
            if self.encryption is not None:
                decrypted = self.encryption.decrypt(_context(key, size, cost, seconds, created, expires), meta)
                if decrypted is None:
                    return None
                key, tenant, model, meta = _split_names(decrypted[0])
            return EntryInfo(
                key, tenant.decode(), model.decode(), size, cost, seconds, created, expires,
                MappingProxyType(orjson.loads(meta)),
            )  # fmt: skip
        except _WRONG_TYPE:
            return None

    def seal(self, name: bytes, value: bytes) -> bytes:
        """Return the seal of a value that is not an entry, such as a snapshot."""
        return _body_seal(self._prefix, name, value)

    def protect(self, name: bytes, value: bytes) -> tuple[bytes, bytes]:
        """Return the seal and the stored form of a value that is not an entry."""
        if self.encryption is not None:
            (value,) = self.encryption.encrypt(b"value" + name, value)
        return self.seal(name, value), value

    def reveal(self, name: bytes, seal: Any, value: Any) -> bytes | None:
        """Return the value that `protect` was given; None if it was changed."""
        if not isinstance(value, bytes) or self.seal(name, value) != seal:
            return None
        if self.encryption is None:
            return value
        decrypted = self.encryption.decrypt(b"value" + name, value)
        return None if decrypted is None else decrypted[0]

    def _header(
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
        if len(key) != KEY_BYTES:  # struct would pad or truncate it
            raise ValueError("not a key")
        until = _NEVER if expires is None else expires
        numbers = _NUMBERS.pack(key, size, cost, seconds, created, until, len(tenant), len(model), len(meta))
        return b"".join((self._prefix, numbers, tenant, model, meta))


def _context(name: bytes, size: int, cost: float, seconds: float, created: float, expires: float | None) -> bytes:
    return _CONTEXT.pack(b"entry", name, size, cost, seconds, created, _NEVER if expires is None else expires)


def _split_names(names: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """Return key, tenant, model and meta."""
    tenant_bytes, model_bytes = _NAMES.unpack_from(names, KEY_BYTES)
    start = KEY_BYTES + _NAMES.size
    end = start + tenant_bytes
    return names[:KEY_BYTES], names[start:end], names[end : end + model_bytes], names[end + model_bytes :]


def _body_seal(header: bytes, request: bytes, payload: bytes) -> bytes:
    digest = hashlib.sha256(header)
    _add_body(digest, request, payload)
    return digest.digest()[:16]


def _add_body(digest: hashlib._Hash, request: bytes, payload: bytes) -> None:
    length = _LENGTH.pack(len(request))
    if len(request) + len(payload) <= _MAX_PIECE - _LENGTH.size:
        digest.update(b"".join((length, request, payload)))
    else:
        _add(digest, length + request)
        _add(digest, payload)


def _add(digest: hashlib._Hash, data: bytes) -> None:
    """Add bytes to a digest, up to MAX_HELD without giving the interpreter's lock away.

    `hashlib` gives it away for 2 KB and more. While other threads compute, it comes back after the switch interval, 5
    ms: the writer thread encoded 200 rows a second.
    """
    if _MAX_PIECE < len(data) <= MAX_HELD:
        pieces = memoryview(data)
        for k in range(0, len(data), _MAX_PIECE):
            digest.update(pieces[k : k + _MAX_PIECE])
    else:
        digest.update(data)
