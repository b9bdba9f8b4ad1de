"""A state of `adaptive` with fewer ids: what is known of some, under new numbers, and nothing of the others.

For a snapshot that has to fit into a given room. The result is a state like any other: `check` holds, and a policy that
goes on from it decides by the same estimates. Lost are the ids left out, residents among them or not, and the books of
the shadow caches, which are half a megabyte and fill up again; their losses, by which the leader is chosen, stay.

    rows     of the ids kept, as they were; none is in a shadow
    heap     residents sorted by (priority, turn): sorted is heap order
    head     as it was, with empty shadows, and `used` counted anew
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from knapcache.kernel import Records
from knapcache.policy.adaptive.tournament import SLOTS

CLEARED_FIELDS = (
    "slots_used",
    "slot_id",
    "slot_size",
    "slot_refs",
    "shadow_used",
    "shadow_count",
    "shadow_key",
    "shadow_slot",
    "shadow_position",
)


def retention_order(rows: Records, ids: int) -> npt.NDArray[np.int64]:
    """All of the first `ids` ids, residents first, and then by how lately they were asked for."""
    last, resident = rows["last"][:ids], rows["resident"][:ids]
    return np.lexsort((-last, ~resident))


def compacted(head: Records, rows: Records, keep: npt.NDArray[np.int64]) -> tuple[Records, Records]:
    """Header and rows in which id k is what id keep[k] was."""
    head, rows = head.copy(), rows[keep]
    for field in CLEARED_FIELDS:
        head[field] = 0
    head["free_slots"][0] = np.arange(SLOTS)
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
    return head, rows
