"""FIFO: evict the answer that was admitted first, whether it was hit or not."""

from __future__ import annotations

from typing import ClassVar

from knapcache.kernel import Records, inlined
from knapcache.policy.base import ROW, Policy, evict, insert, make_settle, remove
from knapcache.policy.structures.linked_list import LINK_ROW, clear, linked_ids, oldest, push, unlink


@inlined
def arrive(head: Records, rows: Records, i: int) -> bool:  # noqa: ARG001 - every policy has the same signature
    return bool(rows[i].resident)


@inlined
def admit(head: Records, rows: Records, i: int, size: int, cost: float) -> None:  # noqa: ARG001
    while head[0].used + size > head[0].capacity:
        victim = oldest(rows)
        unlink(rows, victim)
        evict(head, rows, victim)
    insert(head, rows, i, size)
    push(rows, i)


@inlined
def release(head: Records, rows: Records, i: int) -> None:
    unlink(rows, i)
    remove(head, rows, i)


class FIFO(Policy):
    """First in, first out."""

    row_fields: ClassVar = ROW + LINK_ROW
    arrive_kernel = arrive
    settle_kernel = make_settle(admit, release)
    release_kernel = release

    def __init__(self, capacity: int, ids: int) -> None:
        super().__init__(capacity, ids)
        clear(self.rows)

    def check(self) -> None:
        super().check()
        self._expect("list", frozenset(linked_ids(self.rows)), self.residents)
