"""What a cache is made with: arguments as people give them, and the store behind a path."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

from knapcache.cache.shadow import named
from knapcache.errors import InvalidInput
from knapcache.keys import Rules
from knapcache.store import registry
from knapcache.store.base import KEY_BYTES, Clock, Store, StoreOptions
from knapcache.units import ALLOWED_AMOUNTS, parse_amount


def room(capacity: int | str) -> int:
    """Bytes, from 268435456 or "256MB"."""
    if isinstance(capacity, str):
        found = parse_amount(capacity)
        if found is None or found[1] or found[0].denominator != 1:
            raise InvalidInput(f"capacity must be {ALLOWED_AMOUNTS}, not {capacity!r}")
        return int(found[0])
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
        raise InvalidInput(f"capacity must be a number of bytes, or text such as '256MB', not {capacity!r}")
    return capacity


def checked_ttl(ttl: float | None) -> float | None:
    """Seconds, or None."""
    if ttl is not None and (isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not 0 < ttl <= 1e12):
        raise InvalidInput(f"ttl must be seconds, more than 0, or None, not {ttl!r}")
    return ttl


def checked_digest(key: str | bytes | None) -> bytes | None:
    """The digest of a key, from its hex."""
    try:
        digest = bytes.fromhex(key) if isinstance(key, str) else key
    except ValueError:
        digest = b""
    if digest is not None and (not isinstance(digest, bytes) or len(digest) != KEY_BYTES):
        raise InvalidInput(f"a key is {2 * KEY_BYTES} hex digits, as in Answer.key, not {str(key)[:80]!r}")
    return digest


def checked_counts(counts: Mapping[str, int]) -> dict[bytes, int]:
    """Requests by digest, from those by its hex."""
    found: dict[bytes, int] = {}
    for key, times in counts.items():
        if isinstance(times, bool) or not isinstance(times, int) or times < 0:
            raise InvalidInput(f"counts must be whole numbers and not negative, not {times!r}")
        found[checked_digest(key) or b""] = times
    return found


def seal_secret(secret: bytes | None) -> bytes:
    """The secret of the seals. Seals and keys do not share one: what is learned of one tells nothing of the other."""
    return hashlib.blake2b(b"seals", key=secret).digest() if secret else b""


def checked_shadows(shadows: Any) -> tuple[str, ...]:
    """Names of policies; a text is a sequence of letters, and surely not meant as such."""
    if not isinstance(shadows, (tuple, list)):
        raise InvalidInput(f"shadows must be a tuple of policies, such as ('lru', 'adaptive@2x'), not {shadows!r}")
    for shadow in shadows:
        named(shadow)
    return tuple(shadows)


def check_parts(path: Any, rules: Any, clock: Any, ids: Any) -> None:
    """What would otherwise fail deep within, or at the first request."""
    if path is not None and not (isinstance(path, (str, os.PathLike)) and isinstance(os.fspath(path), str)):
        raise InvalidInput(f"path must be text or a pathlib.Path, not {path!r}")
    if rules is not None and not isinstance(rules, Rules):
        raise InvalidInput(f"rules must be knapcache.keys.Rules, or None, not {rules!r}")
    if not callable(clock):
        raise InvalidInput(f"clock must be a function that returns Unix time, not {clock!r}")
    if ids is not None and (isinstance(ids, bool) or not isinstance(ids, int) or ids < 1):
        raise InvalidInput(f"ids must be a number of keys, 1 at least, or None, not {ids!r}")


def open_store(
    path: str | os.PathLike[str] | None,
    size_limit: int,
    secret: bytes | None,
    clock: Clock,
    synchronous: str = "normal",
) -> Store:
    """Open the store at a path or URL; None is memory."""
    options = StoreOptions(size_limit=size_limit, secret=seal_secret(secret), clock=clock, synchronous=synchronous)
    return registry.open_store("memory:" if path is None else path, options)
