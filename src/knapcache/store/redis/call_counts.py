"""Counters of calls to upstreams, which all processes of a store share. Not in the capacity: at most some KB a scope.

    O:u:d:DAY:SCOPE     string   dollars paid on a day         O:u:r:SLOT:SCOPE   string   calls begun in a slot
    O:u:m:MONTH:SCOPE   string   dollars paid in a month       O:u:t:SLOT:SCOPE   string   tokens used in a slot
    O:u:f:SCOPE         hash     process → its calls in flight, dollars and tokens reserved for them, and when it was
                                 last seen, by the server's clock

All have a life time in the server. The scripts are in call_scripts.py. Days, months and slots are numbers that the
caller gives, and the names of scopes, too: the caller hashes names that must not be readable there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from knapcache.errors import StoreError
from knapcache.store.redis.call_scripts import COUNT_CALLS, COUNT_IN_FLIGHT
from knapcache.store.redis.layout import owner_tag
from knapcache.store.redis.membership import Membership
from knapcache.store.redis.server import RedisServer

NUMBERS_BEFORE_SLOTS = 5
"""Numbers of a scope before its slots: dollars of the day and of the month, and three of its calls in flight."""
MAX_OPERATIONS = 50
"""Operations of one script. The server runs no other command meanwhile."""


class CallCounts:
    """The counters of a store. Every method may raise StoreError: the server does not answer, or refuses."""

    def __init__(self, member: Membership) -> None:
        self._member = member
        self._prefix = owner_tag(member.address.prefix) + b":u:"

    def apply(
        self,
        process: str,
        slots: tuple[int, int, int],
        minute: tuple[int, int],
        stale: float,
        operations: Sequence[tuple[int, Sequence[Any]]],
    ) -> list[tuple[int, int, list[list[float]]]]:
        """Apply operations. Return for each the scope and the limit that refused it, from 1 on, and what was counted.

        slots        numbers of the day, the month and the slot
        minute       slots of a minute, and later ones that count as the present one
        stale        seconds after which a process that was not seen is dead
        operations   number of scopes, and the arguments of COUNT_CALLS
        """
        results: list[tuple[int, int, list[list[float]]]] = []
        for begin in range(0, len(operations), MAX_OPERATIONS):
            batch = operations[begin : begin + MAX_OPERATIONS]
            arguments = [part for _, parts in batch for part in parts]
            keys, head = [self._prefix + b"f"], [self._prefix, process, *slots, *minute, stale]
            found = self._attached().run(COUNT_CALLS, keys, *head, *arguments)
            if len(found) != len(batch):
                raise StoreError("the server returned counters of another number of operations")
            results += [self._read(row, scopes, minute[0]) for row, (scopes, _) in zip(found, batch, strict=True)]
        return results

    def set_in_flight(self, process: str, rows: Sequence[tuple[str, int, float, float]]) -> None:
        """Set calls, dollars and tokens in flight of a process, by scope."""
        if rows:
            arguments = [part for row in rows for part in row]
            self._attached().run(COUNT_IN_FLIGHT, [self._prefix + b"f"], self._prefix, process, *arguments)

    def _read(self, row: bytes, scopes: int, minute: int) -> tuple[int, int, list[list[float]]]:
        length = NUMBERS_BEFORE_SLOTS + 2 * minute
        try:
            refused, limit, *values = map(float, row.split())
        except ValueError:
            raise StoreError("the server returned counters of another form") from None
        if len(values) != scopes * length or not (0 <= refused <= scopes and 0 <= limit <= 5):
            raise StoreError("the server returned counters of another form")
        return int(refused), int(limit), [values[k * length : (k + 1) * length] for k in range(scopes)]

    def _attached(self) -> RedisServer:
        self._member.attachment()  # StoreError if the store is closed or cannot be used
        return self._member.server
