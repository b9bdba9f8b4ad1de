"""Several linked lists with a total size each, for policies that move answers between queues and ghost lists.

`list_number` is the list of an id. The sentinel of a list (see linked_list.py) keeps the list's total in its own
`entry_size`.

    Invariant: rows[len − k].entry_size = Σ rows[i].entry_size over the ids with rows[i].list_number = k.

A ghost is an id in a list that is not resident. Its `entry_size` is that of the evicted answer.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from knapcache.errors import CorruptState
from knapcache.kernel import Records, inlined
from knapcache.policy.structures.linked_list import LINK_ROW, clear, linked_ids, push, unlink

LISTS_ROW = [*LINK_ROW, ("list_number", "u4")]  # the list of the id, 0 for none


@inlined
def list_add(rows: Records, i: int, k: int) -> None:
    """Append i, which is in no list, to list k. Its entry_size must be set."""
    push(rows, i, k)
    rows[i].list_number = k
    rows[len(rows) - k].entry_size += rows[i].entry_size


@inlined
def list_remove(rows: Records, i: int) -> None:
    """Remove i from its list."""
    unlink(rows, i)
    rows[len(rows) - rows[i].list_number].entry_size -= rows[i].entry_size
    rows[i].list_number = 0


@inlined
def list_size(rows: Records, k: int) -> int:
    """Return the total size of list k."""
    return int(rows[len(rows) - k].entry_size)


def clear_lists(rows: Records, count: int) -> None:
    """Empty lists 1 … count."""
    for k in range(1, count + 1):
        clear(rows, k)


def check_lists(rows: Records, count: int, resident: Iterable[int]) -> None:
    """Raise CorruptState unless links and totals are consistent and the lists in `resident` hold the residents."""
    kept: list[int] = []
    for k in range(1, count + 1):
        found = linked_ids(rows, k)
        if sorted(found) != np.flatnonzero(rows["list_number"] == k).tolist():
            raise CorruptState(f"list {k} differs from the ids with list_number {k}")
        if rows["entry_size"][found].sum() != rows["entry_size"][len(rows) - k]:
            raise CorruptState(f"list {k}: the total is not the sum of the sizes")
        kept += found if k in resident else []
    if sorted(kept) != np.flatnonzero(rows["resident"]).tolist():
        raise CorruptState("the lists and the residents differ")
