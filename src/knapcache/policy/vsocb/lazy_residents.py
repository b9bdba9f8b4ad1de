"""Lazy residents: residents of a lazy VSOCB that are not in M̂. They stay until their space is needed.

An answer becomes one when it is admitted into free space, or when an Oracle call drops it from M̂. It is evicted when a
recommended answer needs the space, the least dense first; or it becomes recommended again. Values drift, so no order
of them would last: eviction scans all lazy residents once, and no others.

    Invariant: the pool (see pool.py) holds exactly the residents that are not recommended.
"""

from __future__ import annotations

import math

import numpy as np

from knapcache.estimate.statistics import values_of
from knapcache.kernel import Records, kernel
from knapcache.policy.base import evict, insert, remove
from knapcache.policy.structures.pool import pool_add, pool_remove


@kernel
def update_lazy_residents(head: Records, rows: Records, changed: np.ndarray) -> None:
    """Add and remove lazy residents after an Oracle call that changed M̂ for the ids in `changed`."""
    for i in changed:
        if rows[i].resident and rows[i].recommended:
            pool_remove(head, rows, i)
        elif rows[i].resident:
            pool_add(head, rows, i)


@kernel
def insert_lazy(head: Records, rows: Records, i: int, size: int) -> None:
    """Make i, which fits and is not recommended, a lazy resident."""
    insert(head, rows, i, size)
    pool_add(head, rows, i)


@kernel
def release(head: Records, rows: Records, i: int) -> None:
    """Remove the resident i, lazy or not."""
    if not rows[i].recommended:
        pool_remove(head, rows, i)
    remove(head, rows, i)


@kernel
def evict_lazy(head: Records, rows: Records, i: int) -> None:
    """Evict the lazy resident i."""
    pool_remove(head, rows, i)
    evict(head, rows, i)


@kernel
def evict_all_lazy(head: Records, rows: Records) -> None:
    """Evict all lazy residents: M ∩ M̂."""
    for k in range(head[0].pool_size):
        evict(head, rows, rows[k].pool_id)
    head[0].pool_size = 0


@kernel
def evict_lazy_until_fits(head: Records, rows: Records, size: int) -> None:
    """Evict lazy residents, the least dense first and of equals the lowest id, until `size` more units fit."""
    h = head[0]
    if h.used + size <= h.capacity:
        return
    ids = np.empty(h.pool_size, np.int64)
    for k in range(len(ids)):
        ids[k] = rows[k].pool_id
    densities = values_of(head, rows, ids, False)
    for k in range(len(ids)):
        densities[k] /= rows[ids[k]].entry_size
    while h.used + size > h.capacity:
        first = 0
        for k in range(1, len(ids)):
            d = densities[k]
            if d < densities[first] or (d == densities[first] and ids[k] < ids[first]):
                first = k
        evict_lazy(head, rows, ids[first])
        densities[first] = math.inf
