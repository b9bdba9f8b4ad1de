"""Several linked lists with a total each: for policies that move answers between queues, some of them ghosts.

Every id knows its list, and the fixed point of a list (see queue.py) keeps the list's total size in its own `room`.

    Invariant: rows[len − k].entry_size = Σ rows[i].entry_size over the ids with rows[i].home = k.

A ghost is an id whose answer has gone: it stands in a list and is not resident. Its `room` is that of the answer it
had.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from knapcache.errors import CorruptState
from knapcache.kernel import Records, inlined
from knapcache.policy.structures.linked_list import LINK_ROW, clear, linked_ids, push, unlink

LISTS_ROW = [*LINK_ROW, ("list_number", "i8")]  # home: the list that the id is in, 0 for none


@inlined
def list_add(rows: Records, i: int, k: int) -> None:
    """Make i, which is in no list, the newest of list k. Its room is known."""
    push(rows, i, k)
    rows[i].list_number = k
    rows[len(rows) - k].entry_size += rows[i].entry_size


@inlined
def list_remove(rows: Records, i: int) -> None:
    """Take i out of the list it is in."""
    unlink(rows, i)
    rows[len(rows) - rows[i].list_number].entry_size -= rows[i].entry_size
    rows[i].list_number = 0


@inlined
def list_size(rows: Records, k: int) -> int:
    """Σ room of the members of list k."""
    return int(rows[len(rows) - k].entry_size)


def clear_lists(rows: Records, count: int) -> None:
    """Empty lists 1 … count."""
    for k in range(1, count + 1):
        clear(rows, k)


def check_lists(rows: Records, count: int, resident: Iterable[int]) -> None:
    """Members, homes and totals agree, and the lists named in `resident` hold the residents."""
    kept: list[int] = []
    for k in range(1, count + 1):
        found = linked_ids(rows, k)
        if sorted(found) != np.flatnonzero(rows["list_number"] == k).tolist():
            raise CorruptState(f"list {k} does not hold the ids that say they are in it")
        if rows["entry_size"][found].sum() != rows["entry_size"][len(rows) - k]:
            raise CorruptState(f"list {k}: its total is not the sum of its members")
        kept += found if k in resident else []
    if sorted(kept) != np.flatnonzero(rows["resident"]).tolist():
        raise CorruptState("the lists and the residents differ")
