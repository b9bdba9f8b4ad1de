"""The guests of a lazy VSOCB: residents that the Oracle does not want, and that stay until their room is needed.

They come in when there is room that nobody uses, or when a call of the Oracle drops them; they go when a wanted answer
needs their room, the least dense first, or are wanted again. Values drift, so no order of them would last: whoever
needs room looks at all guests once, and at nobody else.

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
    """The Oracle has changed its mind about some: who of them is a guest now, and who is no more?"""
    for i in changed:
        if rows[i].resident and rows[i].recommended:
            pool_remove(head, rows, i)
        elif rows[i].resident:
            pool_add(head, rows, i)


@kernel
def insert_lazy(head: Records, rows: Records, i: int, size: int) -> None:
    """The answer of i, which fits and is not recommended, moves in."""
    insert(head, rows, i, size)
    pool_add(head, rows, i)


@kernel
def release(head: Records, rows: Records, i: int) -> None:
    """The answer of i, guest or not, is gone."""
    if not rows[i].recommended:
        pool_remove(head, rows, i)
    remove(head, rows, i)


@kernel
def evict_lazy(head: Records, rows: Records, i: int) -> None:
    """The guest i is evicted."""
    pool_remove(head, rows, i)
    evict(head, rows, i)


@kernel
def evict_all_lazy(head: Records, rows: Records) -> None:
    """M ∩ M̂."""
    for k in range(head[0].pool_size):
        evict(head, rows, rows[k].pool_id)
    head[0].pool_size = 0


@kernel
def evict_lazy_until_fits(head: Records, rows: Records, size: int) -> None:
    """Dismiss guests, the least dense first and of equals the lowest id, until `room` more units fit. They suffice."""
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
