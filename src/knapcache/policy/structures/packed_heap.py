"""The heap of heap.py with its positions packed in spare rows.

In columns of `rows` two neighbouring positions are a whole row apart, 88 bytes with GDSF. Packed, they are next to each
other: the priorities of the four children of a position share a cache line. With 10^6 keys, of which 200,000 are
resident, the priorities take 1.6 MB instead of 18 MB. A move down the heap waits for one line per level; the others
(tiebreak, id) are not needed to find the next level.

    rows[i].priority, tiebreak, heap_slot    as in heap.py
    spare rows, from byte 8 · head.heap_at of `rows`, n = head.heap_slots:
        n float64   priority at each position
        n int64     tiebreak at each position
        n uint32    id at each position

The root is at index 3, so that the children of each position begin at a multiple of 4. A spare row that holds positions
has no valid fields. Copies of `rows` must copy every byte, so the fields of a row leave no padding.

For priorities that rarely tie. Under LFU, where ties are the common case, it was no faster than heap.py. Rejected:
eight children per position. That heap has two thirds of the levels and makes a half more comparisons; it was no faster.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.kernel import Records, as_floats, as_halves, as_ints, inlined
from knapcache.policy.base import HEAD, ROW, Policy
from knapcache.policy.structures.heap import check_slots, make_heap

PACKED_HEAP_HEAD = [("heap_size", "i8"), ("heap_at", "i8"), ("heap_slots", "i8")]
PACKED_HEAP_ROW = [("filler", "(3,)u1"), ("heap_slot", "u4"), ("priority", "f8"), ("tiebreak", "i8")]
"""The filler ends at a multiple of 4: NumPy does not copy padding, and positions may be stored there."""
ROOT, LINE = 3, 64


@inlined
def slot_key(head: Records, rows: Records, k: int) -> tuple[float, int]:
    at = head[0].heap_at + ROOT + k
    return as_floats(rows)[at], as_ints(rows)[at + head[0].heap_slots]


@inlined
def slot_id(head: Records, rows: Records, k: int) -> int:
    return as_halves(rows)[2 * (head[0].heap_at + 2 * head[0].heap_slots) + ROOT + k]  # type: ignore[no-any-return]


@inlined
def set_slot(head: Records, rows: Records, i: int, k: int, priority: float, tiebreak: int) -> None:
    at, n = head[0].heap_at, head[0].heap_slots
    as_floats(rows)[at + ROOT + k] = priority
    as_ints(rows)[at + n + ROOT + k] = tiebreak
    as_halves(rows)[2 * (at + 2 * n) + ROOT + k] = i
    rows[i].heap_slot = k


@inlined
def lesser(head: Records, rows: Records, a: int, b: int) -> int:
    """Return which of two positions leaves first. Reads the tiebreaks only if the priorities are equal."""
    priorities, at = as_floats(rows), head[0].heap_at + ROOT
    one, other = priorities[at + a], priorities[at + b]
    before = other < one
    if one == other:
        tiebreaks = as_ints(rows)
        before = tiebreaks[at + head[0].heap_slots + b] < tiebreaks[at + head[0].heap_slots + a]
    return a + (b - a) * int(before)


@inlined
def least_child(head: Records, rows: Records, first: int) -> int:
    a = lesser(head, rows, first, first + 1)
    b = lesser(head, rows, first + 2, first + 3)
    return int(lesser(head, rows, a, b))


heap_add, heap_remove, heap_top, heap_rebuild, evict_until_fits, heap_release = make_heap(
    slot_key, slot_id, set_slot, least_child
)


class PackedHeapPolicy(Policy):
    """Base of policies that keep their residents in the packed heap and evict from its top."""

    head_fields: ClassVar = [*HEAD, *PACKED_HEAP_HEAD]
    row_fields: ClassVar = [*ROW, *PACKED_HEAP_ROW]
    release_kernel = heap_release

    def __init__(self, capacity: int, ids: int) -> None:
        super().__init__(capacity, ids)
        row = self.rows.dtype
        if sum(row[name].itemsize for name in row.names) != row.itemsize:
            raise InvalidInput(f"the fields of a row must leave no padding between them, not {row.descr}")
        self.head["heap_slots"] = self._slots(ids)
        self.head["heap_at"] = -(-self.ids * self.rows.itemsize // LINE) * LINE // 8

    def spare_rows(self, ids: int, row_bytes: int) -> int:
        return super().spare_rows(ids, row_bytes) + -(-(LINE + 20 * self._slots(ids)) // row_bytes)

    @staticmethod
    def _slots(ids: int) -> int:
        """Return the number of positions, with those before the root, rounded up to a whole cache line."""
        return -(-(ids + ROOT) // LINE) * LINE

    def check(self) -> None:
        super().check()
        size, at, n = (int(self.head[field][0]) for field in ("heap_size", "heap_at", "heap_slots"))
        content = np.asarray(self.rows).view(np.uint8)
        priorities, tiebreaks, ids = (
            content[8 * first :].view(kind)[ROOT : ROOT + size]
            for first, kind in ((at, np.float64), (at + n, np.int64), (at + 2 * n, np.uint32))
        )
        check_slots(self.rows[: self.ids], ids, priorities, tiebreaks)
