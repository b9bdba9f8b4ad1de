"""Look into a store's file from outside the cache, with or without an owner process.

Used by `knapcache inspect` and `knapcache purge`. `entries.py` defines value, density and the price of capacity.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from knapcache.cache.entries import MB, columns, price_of_capacity, read_entries, rows_of
from knapcache.cache.options import seal_secret
from knapcache.cache.snapshot import read_snapshot
from knapcache.errors import InvalidInput, StoreError
from knapcache.store.base import Clock, Store, wall_clock
from knapcache.store.sqlite.database import has_other_secret
from knapcache.store.sqlite.files import require_own_files
from knapcache.store.sqlite.store import SqliteStore, is_open_here

COLUMNS = ("size", "cost", "requests", "per_day", "value", "age", "expires_in")


def existing(path: str | os.PathLike[str]) -> Path:
    """Return the path of a cache file that exists: looking must not create one, nor touch another program's."""
    found = Path(path)
    if not found.is_file():
        raise InvalidInput(f"{found}: no such file")
    if not is_open_here(found):
        require_own_files(found)
    return found


def open_to_read(path: str | os.PathLike[str], secret: bytes | None = None, keys: Sequence[bytes] = ()) -> SqliteStore:
    """Open the store as a reader. `keys`: those that it is encrypted with."""
    found = existing(path)
    return SqliteStore.open_file(found, own=False, secret=seal_secret_of(found, secret), encryption_keys=keys)


def open_to_write(path: str | os.PathLike[str], secret: bytes | None = None, keys: Sequence[bytes] = ()) -> SqliteStore:
    """Open the store as its owner; NotOwner while another process owns it."""
    found = existing(path)
    return SqliteStore.open_file(found, own=True, secret=seal_secret_of(found, secret), encryption_keys=keys)


def seal_secret_of(path: Path, secret: bytes | None) -> bytes:
    """Return the secret of a file's seals, from the secret of its cache: raw, or in hex as the proxy saves its own."""
    forms = [secret]
    if secret is not None and len(secret) % 2 == 0 and re.fullmatch(rb"[0-9a-f]{32,128}", secret):
        forms.append(bytes.fromhex(secret.decode()))
    for seals in map(seal_secret, forms):
        if not has_other_secret(path, seals):
            return seals
    problem = "a secret, and none was given" if secret is None else "another secret than the one given"
    raise StoreError(f"{path} was written under {problem}")


def inspect_store(store: Store, clock: Clock = wall_clock) -> dict[str, Any]:
    """Return totals, and a row for every entry, sorted by value."""
    snapshot = read_snapshot(store.load_snapshot() or b"")
    table = read_entries(store, snapshot)
    found = columns(table, clock())
    value, keys = found["value"], table.keys
    order = sorted(range(len(keys)), key=lambda k: (-value[k], keys[k]))
    return {
        "entries": len(keys),
        "bytes": int(table.sizes.sum()),
        "disk_bytes": store.disk_bytes(),
        "cost": float(found["cost"].sum()),
        "value": float(value.sum()),
        "price_per_mb": MB * price_of_capacity(value, table.sizes),
        "policy": snapshot.name if snapshot else None,
        "capacity": snapshot.policy.capacity if snapshot else None,
        "rows": rows_of(table, {name: found[name] for name in COLUMNS}, order),
    }
