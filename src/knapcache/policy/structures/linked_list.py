"""Doubly linked lists that live in two columns of `rows`: `older` and `newer` point from id to id.

A row behind those of the ids, which no request has, is a list's fixed point: its `newer` is the oldest member, its
`older` the newest. List k has the k-th row from the end, so a policy with one list need not say which, and one with
more sets `spare` to their number. An id is in one list at a time.
"""

from __future__ import annotations

from knapcache.errors import CorruptState
from knapcache.kernel import Records, inlined

LINK_ROW = [("older", "u4"), ("newer", "u4")]  # ids are at most 2^31: narrow rows, fewer cache lines


@inlined
def clear(rows: Records, k: int = 1) -> None:
    """Empty list k."""
    end = len(rows) - k
    rows[end].older = end
    rows[end].newer = end


@inlined
def push(rows: Records, i: int, k: int = 1) -> None:
    """Make i the newest of list k."""
    end = len(rows) - k
    before = rows[end].older
    rows[i].older = before
    rows[i].newer = end
    rows[before].newer = i
    rows[end].older = i


@inlined
def unlink(rows: Records, i: int) -> None:
    """Take i out of its list."""
    rows[rows[i].older].newer = rows[i].newer
    rows[rows[i].newer].older = rows[i].older


@inlined
def oldest(rows: Records, k: int = 1) -> int:
    """The oldest member of list k; the fixed point itself when the list is empty."""
    return int(rows[len(rows) - k].newer)


def linked_ids(rows: Records, k: int = 1) -> list[int]:
    """All members from old to new; raises CorruptState when the links do not agree."""
    end = len(rows) - k
    found: list[int] = []
    i = int(rows["newer"][end])
    while i != end and len(found) <= end:
        if rows["older"][rows["newer"][i]] != i:
            raise CorruptState(f"the links around id {i} do not agree")
        found.append(i)
        i = int(rows["newer"][i])
    return found
