"""SIEVE (Zhang et al., NSDI 2024: "SIEVE is Simpler than LRU").

One queue in order of admission. A hit only marks the answer as *visited*. To evict, the *hand* moves from the tail
(oldest) towards the head (newest), clears the marks of visited answers, and evicts the first answer without one. The
next eviction continues from there. Unlike CLOCK, survivors keep their position, so newcomers are examined soon.
"""

from __future__ import annotations

from typing import ClassVar

from knapcache.kernel import Records, inlined
from knapcache.policy.base import HEAD, ROW, Policy, evict, insert, make_settle, remove
from knapcache.policy.structures.linked_list import LINK_ROW, clear, linked_ids, push, unlink


@inlined
def arrive(head: Records, rows: Records, i: int) -> bool:  # noqa: ARG001 - every policy has the same signature
    rows[i].visited = rows[i].resident
    return bool(rows[i].resident)


@inlined
def admit(head: Records, rows: Records, i: int, size: int, cost: float) -> None:  # noqa: ARG001
    end = len(rows) - 1
    while head[0].used + size > head[0].capacity:
        hand = head[0].hand
        # The sentinel is the position after the newest answer: from there the hand continues at the oldest.
        while hand == end or rows[hand].visited:
            rows[hand].visited = False
            hand = rows[hand].newer
        release_hand(head, rows, hand)
        evict(head, rows, hand)
    rows[i].visited = False
    insert(head, rows, i, size)
    push(rows, i)


@inlined
def release_hand(head: Records, rows: Records, hand: int) -> None:
    """Unlink the answer at the hand and advance the hand."""
    head[0].hand = rows[hand].newer
    unlink(rows, hand)


@inlined
def release(head: Records, rows: Records, i: int) -> None:
    if head[0].hand == i:
        release_hand(head, rows, i)
    else:
        unlink(rows, i)
    remove(head, rows, i)


class Sieve(Policy):
    """A FIFO queue with a hand that skips visited answers."""

    head_fields: ClassVar = [*HEAD, ("hand", "i8")]
    row_fields: ClassVar = [*ROW, ("visited", "?"), *LINK_ROW]  # in this order: 24 bytes
    arrive_kernel = arrive
    settle_kernel = make_settle(admit, release)
    release_kernel = release

    def __init__(self, capacity: int, ids: int) -> None:
        super().__init__(capacity, ids)
        clear(self.rows)
        self.head["hand"] = len(self.rows) - 1

    def check(self) -> None:
        super().check()
        queue = linked_ids(self.rows)
        self._expect("queue", frozenset(queue), self.residents)
        hand = int(self.head["hand"][0])
        self._expect("hand in the queue", hand in {*queue, len(self.rows) - 1}, True)
