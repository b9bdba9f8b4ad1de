"""Checks of single arguments of a cache."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from knapcache.errors import InvalidInput
from knapcache.store.base import KEY_BYTES, Clock
from knapcache.units import ALLOWED_AMOUNTS, parse_bytes

DEFAULT_CAPACITY = "256MB"
DEFAULT_SECRET = b"knapcache without a secret"
EncryptionKey = bytes | str | Sequence[bytes | str] | None
"""32 bytes, raw or as text; of several keys the first encrypts, and all decrypt. None: no encryption."""


def checked_capacity(capacity: int | str) -> int:
    """Return bytes, from 268435456 or "256MB"."""
    found = parse_bytes(capacity)
    if found is None:
        raise InvalidInput(f"capacity must be {ALLOWED_AMOUNTS}, at least 1, not {capacity!r}")
    return found


def checked_ttl(ttl: float | None) -> float | None:
    """Return seconds, or None."""
    if ttl is not None and (isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not 0 < ttl <= 1e12):
        raise InvalidInput(f"ttl must be seconds, more than 0, or None, not {ttl!r}")
    return ttl


def checked_digest(key: str | bytes | None) -> bytes | None:
    """Return the digest of a key, from bytes or hex."""
    try:
        digest = bytes.fromhex(key) if isinstance(key, str) else key
    except ValueError:
        digest = b""
    if digest is not None and (not isinstance(digest, bytes) or len(digest) != KEY_BYTES):
        raise InvalidInput(f"a key must be {2 * KEY_BYTES} hex digits, as in Answer.key, not {str(key)[:80]!r}")
    return digest


def checked_counts(counts: Mapping[str, int]) -> dict[bytes, int]:
    """Return counts by digest, from counts by its hex."""
    found: dict[bytes, int] = {}
    for key, times in counts.items():
        if isinstance(times, bool) or not isinstance(times, int) or times < 0:
            raise InvalidInput(f"counts must be whole numbers and not negative, not {times!r}")
        found[checked_digest(key) or b""] = times
    return found


def checked_clock(clock: Any) -> Clock:
    """Return a clock, or raise InvalidInput: otherwise the first request would fail."""
    if not callable(clock):
        raise InvalidInput(f"clock must be a function that returns Unix time, not {clock!r}")
    return clock  # type: ignore[no-any-return]


def seal_secret(secret: bytes | None) -> bytes:
    """Return the secret of the store's seals. It differs from that of the keys: one does not reveal the other."""
    return hashlib.blake2b(b"seals", key=secret).digest() if secret else b""
