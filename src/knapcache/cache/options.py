"""The arguments of a cache: checks, and the store that they name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from knapcache.cache.shadow import parse_shadow
from knapcache.errors import InvalidInput
from knapcache.keys import Rules
from knapcache.store import registry
from knapcache.store.base import KEY_BYTES, Clock, Store, StoreOptions
from knapcache.store.encryption import checked_keys
from knapcache.units import ALLOWED_AMOUNTS, parse_bytes

DEFAULT_CAPACITY = "256MB"
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


def checked_shadows(shadows: Any) -> tuple[str, ...]:
    """Return the names of the shadows. A str is rejected: it would be a sequence of letters."""
    if not isinstance(shadows, (tuple, list)):
        raise InvalidInput(f"shadows must be a tuple of policies, such as ('lru', 'adaptive@2x'), not {shadows!r}")
    for shadow in shadows:
        parse_shadow(shadow)
    return tuple(shadows)


def check_types(path: Any, rules: Any, clock: Any, ids: Any) -> None:
    """Raise InvalidInput for arguments that would otherwise fail at the first request."""
    if path is not None and not (isinstance(path, (str, os.PathLike)) and isinstance(os.fspath(path), str)):
        raise InvalidInput(f"path must be text or a pathlib.Path, not {path!r}")
    if rules is not None and not isinstance(rules, Rules):
        raise InvalidInput(f"rules must be knapcache.keys.Rules, or None, not {rules!r}")
    if not callable(clock):
        raise InvalidInput(f"clock must be a function that returns Unix time, not {clock!r}")
    if ids is not None and (isinstance(ids, bool) or not isinstance(ids, int) or ids < 1):
        raise InvalidInput(f"ids must be a number of keys, at least 1, or None, not {ids!r}")


def seal_secret(secret: bytes | None) -> bytes:
    """Return the secret of the store's seals. It differs from that of the keys: one does not reveal the other."""
    return hashlib.blake2b(b"seals", key=secret).digest() if secret else b""


def open_store(
    store: Store | None,
    path: str | os.PathLike[str] | None,
    capacity: int | str | None,
    secret: bytes | None,
    clock: Clock,
    synchronous: str = "normal",
    *,
    encryption_key: EncryptionKey = None,
    exclusive: bool = False,
) -> Store:
    """Return the given store, or open one: as its owner, or as a reader while another process owns it."""
    if store is not None:
        if path is not None or capacity is not None:
            name = "capacity" if path is None else "path"
            raise InvalidInput(f"store and {name} cannot be combined: a store has its own place and capacity")
        if encryption_key is not None:
            raise InvalidInput("store and encryption_key cannot be combined: give the key to the store")
        return store
    keys = checked_keys(encryption_key)
    if keys and (path is None or registry.split_url(path)[0] == "memory"):
        raise InvalidInput("encryption_key needs a path: a cache in memory writes nothing")
    options = StoreOptions(
        size_limit=checked_capacity(DEFAULT_CAPACITY if capacity is None else capacity),
        secret=seal_secret(secret),
        clock=clock,
        synchronous=synchronous,
        encryption_keys=keys,
        exclusive=exclusive,
    )
    return registry.open_store("memory:" if path is None else path, options)
