"""Entries as rows for people: sorted, searched, in pages, with the value of those that are evicted first.

    value(q)   = requests · cost        what the requests for q would have cost without the cache
    density(q) = value(q) / size(q)
    least      = value per byte of the least dense tenth of all entries, or of the last megabyte where that is less:
                 what the cache gives up first. The least dense entry alone would be a bad measure: usually it is new,
                 and was not requested again yet. It is not the price of capacity: while the cache is not full, more
                 capacity saves nothing, whatever its entries are worth
    per day    = requests · 86,400 / age, from a day and MIN_REQUESTS requests on: fewer say nothing about a day

Requests are those that the policy has counted. The arithmetic is over columns; only the rows of a page become objects.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from knapcache.cache.entry_index import EntryTable, entry_table
from knapcache.cache.key_array import KeyArray
from knapcache.cache.purging import PurgeConditions, model_filter
from knapcache.cache.snapshot import SnapshotContents
from knapcache.errors import InvalidInput, StoreError
from knapcache.store.base import Store

MB = 10**6
MAX_ROWS = 1000
DAY, MIN_REQUESTS = 86_400.0, 10.0
"""Age in seconds and requests of an entry from which on a rate is computed."""
PREVIEW_ROWS = 5
"""Rows that the preview of a purge shows."""
SORTS = ("value", "density", "size", "cost", "usd", "seconds", "requests", "per_day", "age", "expires_in")
"""Columns that rows can be sorted by."""

Column = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]


def read_entries(store: Store, snapshot: SnapshotContents | None) -> EntryTable:
    """Return the metadata of all entries in a store, with the request counts of the policy's last snapshot."""
    return entry_table(list(store.scan()), {} if snapshot is None else snapshot.requests())


def stored_request(store: Store, key: bytes) -> bytes | None:
    """Return the canonical request of an entry; None if there is none, or if the disk cannot be read."""
    try:
        entry = store.peek(key)
    except StoreError:
        return None
    return None if entry is None else entry.request


def columns(table: EntryTable, now: float) -> dict[str, Column]:
    """Return every number of every row. NaN: unknown; ∞: never."""
    age = np.maximum(0.0, now - table.records["created"])
    value = table.requests * table.records["cost"]
    return {
        "size": table.sizes,
        "cost": table.records["cost"],
        "usd": table.records["usd"],
        "seconds": table.records["seconds"],
        "requests": table.requests,
        "per_day": requests_per_day(table.requests, age),
        "value": value,
        "density": value / np.maximum(table.sizes, 1),
        "age": age,
        "expires_in": table.records["expires"] - now,
    }


def requests_per_day(requests: Column, age: Column) -> Column:
    """Return the requests per day of entries of these ages in seconds; NaN where they are too few or too new."""
    known = (age >= DAY) & (requests >= MIN_REQUESTS)
    return np.where(known, requests * DAY / np.maximum(age, DAY), np.nan)


def rows_of(table: EntryTable, found: dict[str, Column], positions: list[int]) -> list[dict[str, Any]]:
    """Return some rows as JSON objects; NaN and ∞ become None."""
    chosen = np.array(positions, np.int64)  # whole columns: an item of an array takes as long as ten of a list
    records = table.records.take(chosen)
    shown: dict[str, Iterable[Any]] = {
        "key": (key.hex() for key in KeyArray(table.keys.rows[chosen])),
        "model": (table.models[k] for k in records["model"].tolist()),
        "tenant": (table.tenants[k] for k in records["tenant"].tolist()),
        "tags": (list(filter(None, table.tag_sets[k].split(","))) for k in records["tags"].tolist()),
        "system": (f"{system:016x}" if system else "" for system in records["system"].tolist()),
    }
    for name, column in found.items():
        shown[name] = [number if math.isfinite(number) else None for number in column[chosen].tolist()]
    return [dict(zip(shown, row, strict=True)) for row in zip(*shown.values(), strict=True)]


