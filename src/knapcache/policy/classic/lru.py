"""LRU: evict the least recently used answer. FIFO in which a hit moves the answer to the newest end."""

from __future__ import annotations

from knapcache.kernel import Records, inlined
from knapcache.policy.classic.fifo import FIFO
from knapcache.policy.structures.linked_list import push, unlink


@inlined
def arrive(head: Records, rows: Records, i: int) -> bool:  # noqa: ARG001 - every policy has the same signature
    if not rows[i].resident:
        return False
    unlink(rows, i)
    push(rows, i)
    return True


class LRU(FIFO):
    """Least recently used."""

    arrive_kernel = arrive
