"""Reduce a state of `adaptive` to fewer ids, for a snapshot of limited size.

The result is a valid state: `check` passes, and a policy restored from it decides by the same estimates. What is lost
are the ids left out, residents or not, and the contents of the shadow caches, which take a megabyte and fill
again. The losses of the experts, which determine the leader, are kept.

    rows     those of the ids kept, unchanged; none is in a shadow
    heap     residents sorted by (priority, tiebreak): a sorted array is a heap
    head     unchanged, with empty shadows and `used` recomputed
"""

from __future__ import annotations

import numpy as np

from knapcache.kernel import Records
from knapcache.policy.base import CompactState

CLEARED_FIELDS = (
    "slots_used",
    "free_slots",
    "slot_id",
    "slot_refs",
    "slot_class",
    "slot_time",
    "slot_exposed",
    "slot_bucket",
    "shadow_used",
    "shadow_count",
    "shadow_key",
    "shadow_slot",
    "shadow_position",
    "slot_key",
    "shadow_size",
    "index",  # computed again from the totals
    "index_updates",
    "index_due",
)


def compacted(head: Records, rows: Records, limit: int) -> CompactState:
    """Reduce a state to at most `limit` ids: residents first, then the most recently requested ones."""
    kept = np.lexsort((-rows["last"], ~rows["resident"]))[:limit]
    head, rows = head.copy(), rows[kept]
    for field in CLEARED_FIELDS:
        head[field] = 0
    head["hand"] = 0
    rows["shadow"] = 0
    for field in ("victim", "heap_id", "heap_slot", "heap_priority", "heap_tiebreak"):
        rows[field] = 0
    residents = np.flatnonzero(rows["resident"])
    order = residents[np.lexsort((rows["tiebreak"][residents], rows["priority"][residents]))]
    n = len(order)
    rows["heap_id"][:n], rows["heap_priority"][:n], rows["heap_tiebreak"][:n] = (
        order,
        rows["priority"][order],
        rows["tiebreak"][order],
    )
    rows["heap_slot"][order] = np.arange(n)
    head["heap_size"], head["used"] = n, rows["entry_size"][residents].sum()
    return CompactState(head, rows, kept)
