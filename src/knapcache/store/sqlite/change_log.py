"""The change log of the database file: which keys have changed, and the totals of the entries.

    row CHANGES_ROW of `state`   id of the log, number of its last row, number and bytes of all entries, if exact
    row n ≥ FIRST_CHANGE         the keys of all changes of one transaction

Every transaction that changes entries writes both. So opening a file needs no count of all rows, and a cache that has
saved its state with a `position` reads only the entries that have changed since (cache/restore.py). A position is the
id of the log, and the number of the last row that was committed when the state was copied. The state has every change
up to there. Changes that were decided, but not yet committed, are in later rows; to read them again does no harm.

A change that fails after it was decided is in the row of the next transaction.

A log that would exceed its limit of bytes begins anew, under a random id: positions in the former one are not found,
and the next opening reads all entries. So does the log of a file from which all entries were removed at once. So it is
when the totals may be wrong, or when the cache above does not know of a change: a damaged row was deleted, the file was
replaced, or it was full although the cache counts fewer bytes. Then the totals are marked as not exact until the next
opening counts all rows, and no position is given.

All rows are sealed under their number and the id of the log. So one that is missing or of another log is noticed.

Rejected: a second table for the heads of the entries. Reading a million of them takes four seconds, and a read of an
entry that is not in memory would have two positions of the disk to read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import apsw

from knapcache.store.base import KEY_BYTES, Totals
from knapcache.store.sqlite.rows import GET_STATE, PUT_STATE, Sealer

CHANGES_ROW = 6
FIRST_CHANGE = 1000
"""Numbers of the rows with keys begin here. No other row has a greater one, so new ones are at the tree's end."""
ROW_BYTES = 128
"""Bytes of a row beside the keys, at most: seal, header of the record, encryption."""
GET_CHANGES = "SELECT id, seal, value FROM state WHERE id > ? AND id <= ? ORDER BY id"

_END = struct.Struct("<8sqqq?")
_POSITION = struct.Struct("<8sq")
_PUT_BOTH = f"{PUT_STATE}, (?, ?, ?)"
_LOG_BYTES = "SELECT coalesce(sum(length(value) + ?), 0) FROM state WHERE id >= ?"
_DELETE = "DELETE FROM state WHERE id >= ? AND id <= ?"
_LAST_NUMBER = _MAX_TOTAL = 2**62


class LogEnd(NamedTuple):
    """The last row of a log, and the totals after it."""

    log: bytes
    number: int
    totals: Totals
    exact: bool

    @classmethod
    def read(cls, sealer: Sealer, rows: Iterable[tuple[Any, ...]]) -> LogEnd | None:
        """Return what CHANGES_ROW says, given the rows of GET_STATE; None if it is missing or damaged."""
        for seal, value in rows:
            found = sealer.reveal(b"totals", seal, value)
            if found is not None and len(found) == _END.size:
                log, number, *totals, exact = _END.unpack(found)
                if FIRST_CHANGE <= number < _LAST_NUMBER and min(totals) >= 0:
                    return cls(log, number, Totals(*totals), exact)
        return None

    def row(self, sealer: Sealer) -> tuple[int, bytes, bytes]:
        """Return the row of `state` that says this."""
        return CHANGES_ROW, *sealer.protect(b"totals", _END.pack(self.log, self.number, *self.totals, self.exact))

    def number_of(self, position: bytes) -> int | None:
        """Return the number of the row of a position in this log; None if it is not a position in it."""
        if len(position) != _POSITION.size:
            return None
        log, number = _POSITION.unpack(position)
        return number if log == self.log and FIRST_CHANGE <= number <= self.number else None

    def keys(self, sealer: Sealer, row: tuple[Any, ...]) -> list[bytes] | None:
        """Return the keys of a row of GET_CHANGES; None if it is damaged or of another log."""
        number, seal, value = row
        found = sealer.reveal(_name(self.log, number), seal, value)
        if found is None or len(found) % KEY_BYTES:
            return None
        return [found[k : k + KEY_BYTES] for k in range(0, len(found), KEY_BYTES)]


def _name(log: bytes, number: int) -> bytes:
    return b"changes" + _POSITION.pack(log, number)


def read_end(connection: apsw.Connection, sealer: Sealer) -> LogEnd | None:
    """Return the end of the log of a file; None if there is none, or if its totals are not exact."""
    end = LogEnd.read(sealer, connection.execute(GET_STATE, (CHANGES_ROW,)).fetchall())
    return end if end is not None and end.exact else None


