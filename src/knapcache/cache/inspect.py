"""A look into a file of answers from outside, while its owner goes on or without one.

    value(q)   = requests · cost        what answering q has cost, and what keeping it has saved of that
    density(q) = value(q) / size(q)
    λ          = what the last room is worth: the price of more (listing.py)

Requests are those that the policy has counted, as of its last snapshot; 1 where it has none.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from knapcache.cache.entries import MB, price_of_room
from knapcache.cache.entry_index import EntryTable, entry_table, requests_at
from knapcache.cache.options import seal_secret
from knapcache.cache.snapshot import Known, read
from knapcache.errors import InvalidInput, StoreError
from knapcache.store.base import Clock, EntryInfo, Store, wall_clock
from knapcache.store.sqlite.database import has_other_secret
from knapcache.store.sqlite.store import SqliteStore


def existing(path: str | os.PathLike[str]) -> Path:
    """A file that is there: looking must not make one."""
    found = Path(path)
    if not found.is_file():
        raise InvalidInput(f"{found}: no such file")
    return found


def open_to_read(path: str | os.PathLike[str], secret: bytes | None = None) -> SqliteStore:
    """The store, for reading only, whoever owns it."""
    found = existing(path)
    return SqliteStore.open_file(found, own=False, secret=seals_of(found, secret))


def open_to_write(path: str | os.PathLike[str], secret: bytes | None = None) -> SqliteStore:
    """The store as its owner; NotOwner while there is another."""
    found = existing(path)
    return SqliteStore.open_file(found, own=True, secret=seals_of(found, secret))


def seals_of(path: Path, secret: bytes | None) -> bytes:
    """The secret of a file's seals, from that of its cache, as it is or in hex, as the proxy writes its own down."""
    forms = [secret]
    if secret is not None and len(secret) % 2 == 0 and re.fullmatch(rb"[0-9a-f]{32,128}", secret):
        forms.append(bytes.fromhex(secret.decode()))
    for seals in map(seal_secret, forms):
        if not has_other_secret(path, seals):
            return seals
    given = "a secret, and none was given" if secret is None else "another secret than the one given"
    raise StoreError(f"{path} was written under {given}")


def look(store: SqliteStore, clock: Clock = wall_clock) -> dict[str, Any]:
    """Totals, and a row for every entry, of the greatest value first."""
    now = clock()
    known = read(store.load_snapshot() or b"")
    counted = _counted(known)
    rows = [_row(head, counted.get(head.key, 1.0), now) for head in store.scan()]
    rows.sort(key=lambda row: (-row["value"], row["key"]))
    size = sum(row["size"] for row in rows)
    return {
        "entries": len(rows),
        "bytes": size,
        "disk_bytes": store.disk_bytes(),
        "cost": sum(row["cost"] for row in rows),
        "value": sum(row["value"] for row in rows),
        "price_per_mb": MB
        * price_of_room(np.array([row["value"] for row in rows]), np.array([row["size"] for row in rows], np.int64)),
        "policy": known.name if known else None,
        "capacity": known.policy.capacity if known else None,
        "rows": rows,
    }


def read_entries(store: Store) -> EntryTable:
    """All that lies in a store that another process owns, with the requests of its last snapshot."""
    return entry_table(list(store.scan()), _counted(read(store.load_snapshot() or b"")))


def _counted(known: Known | None) -> dict[bytes, float]:
    """Requests by key."""
    return {} if known is None else dict(zip(known.keys, requests_at(known.policy, slice(None)).tolist(), strict=False))


def _row(head: EntryInfo, requests: float, now: float) -> dict[str, Any]:
    age = max(0.0, now - head.created)
    return {
        "key": head.key.hex(),
        "model": head.model,
        "tenant": head.tenant,
        "size": head.size,
        "cost": head.cost,
        "requests": requests,
        "per_day": requests * 86400.0 / max(age, 1.0),
        "value": requests * head.cost,
        "age": age,
        "expires_in": None if head.expires is None else head.expires - now,
    }
