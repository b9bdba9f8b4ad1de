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

EMPTIED = ("slots_taken", "slot_id", "slot_room", "slot_holders", "filled", "held", "keys", "order", "place")


def most_useful(rows: Records, ids: int) -> npt.NDArray[np.int64]:
    """All of the first `ids` ids, residents first, and then by how lately they were asked for."""
    last, resident = rows["last"][:ids], rows["resident"][:ids]
    return np.lexsort((-last, ~resident))


def trimmed(head: Records, rows: Records, keep: npt.NDArray[np.int64]) -> tuple[Records, Records]:
    """Header and rows in which id k is what id keep[k] was."""
    head, rows = head.copy(), rows[keep]
    for field in EMPTIED:
        head[field] = 0
    head["slot_free"][0] = np.arange(SLOTS)
    head["hand"] = 0
    rows["shadow"] = 0
    for field in ("victim", "holder", "slot", "rank", "since"):
        rows[field] = 0
    residents = np.flatnonzero(rows["resident"])
    order = residents[np.lexsort((rows["turn"][residents], rows["priority"][residents]))]
    n = len(order)
    rows["holder"][:n], rows["rank"][:n], rows["since"][:n] = order, rows["priority"][order], rows["turn"][order]
    rows["slot"][order] = np.arange(n)
    head["heaped"], head["used"] = n, rows["entry_size"][residents].sum()
    return head, rows
