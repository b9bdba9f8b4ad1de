"""Look into a store from outside the cache, with or without an owner process (opening.py).

Used by the commands `inspect`, `purge` and `why`. `entries.py` defines value, density and the least value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from knapcache.cache.apply_queue import BATCH_KEYS
from knapcache.cache.entries import MB, columns, least_value, purge_preview, read_entries, rows_of, stored_request
from knapcache.cache.outlines import OtherRequests, OutlineIndex
from knapcache.cache.owner_requests import ask_purge
from knapcache.cache.purging import ALL, PurgeConditions
from knapcache.cache.snapshot import read_snapshot
from knapcache.keys.difference import distance
from knapcache.keys.outline import read_canonical
from knapcache.store.base import Store, clearable_store, network_store, wall_clock

COLUMNS = ("size", "cost", "usd", "requests", "per_day", "value", "age", "expires_in")


def inspect_store(store: Store) -> dict[str, Any]:
    """Return totals, and a row for every entry, sorted by value."""
    snapshot = read_snapshot(store.load_snapshot() or b"")
    table = read_entries(store, snapshot)
    found = columns(table, wall_clock())
    value = found["value"]
    order = np.lexsort((*table.keys.rows.view(">u8").T[::-1], -value)).tolist()  # by value, then by key
    return {
        "entries": len(value),
        "bytes": int(table.sizes.sum()),
        "disk_bytes": store.disk_bytes(),
        "cost": float(found["cost"].sum()),
        "value": float(value.sum()),
        "least_value_per_mb": MB * least_value(value, table.sizes),
        "policy": snapshot.name if snapshot else None,
        "capacity": snapshot.policy.capacity if snapshot else None,
        "rows": rows_of(table, {name: found[name] for name in COLUMNS}, order),
    }


def preview_purge(store: Store, conditions: PurgeConditions) -> dict[str, Any]:
    """Return what a purge of a store would remove (`entries.purge_preview`)."""
    table = read_entries(store, read_snapshot(store.load_snapshot() or b""))
    return purge_preview(table, wall_clock(), conditions)


def purge_store(store: Store, conditions: PurgeConditions) -> int:
    """Remove the entries that meet every condition. Return how many. NotOwner if no process can.

    In a store of many machines, its owner does it. Where no process is the owner, this one becomes it. Answers that
    wait for an owner's decision are removed if they meet the conditions. Others are admitted as far as they fit, and
    the next owner decides about them.
    """
    network = network_store(store)
    if network is not None and not store.own():
        return ask_purge(network, conditions)
    clearable = clearable_store(store)
    chosen = conditions.filter(wall_clock())
    for entry in store.collect():
        stored = store.get(entry.key)
        if not chosen(entry.info) and (stored is None or stored.created < entry.created):
            store.apply(entry)
    if conditions == ALL and clearable is not None:
        store.flush()
        removed = store.totals().entries
        clearable.clear().result()
        return removed
    keys = [info.key for info in filter(chosen, store.scan())]
    for k in range(0, len(keys), BATCH_KEYS):
        store.apply(evict=keys[k : k + BATCH_KEYS]).result()
    return len(keys)


def nearest_entry(store: Store, requests: Sequence[bytes]) -> dict[str, Any]:
    """Return the entry whose body is nearest to one of the canonical requests.

    `row` is None if no entry is similar; `stored`: the bodies are equal; `differences`: otherwise; `entries`: of all.
    """
    table = read_entries(store, read_snapshot(store.load_snapshot() or b""))
    outlines = OutlineIndex(limit=max(1, len(table.keys)), seconds=math.inf, sleep=lambda _: None)
    outlines.read(table, store.peek)
    others = OtherRequests(table.keys, table.records["created"], partial(stored_request, store))
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
    (row,) = rows_of(table, columns(table, wall_clock()), [table.keys.index(best.key)])
    differences = [each._asdict() for each in best.differences]
    row["endpoint"] = best.request.kind
    return {"stored": not differences, "row": row, "differences": differences, "entries": len(table.keys)}