def start_log(connection: apsw.Connection, sealer: Sealer, totals: Totals) -> LogEnd:
    """Begin a new log in a file that has none, or a damaged one."""
    end = LogEnd(os.urandom(8), FIRST_CHANGE, totals, exact=True)
    with connection:
        connection.execute(_DELETE, (FIRST_CHANGE, _LAST_NUMBER))
        put_end(connection, sealer, end, [])
    return end


def put_end(connection: apsw.Connection, sealer: Sealer, end: LogEnd, keys: Sequence[bytes]) -> None:
    """Write the last row of a log, which has these keys, and CHANGES_ROW."""
    row = end.number, *sealer.protect(_name(end.log, end.number), b"".join(keys))
    connection.execute(_PUT_BOTH, (*end.row(sealer), *row))


class LogState(NamedTuple):
    """The end of a log, and the bytes of its rows."""

    end: LogEnd
    size: int


class LogWrite(NamedTuple):
    """The result of `ChangeLog.write`: the state of the log after it, and the state up to which rows were deleted."""

    state: LogState
    dropped: LogState | None


class ChangeLog:
    """Writes the log of one file. `position` and `drop` are for any thread, the rest for the one that writes."""

    def __init__(self, sealer: Sealer, max_bytes: int) -> None:
        self._sealer, self._max_bytes = sealer, max_bytes
        self._exact = True
        """Whether totals are exact, and the cache above knows of every change. If not, no position is given."""
        self._state: LogState
        self._saved: LogState | None = None
        """As of the last position that was given."""
        self._drop: LogState | None = None
        self._failed: list[bytes] = []
        """Keys of changes that failed, for the next row."""

    def begin(self, connection: apsw.Connection, end: LogEnd) -> None:
        """Continue the log of a file that was opened. A second file replaces the first, whose entries are lost."""
        self._exact = not hasattr(self, "_state")
        ((size,),) = connection.execute(_LOG_BYTES, (ROW_BYTES, FIRST_CHANGE))
        self._state, self._drop, self._failed = LogState(end, size), None, []

    @property
    def end(self) -> LogEnd:
        """The end as of the last commit."""
        return self._state.end

    @property
    def position(self) -> bytes:
        """The position of a state that has every committed change. Empty: there is none."""
        self._saved = state = self._state
        return _POSITION.pack(state.end.log, state.end.number) if self._exact else b""

    def rows_after(self, position: bytes) -> int | None:
        """Return the number after which rows have to be read; None if the log does not reach back to the position."""
        return self.end.number_of(position) if self._state.size <= self._max_bytes else None

    def drop(self, position: bytes) -> None:
        """Remove the rows before the position that was given last, with the next transaction: its state is saved."""
        if self._saved is not None and self._saved.end.number_of(position) == self._saved.end.number:
            self._drop = self._saved

    def add_failed(self, keys: Sequence[bytes]) -> None:
        """Log a change that failed after it was decided, with the next transaction."""
        if KEY_BYTES * len(self._failed) <= self._max_bytes:  # with more, a new log begins anyway
            self._failed += keys

    def write(
        self, connection: apsw.Connection, keys: list[bytes], totals: Totals, *, unknown: bool, cleared: bool = False
    ) -> LogWrite | None:
        """Log the changes of a transaction. Return what was written, for `committed`.

        unknown   the totals may be wrong, or entries were removed whose keys are not known
        cleared   all entries were removed
        """
        keys = self._failed + keys
        if not all(0 <= number < _MAX_TOTAL for number in totals):  # forged sizes
            unknown, totals = True, Totals(0, 0)
        if not keys and not unknown and not cleared:
            return None
        (log, number, _, _), size = self._state
        number, size, drop = number + 1, size + ROW_BYTES + KEY_BYTES * len(keys), self._drop
        last_dropped = 0
        if drop is not None and drop.end.log == log:
            last_dropped, size = drop.end.number, size - drop.size
        self._exact &= not unknown
        if unknown or cleared or size > self._max_bytes:
            log, keys, last_dropped, size = os.urandom(8), [], number, ROW_BYTES
        if last_dropped:
            connection.execute(_DELETE, (FIRST_CHANGE, last_dropped))
        end = LogEnd(log, number, totals, self._exact)
        put_end(connection, self._sealer, end, keys)
        return LogWrite(LogState(end, size), drop)

    def committed(self, written: LogWrite | None) -> None:
        """Note that the transaction of `write` was committed."""
        if written is not None:
            self._state, dropped = written
            self._failed = []
            if self._drop is dropped:
                self._drop = None
