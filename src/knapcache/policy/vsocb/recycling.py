"""Recycling: the table of ids is bounded, so the id of a query that is hardly worth remembering goes to a new key.

A query that is neither resident nor in M̂ is remembered only because it may enter M̂ later, and the densest are the
nearest to that. So a flood of keys that never return displaces itself, not the popular ones.
"""

from __future__ import annotations

import math

from knapcache.estimate.statistics import empirical_value
from knapcache.kernel import Records, kernel
from knapcache.policy.base import evict
from knapcache.policy.structures.pool import pool_remove
from knapcache.policy.vsocb.near_queries import drop_query

RECYCLE_SAMPLE = 32
"""Ids that `recycle` compares."""


@kernel
def recycle(head: Records, rows: Records) -> int:
    """Free an id for another key: the least dense of the next RECYCLE_SAMPLE that are neither resident nor in M̂.

    If there is none, take the next id that is not resident, and if all are, evict the next one and report it.
    """
    h = head[0]
    h.evicted = 0
    n = len(rows) - 1
    found, waiting, least = -1, -1, math.inf
    for examined in range(n):
        if examined >= RECYCLE_SAMPLE and found >= 0:
            break
        i = h.hand
        h.hand = (i + 1) % n
        if rows[i].resident:
            continue
        waiting = i
        density = empirical_value(head, rows, i) / rows[i].entry_size if rows[i].misses > 0 else 0.0
        if not rows[i].recommended and density < least:
            found, least = i, density
    if found < 0:
        found = waiting
    if found < 0:
        found = h.hand
        h.hand = (found + 1) % n
        if not rows[found].recommended:
            pool_remove(head, rows, found)
        evict(head, rows, found)
    forget_query(head, rows, found)
    return int(found)


@kernel
def forget_query(head: Records, rows: Records, i: int) -> None:
    """Remove the query i, which is not resident, from M̂, and delete its statistics."""
    h, q = head[0], rows[i]
    drop_query(head, rows, i)
    if q.recommended:
        q.recommended, h.certified = False, False
        h.recommended_size -= q.entry_size
    h.forgotten += q.arrivals
    if q.misses > 0:
        h.seen -= 1
        h.seen_size -= q.entry_size
    q.entry_size, q.arrivals, q.misses, q.misses_at_call = 0, 0, 0, 0
    q.paid = q.last_value = 0.0
