"""S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi, SOSP 2023: "FIFO queues are all you need for cache eviction").

    S   small queue, 10 % of the cache: newcomers, most of which are never requested again
    M   main queue, the rest: answers requested more than once while in S, or readmitted from G
    G   ghosts of answers evicted from S, up to the size of M

A hit adds 1 to `freq`, up to 3. From S an answer with freq > 1 moves to M, another one is evicted and leaves a ghost.
From M an answer with freq > 0 is reinserted with freq − 1, another one is evicted.

Sizes are counted where the paper counts objects. Points the paper leaves open are done as in its authors' simulator:
M is evicted from when it holds more than its share, S otherwise; a move from S to M evicts nothing by itself; an answer
larger than S is rejected, because it would empty S. `main_first` is the authors' later idea, not the paper's: until
the first eviction, newcomers that find S full go to M.
"""

from __future__ import annotations

from typing import ClassVar

from knapcache.errors import InvalidInput
from knapcache.kernel import Records, kernel
from knapcache.policy.base import HEAD, ROW, Policy, evict, insert, make_settle, remove
from knapcache.policy.structures.linked_list import oldest
from knapcache.policy.structures.lists import LISTS_ROW, check_lists, clear_lists, list_add, list_remove, list_size

S, M, G = 1, 2, 3


@kernel
def arrive(head: Records, rows: Records, i: int) -> bool:  # noqa: ARG001 - every policy has the same signature
    if not rows[i].resident:
        return False
    rows[i].freq = min(rows[i].freq + 1, 3)
    return True


@kernel
def admit(head: Records, rows: Records, i: int, size: int, cost: float) -> None:  # noqa: ARG001
    if size > head[0].small:
        return
    to_main = rows[i].list_number == G
    if to_main:
        list_remove(rows, i)
    elif head[0].filling:
        to_main = list_size(rows, S) >= head[0].small and head[0].used + size <= head[0].capacity
    while head[0].used + size > head[0].capacity:
        head[0].filling = False
        if list_size(rows, M) > head[0].main or list_size(rows, S) == 0:
            evict_main(head, rows)
        else:
            evict_small(head, rows)
    insert(head, rows, i, size)
    rows[i].freq = 0
    list_add(rows, i, M if to_main else S)


@kernel
def evict_small(head: Records, rows: Records) -> None:
    """EVICTS: move requested answers to M until one is evicted or S is empty."""
    while list_size(rows, S) > 0:
        t = oldest(rows, S)
        list_remove(rows, t)
        if rows[t].freq <= 1:
            evict(head, rows, t)
            add_ghost(head, rows, t)
            return
        rows[t].freq = 0
        list_add(rows, t, M)


@kernel
def evict_main(head: Records, rows: Records) -> None:
    """EVICTM: evict from M, reinserting each answer once per request, at most three times."""
    while True:
        t = oldest(rows, M)
        list_remove(rows, t)
        if rows[t].freq == 0:
            evict(head, rows, t)
            return
        rows[t].freq -= 1
        list_add(rows, t, M)


@kernel
def add_ghost(head: Records, rows: Records, i: int) -> None:
    """Append i to G, dropping the oldest ghosts until it fits."""
    if rows[i].entry_size > head[0].ghosts:
        return
    while list_size(rows, G) + rows[i].entry_size > head[0].ghosts:
        list_remove(rows, oldest(rows, G))
    list_add(rows, i, G)


@kernel
def release(head: Records, rows: Records, i: int) -> None:
    list_remove(rows, i)
    remove(head, rows, i)


class S3FIFO(Policy):
    """Three FIFO queues: small, main and ghost."""

    head_fields: ClassVar = [*HEAD, ("small", "i8"), ("main", "i8"), ("ghosts", "i8"), ("filling", "?")]
    row_fields: ClassVar = [*ROW, ("freq", "u1"), *LISTS_ROW]  # in this order: 32 bytes
    arrive_kernel = arrive
    settle_kernel = make_settle(admit, release)
    release_kernel = release
    spare = 3

    def __init__(self, capacity: int, ids: int, *, small: float = 0.1, main_first: bool = False) -> None:
        """`small`: share of S in the cache, between 0 and 1; `main_first`: see the module docstring."""
        super().__init__(capacity, ids)
        if not 0.0 < small < 1.0:
            raise InvalidInput(f"small must be between 0 and 1, not {small}")
        self.head["small"] = max(int(capacity * small), 1)
        self.head["main"] = self.head["ghosts"] = capacity - int(self.head["small"][0])
        self.head["filling"] = main_first
        clear_lists(self.rows, 3)

    def check(self) -> None:
        super().check()
        check_lists(self.rows, 3, resident=(S, M))
        self._expect("ghosts within their capacity", bool(self.rows["entry_size"][-G] <= self.head["ghosts"][0]), True)
