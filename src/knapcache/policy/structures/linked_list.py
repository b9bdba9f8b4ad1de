"""Doubly linked lists of ids stored in two columns of `rows`: `older` and `newer` point from id to id.

Each list has a sentinel: a spare row after those of the ids. Its `newer` is the oldest id of the list, its `older`
the newest. The sentinel of list k is the k-th row from the end. A policy with one list can omit k; one with more
lists sets `spare` to their number. An id is in one list at a time.
"""

from __future__ import annotations

from knapcache.errors import CorruptState
from knapcache.kernel import Records, inlined

LINK_ROW = [("older", "u4"), ("newer", "u4")]  # ids are at most 2^31: narrow rows, fewer cache lines


def clear(rows: Records, k: int = 1) -> None:
    """Empty list k. No kernel: it is called once, when a policy is built."""
    end = len(rows) - k
    rows["older"][end] = rows["newer"][end] = end


@inlined
def push(rows: Records, i: int, k: int = 1) -> None:
    """Append i to list k as its newest id."""
    end = len(rows) - k
    before = rows[end].older
    rows[i].older = before
    rows[i].newer = end
    rows[before].newer = i
    rows[end].older = i


@inlined
def unlink(rows: Records, i: int) -> None:
    """Remove i from its list."""
    rows[rows[i].older].newer = rows[i].newer
    rows[rows[i].newer].older = rows[i].older


@inlined
def oldest(rows: Records, k: int = 1) -> int:
    """Return the oldest id of list k, or the sentinel if the list is empty."""
    return int(rows[len(rows) - k].newer)


def linked_ids(rows: Records, k: int = 1) -> list[int]:
    """Return the ids of list k from old to new; raise CorruptState if the links are inconsistent."""
    end = len(rows) - k
    found: list[int] = []
    i = int(rows["newer"][end])
    while i != end and len(found) <= end:
        if rows["older"][rows["newer"][i]] != i:
            raise CorruptState(f"the links of id {i} are inconsistent")
        found.append(i)
        i = int(rows["newer"][i])
    return found
