"""What is kept, as people look at it: a page of rows, sorted, and the price of room.

    value(q)   = requests · cost        what answering q has cost, and what keeping it has saved of that
    density(q) = value(q) / size(q)
    λ          = density of the least dense tenth of what is kept, or of its last megabyte where that is less: what the
                 last room is worth, and so the price of more, to first order. The very least would be a single answer,
                 as a rule one that has just come in and had no time to earn anything
    per day    = requests · 86,400 / age

Requests are those that the policy has counted. All of it is arithmetic over columns; only the rows of the page become
objects.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from knapcache.cache.entry_index import EntryTable
from knapcache.errors import InvalidInput

MB = 10**6
MOST_ROWS = 1000
SORTS = ("value", "density", "size", "cost", "usd", "seconds", "requests", "per_day", "age", "expires_in")
"""Columns that rows can be sorted by."""

Column = npt.NDArray[Any]


def columns(kept: EntryTable, now: float) -> dict[str, Column]:
    """Every number of every row. NaN: unknown; ∞: never."""
    age = np.maximum(0.0, now - kept.records["created"])
    value = kept.requests * kept.records["cost"]
    return {
        "size": kept.room,
        "cost": kept.records["cost"],
        "usd": kept.records["usd"],
        "seconds": kept.records["seconds"],
        "requests": kept.requests,
        "per_day": kept.requests * 86400.0 / np.maximum(age, 1.0),
        "value": value,
        "density": value / np.maximum(kept.room, 1),
        "age": age,
        "expires_in": kept.records["expires"] - now,
    }


def rows_of(kept: EntryTable, found: dict[str, Column], places: list[int]) -> list[dict[str, Any]]:
    """These rows, as JSON has them."""
    models, tenants = kept.records["model"], kept.records["tenant"]
    return [
        {
            "key": kept.keys[k].hex(),
            "model": kept.models[models[k]],
            "tenant": kept.tenants[tenants[k]],
            **{name: number if np.isfinite(number := column[k].item()) else None for name, column in found.items()},
        }
        for k in places
    ]


def page(
    kept: EntryTable,
    now: float,
    *,
    search: str = "",
    model: str | None = None,
    tenant: str | None = None,
    sort: str = "value",
    descending: bool = True,
    offset: int = 0,
    limit: int = 50,
) -> dict[str, Any]:
    """Rows that meet every condition, from `offset` on, at most `limit`; how many meet them; the price of a megabyte,
    and the bytes of each tenant, of all that is kept.

    search      in the key's hex, the model or the tenant, whatever its case
    """
    if sort not in SORTS:
        raise InvalidInput(f"sort must be one of {', '.join(SORTS)}, not {sort!r}")
    offset, limit = counted("offset", offset), min(counted("limit", limit), MOST_ROWS)
    found = columns(kept, now)
    there = found["expires_in"] > 0.0
    price = price_of_room(found["value"][there], kept.room[there])
    sizes = np.bincount(kept.records["tenant"][there], kept.room[there], len(kept.tenants))
    for wanted, texts, numbers in (
        (model, kept.models, kept.records["model"]),
        (tenant, kept.tenants, kept.records["tenant"]),
    ):
        if wanted is not None:
            there &= np.isin(numbers, [k for k, text in enumerate(texts) if text == wanted])
    if search:
        there &= matching(kept, search.lower())
    places = np.flatnonzero(there)
    keys = np.nan_to_num(found[sort][places], nan=-1.0)  # what nobody knows stands where nothing would
    order = np.argsort(-keys if descending else keys, kind="stable")[offset : offset + limit]
    return {
        "total": len(places),
        "rows": rows_of(kept, found, places[order].tolist()),
        "price_per_mb": MB * price,
        "tenants": {tenant: int(size) for tenant, size in zip(kept.tenants, sizes.tolist(), strict=True) if size},
    }


def price_of_room(values: Column, sizes: Column) -> float:
    """λ: of the least dense answers that together take a tenth of the room, or a megabyte."""
    if not len(values):
        return 0.0
    order = np.argsort(values / np.maximum(sizes, 1), kind="stable")
    filled = np.cumsum(sizes[order])
    last = int(np.searchsorted(filled, min(MB, filled[-1] / 10)))
    return float(values[order[: last + 1]].sum() / max(1, filled[last]))


def matching(kept: EntryTable, search: str) -> npt.NDArray[np.bool_]:
    """Where a text in lower case occurs."""
    found = np.array([search in key.hex() for key in kept.keys], np.bool_)
    for texts, numbers in ((kept.models, kept.records["model"]), (kept.tenants, kept.records["tenant"])):
        found |= np.isin(numbers, [k for k, text in enumerate(texts) if search in text.lower()])
    return found


def counted(what: str, value: Any) -> int:
    """A whole number that is not negative, or InvalidInput."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise InvalidInput(f"{what} must be a whole number and not negative, not {value!r}")
    return number
