"""Look into a store's file from outside the cache, with or without an owner process.

Used by the commands `inspect`, `purge` and `why`. `entries.py` defines value, density and the least value.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from knapcache.cache.entries import MB, columns, least_value, purge_preview, read_entries, rows_of
from knapcache.cache.options import seal_secret
from knapcache.cache.outlines import OtherRequest, OutlineIndex
from knapcache.cache.roles import stored_request
from knapcache.cache.snapshot import read_snapshot
from knapcache.errors import InvalidInput, StoreError
from knapcache.keys.difference import distance
from knapcache.keys.outline import read_canonical
from knapcache.store.base import Clock, Store, wall_clock
from knapcache.store.sqlite.database import has_other_secret
from knapcache.store.sqlite.files import require_own_files
from knapcache.store.sqlite.store import SqliteStore, is_open_here

COLUMNS = ("size", "cost", "usd", "requests", "per_day", "value", "age", "expires_in")


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
        "least_value_per_mb": MB * least_value(value, table.sizes),
        "policy": snapshot.name if snapshot else None,
        "capacity": snapshot.policy.capacity if snapshot else None,
        "rows": rows_of(table, {name: found[name] for name in COLUMNS}, order),
    }


def preview_purge(store: Store, clock: Clock = wall_clock, **conditions: Any) -> dict[str, Any]:
    """Return what a purge of a store would remove (`entries.purge_preview`): `key`, `model`, `tenant`, `older_than`."""
    table = read_entries(store, read_snapshot(store.load_snapshot() or b""))
    return purge_preview(table, clock(), **conditions)


def nearest_entry(store: Store, requests: Sequence[bytes], clock: Clock = wall_clock) -> dict[str, Any]:
    """Return the entry whose body is nearest to one of the canonical requests.

    `row` is None if no entry is similar; `stored`: the bodies are equal; `differences`: otherwise; `entries`: of all.
    """
    table = read_entries(store, read_snapshot(store.load_snapshot() or b""))
    outlines = OutlineIndex(limit=max(1, len(table.keys)), seconds=math.inf, sleep=lambda _: None)
    outlines.read(table, store.peek)
    others = [
        OtherRequest(key, created, partial(stored_request, store, key))
        for key, created in zip(table.keys, table.records["created"].tolist(), strict=True)
    ]
    found = [
        nearest
        for request in map(read_canonical, requests)
        if request is not None
        and (nearest := outlines.nearest(request, others, bodies=True)) is not None
        and nearest.similar
    ]
    if not found:
        return {"stored": False, "row": None, "differences": [], "entries": len(table.keys)}
    best = min(found, key=lambda nearest: distance(nearest.differences))
    (row,) = rows_of(table, columns(table, clock()), [table.keys.index(best.key)])
    differences = [each._asdict() for each in best.differences]
    row["endpoint"] = best.request.kind
    return {"stored": not differences, "row": row, "differences": differences, "entries": len(table.keys)}