def page(
    table: EntryTable,
    now: float,
    *,
    search: str = "",
    matching: Mask | None = None,
    model: str | None = None,
    tenant: str | None = None,
    tag: str | None = None,
    sort: str = "value",
    descending: bool = True,
    offset: int = 0,
    limit: int = 50,
) -> dict[str, Any]:
    """Return the rows that meet every condition, from `offset` on, at most `limit`, and how many meet them.

    The least value per megabyte and the bytes of each tenant are over all entries, whatever the conditions. `search`
    matches part of the key's hex, of the model, of the tenant or of a tag, in any case; entries in `matching` meet it,
    too. `tag` is one that an entry must have.
    """
    if sort not in SORTS:
        raise InvalidInput(f"sort must be one of {', '.join(SORTS)}, not {sort!r}")
    offset, limit = checked_count("offset", offset), min(checked_count("limit", limit), MAX_ROWS)
    found = columns(table, now)
    matches = found["expires_in"] > 0.0
    least = least_value(found["value"][matches], table.sizes[matches])
    sizes = np.bincount(table.records["tenant"][matches], table.sizes[matches], len(table.tenants))
    matches &= selected(table, model, tenant, None if tag is None else (tag,))
    if search:
        matches &= containing(table, search.lower()) | (False if matching is None else matching)
    positions = np.flatnonzero(matches)
    sort_keys = np.nan_to_num(found[sort][positions], nan=-1.0)  # unknown sorts below zero
    order = np.argsort(-sort_keys if descending else sort_keys, kind="stable")[offset : offset + limit]
    return {
        "total": len(positions),
        "rows": rows_of(table, found, positions[order].tolist()),
        "least_value_per_mb": MB * least,
        "tenants": {tenant: int(size) for tenant, size in zip(table.tenants, sizes.tolist(), strict=True) if size},
    }


def selected(table: EntryTable, model: str | None, tenant: str | None, tags: Collection[str] | None) -> Mask:
    """Return which entries are of a model and a tenant and have one of the tags, as a purge would select them."""
    matches = np.ones(len(table.keys), np.bool_)
    if model is not None:
        is_model = model_filter(model)
        matches &= np.isin(table.records["model"], [k for k, name in enumerate(table.models) if is_model(name)])
    if tenant is not None:
        matches &= np.isin(table.records["tenant"], [k for k, name in enumerate(table.tenants) if name == tenant])
    if tags is not None:
        having = [k for k, joined in enumerate(table.tag_sets) if not set(joined.split(",")).isdisjoint(tags)]
        matches &= np.isin(table.records["tags"], having)
    return matches


def purge_preview(table: EntryTable, now: float, conditions: PurgeConditions) -> dict[str, Any]:
    """Return what a purge with these conditions would remove: `entries`, `bytes`, `value`, and the first `rows`.

    The rows are the PREVIEW_ROWS of the highest value.
    """
    found = columns(table, now)
    matches = selected(table, conditions.model, conditions.tenant, conditions.tags)
    if conditions.key is not None:
        matches &= table.keys.equal(conditions.key)
    if conditions.older_than is not None:
        matches &= table.records["created"] < now - conditions.older_than
    if conditions.system is not None:
        bits = 64 - 4 * len(conditions.system)
        digests = table.records["system"]
        matches &= (digests != 0) & (digests >> np.uint64(bits) == int(conditions.system, 16))
    positions = np.flatnonzero(matches)
    value = found["value"][positions]
    first = positions[np.argsort(-value, kind="stable")[:PREVIEW_ROWS]]
    return {
        "entries": len(positions),
        "bytes": int(table.sizes[positions].sum()),
        "value": float(value.sum()),
        "rows": rows_of(table, found, first.tolist()),
    }


def least_value(values: Column, sizes: Column) -> float:
    """Return the value per byte of the least dense entries that fill a tenth of all bytes, or a megabyte."""
    if not len(values):
        return 0.0
    order = np.argsort(values / np.maximum(sizes, 1), kind="stable")
    filled = np.cumsum(sizes[order])
    last = int(np.searchsorted(filled, min(MB, filled[-1] / 10)))
    return float(values[order[: last + 1]].sum() / max(1, filled[last]))


def containing(table: EntryTable, search: str) -> Mask:
    """Return which entries contain a text, in lower case, in key, model, tenant or tags."""
    found = table.keys.containing(search)
    for names, numbers in (
        (table.models, table.records["model"]),
        (table.tenants, table.records["tenant"]),
        (table.tag_sets, table.records["tags"]),
    ):
        found |= np.isin(numbers, [k for k, name in enumerate(names) if search in name.lower()])
    return found


def checked_count(what: str, value: Any) -> int:
    """Return a whole number that is not negative, or raise InvalidInput."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise InvalidInput(f"{what} must be a whole number and not negative, not {value!r}")
    return number
