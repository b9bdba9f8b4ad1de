"""A doubly linked list that lives in two columns of `rows`: `older` and `newer` point from id to id.

The last row, whose id no request has, is the ring's fixed point: its `newer` is the oldest member, its `older`
the newest.
"""

from __future__ import annotations

from knapcache.errors import CorruptState
from knapcache.kernel import Records, kernel

QUEUE_ROW = [("older", "i8"), ("newer", "i8")]


@kernel
def clear(rows: Records) -> None:
    """Empty the list."""
    end = len(rows) - 1
    rows[end].older = end
    rows[end].newer = end


@kernel
def push(rows: Records, i: int) -> None:
    """Make i the newest."""
    end = len(rows) - 1
    before = rows[end].older
    rows[i].older = before
    rows[i].newer = end
    rows[before].newer = i
    rows[end].older = i


@kernel
def unlink(rows: Records, i: int) -> None:
    """Take i out."""
    rows[rows[i].older].newer = rows[i].newer
    rows[rows[i].newer].older = rows[i].older


@kernel
def oldest(rows: Records) -> int:
    """The oldest member; the fixed point itself when the list is empty."""
    return int(rows[len(rows) - 1].newer)


def members(rows: Records) -> list[int]:
    """All members from old to new; raises CorruptState when the links do not agree."""
    end = len(rows) - 1
    found: list[int] = []
    i = int(rows["newer"][end])
    while i != end and len(found) <= end:
        if rows["older"][rows["newer"][i]] != i:
            raise CorruptState(f"the links around id {i} do not agree")
        found.append(i)
        i = int(rows["newer"][i])
    return found
