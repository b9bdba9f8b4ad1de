"""Counters of limits in a SQLite file, which the worker processes of a data directory share, or in memory.

    used (scope, kind, slot, amount)                       kind: day, month, requests or tokens
    in_flight (scope, process, calls, usd, tokens, beat)   beat: Unix time at which the process was last seen

A file survives a restart. One that SQLite cannot read is renamed to `….damaged`, and counting begins again at 0.
Operations are applied in transactions that begin with BEGIN IMMEDIATE, so those of two processes are one after the
other. A transaction is not synced to the disk: after a power failure the last ones may be missing, after a crash of the
process none is.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import apsw

from knapcache.errors import CorruptState, StoreError
from knapcache.features.limits.core import (
    KEPT_WINDOWS,
    MINUTE_SLOTS,
    SLOTS_AHEAD,
    STALE_SECONDS,
    CallAmounts,
    Operation,
    Read,
    Refusal,
    Reserve,
    Result,
    ScopeUsage,
    Slots,
    refused_limit,
    slots_at,
)
from knapcache.store.sqlite.database import DAMAGE
from knapcache.store.sqlite.side_files import FileKind, connect, file_id, only_process, set_aside, use_log, writing

log = logging.getLogger("knapcache.serve")

MAX_VALUE = 1 << 16
KIND = FileKind(
    0x4B6E6C69,  # "Knli"
    1,
    (
        "CREATE TABLE used (scope TEXT, kind TEXT, slot INTEGER, amount REAL NOT NULL, "
        "PRIMARY KEY (scope, kind, slot)) WITHOUT ROWID",
        "CREATE TABLE in_flight (scope TEXT, process TEXT, calls INTEGER NOT NULL, usd REAL NOT NULL, "
        "tokens REAL NOT NULL, beat REAL NOT NULL, PRIMARY KEY (scope, process)) WITHOUT ROWID",
    ),
)
READ_IN_FLIGHT = "SELECT total(calls), total(usd), total(tokens) FROM in_flight WHERE scope = ?"
ADD_USED = (
    "INSERT INTO used VALUES (?, ?, ?, ?) ON CONFLICT (scope, kind, slot) "
    "DO UPDATE SET amount = amount + excluded.amount"
)
ADD_IN_FLIGHT = (
    "INSERT INTO in_flight VALUES (?1, ?2, max(0, ?3), max(0, ?4), max(0, ?5), ?6) ON CONFLICT (scope, process) "
    "DO UPDATE SET calls = max(0, calls + ?3), usd = max(0, usd + ?4), tokens = max(0, tokens + ?5), beat = ?6"
)
PRUNE = (
    "DELETE FROM used WHERE slot < CASE WHEN kind IN ('day', 'month') THEN "
    "(SELECT slot FROM used AS newer WHERE newer.scope = used.scope AND newer.kind = used.kind ORDER BY slot DESC "
    f"LIMIT 1 OFFSET {KEPT_WINDOWS - 1}) ELSE ? END"
)
STALE = "FROM in_flight WHERE abs(beat - ?) > ?"
"""Processes that were last seen more than some seconds ago. A time in the future counts as well: the clock was set back
since then, so the process may be dead."""


class SqliteCounts:
    """Counters of limits. One thread at a time uses them.

    path      of the file; None: they are in memory
    process   a name of this process that no other has
    """

    def __init__(self, path: Path | None = None, process: str = "") -> None:
        self.path, self._process = path, process
        self._connection: apsw.Connection | None = None
        self._inode: tuple[int, int] | None = None
        """Of the file that is open. Another process may have replaced it."""

    def apply(self, operations: Sequence[Operation], now: float) -> list[Result]:
        """Apply operations in one transaction, and return what each found."""
        slots = slots_at(now)
        with self._transaction():
            return [self._apply(operation, slots, now) for operation in operations]

    def _apply(self, operation: Operation, slots: Slots, now: float) -> Result:
        usages = tuple([self._usage(scope.name, slots) for scope in operation.scopes])
        if isinstance(operation, Read):
            return Result(usages)
        if isinstance(operation, Reserve):
            for scope, usage in zip(operation.scopes, usages, strict=True):
                limit = refused_limit(scope.limits, usage)
                if limit is not None:
                    return Result(usages, Refusal(scope.name, limit, usage))
            for scope in operation.scopes:
                self._add_used(scope.name, "requests", slots.slot, operation.amounts.calls)
                self._add_in_flight(scope.name, operation.amounts, 1, now)
            return Result(usages)
        for scope in operation.scopes:
            self._add_paid(scope.name, slots, operation.paid.usd, operation.paid.tokens)
            self._add_in_flight(scope.name, operation.reserved, -1, now)
        return Result(usages)

    def seed(self, scope: str, usage: ScopeUsage, now: float) -> None:
        """Begin with these counters of a scope; calls in flight are given by `beat`."""
        slots = slots_at(now)
        with self._transaction():
            self._add_used(scope, "day", slots.day, usage.usd_day)
            self._add_used(scope, "month", slots.month, usage.usd_month)
            for kind, amounts in (("requests", usage.requests), ("tokens", usage.tokens)):
                for k, amount in enumerate(amounts, slots.slot - MINUTE_SLOTS + 1):
                    self._add_used(scope, kind, k, amount)

    def beat(self, in_flight: Mapping[str, CallAmounts], now: float) -> None:
        """Set the calls in flight of this process, count those of dead processes as paid, and forget what is old."""
        slots = slots_at(now)
        if self.path is not None and self._inode != file_id(self.path):
            self.close()
        with self._transaction() as connection:
            connection.execute("DELETE FROM in_flight WHERE process = ?", (self._process,))
            for scope, amounts in in_flight.items():
                if amounts.calls:
                    self._add_in_flight(scope, amounts, 1, now)
            dead = connection.execute(f"SELECT scope, usd, tokens {STALE}", (now, STALE_SECONDS)).fetchall()
            for name, usd, tokens in dead:
                self._add_paid(str(name), slots, float(str(usd)), float(str(tokens)))
            if dead:
                connection.execute(f"DELETE {STALE}", (now, STALE_SECONDS))
            connection.execute(PRUNE, (slots.slot - MINUTE_SLOTS + 1,))

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(apsw.Error):
                connection.close(True)

    def check(self) -> None:
        """Raise CorruptState if a counter is negative."""
        with self._transaction() as connection:
            negative = "SELECT count(*) FROM used WHERE amount < 0"
            if connection.execute(negative).get:
                raise CorruptState("a counter of limits is negative")

    def _usage(self, scope: str, slots: Slots) -> ScopeUsage:
        assert self._connection is not None
        first = slots.slot - MINUTE_SLOTS + 1
        requests, tokens, day, month = [0.0] * MINUTE_SLOTS, [0.0] * MINUTE_SLOTS, 0.0, 0.0
        for kind, slot, amount in self._connection.execute(
            "SELECT kind, slot, amount FROM used WHERE scope = ?", (scope,)
        ):
            assert isinstance(slot, int)
            assert isinstance(amount, float)
            if kind == "day":
                day = amount if slot == slots.day else day
            elif kind == "month":
                month = amount if slot == slots.month else month
            elif first <= slot <= slots.slot + SLOTS_AHEAD:
                (requests if kind == "requests" else tokens)[min(slot, slots.slot) - first] += amount
        ((calls, usd, reserved),) = self._connection.execute(READ_IN_FLIGHT, (scope,)).fetchall()
        in_flight = CallAmounts(int(float(str(calls))), float(str(usd)), float(str(reserved)))
        return ScopeUsage(day, month, in_flight, tuple(requests), tuple(tokens))

    def _add_paid(self, scope: str, slots: Slots, usd: float, tokens: float) -> None:
        self._add_used(scope, "day", slots.day, usd)
        self._add_used(scope, "month", slots.month, usd)
        self._add_used(scope, "tokens", slots.slot, tokens)

    def _add_used(self, scope: str, kind: str, slot: int, amount: float) -> None:
        assert self._connection is not None
        if amount:
            self._connection.execute(ADD_USED, (scope, kind, slot, float(amount)))

    def _add_in_flight(self, scope: str, amounts: CallAmounts, sign: int, now: float) -> None:
        """Add calls in flight of this process, or with sign −1 remove them."""
        assert self._connection is not None
        parts = (sign * amounts.calls, sign * float(amounts.usd), sign * float(amounts.tokens))
        self._connection.execute(ADD_IN_FLIGHT, (scope, self._process, *parts, now))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[apsw.Connection]:
        """Run statements in one transaction. Raises StoreError; a damaged file is replaced before the next one."""
        try:
            connection = self._connection = self._connection or self._open()
            with writing(connection):
                yield connection
        except (apsw.Error, OSError, TypeError, ValueError, AssertionError) as error:
            self.close()
            if isinstance(error, (*DAMAGE, apsw.TooBigError, AssertionError, TypeError, ValueError)):
                self._set_aside(str(error))
            raise StoreError(f"the counters of limits in {self.path or 'memory'} failed: {error}") from error

    def _open(self) -> apsw.Connection:
        if self.path is None:
            connection = apsw.Connection(":memory:")
            KIND.create(connection)
            return connection
        with only_process(self.path):
            return connect(self.path, MAX_VALUE, self._prepare)

    def _prepare(self, connection: apsw.Connection) -> None:
        assert self.path is not None
        self._inode = file_id(self.path)
        existing = KIND.check(connection, self.path)
        use_log(connection)
        if not existing:
            KIND.create(connection)

    def _set_aside(self, reason: str) -> None:
        if self.path is None or self._inode != file_id(self.path):  # another process has done it
            return
        log.error(
            "The counters of limits were damaged (%s). The file is now %s, and counting begins at 0.",
            reason,
            set_aside(self.path),
        )
