"""Read entries, metadata, totals and the snapshot from the database file, and verify their seals.

Each thread has a connection of its own, which is reopened when the file was replaced. `rows` returns all rows of a
statement: a statement left unfinished would keep the log from being emptied. When the read fails, `rows` counts the
failure and returns None; or raises StoreError, for callers that tell a broken disk from damage.

Damage is counted and reported to `on_damage`: with a row's id if that row has to be deleted, with None if the tree
itself is damaged and the file has to be quarantined. In a damaged row the id may be anything that SQLite can store.
"""

from __future__ import annotations

import json
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw

from knapcache.errors import CorruptState, StoreError
from knapcache.store.base import Entry, EntryInfo, Totals
from knapcache.store.sqlite.change_log import CHANGES_ROW, GET_CHANGES, LogEnd
from knapcache.store.sqlite.database import DAMAGE, TOTALS, connect, verify_schema
from knapcache.store.sqlite.files import Damaged
from knapcache.store.sqlite.rows import COLUMNS, GET_STATE, INFO_COLUMNS, Sealer
from knapcache.store.sqlite.snapshot_rows import load

BUSY_TIMEOUT = 0.05  # seconds; a reader only ever waits for the recovery of a log
WATCH_SECONDS = 1.0  # how soon a reader notices that another process has replaced the file
SCAN_ROWS = 512  # per statement: a reader that stays long keeps the log from being emptied

_GET = f"SELECT {COLUMNS} FROM entries WHERE id = ?"
_SCAN = f"SELECT rowid, {INFO_COLUMNS} FROM entries WHERE rowid > ? ORDER BY rowid LIMIT {SCAN_ROWS}"
_SCAN_IDS = f"SELECT rowid, id FROM entries WHERE rowid > ? ORDER BY rowid LIMIT {SCAN_ROWS}"
_GET_INFO = f"SELECT rowid, {INFO_COLUMNS} FROM entries WHERE rowid = ?"
_GET_INFOS = f"SELECT {INFO_COLUMNS} FROM entries WHERE id IN (SELECT value FROM json_each(?))"
_EXPIRED = f"SELECT {INFO_COLUMNS} FROM entries WHERE expires <= ? LIMIT {SCAN_ROWS}"
_INTEGRITY = "PRAGMA integrity_check"
_BELOW_ALL_ROWS = -(2**63)


class DatabaseReader:
    """Reads one database file, from any thread."""

    def __init__(
        self,
        path: Path,
        vfs: str | None,
        max_value: int,
        sealer: Sealer,
        counters: Counter[str],
        on_damage: Callable[[int | None], None],
    ) -> None:
        self.generation: Callable[[], int] = self._watch_inode
        """How often the file was replaced. The owner sets this to its own count; readers watch the inode."""
        self._path, self._vfs, self._max_value, self._sealer = path, vfs, max_value, sealer
        self._counters, self._on_damage = counters, on_damage
        self._local = threading.local()
        self._connections: weakref.WeakSet[apsw.Connection] = weakref.WeakSet()
        self._closed = False
        self._inode, self._checked_at, self._replaced = self._current_inode(), time.monotonic(), 0

    def entry(self, key: bytes) -> Entry | None:
        """Return the entry, expired or not, or None; StoreError when the file cannot be read."""
        for number in self._sealer.row_ids(key):
            if rows := self.rows(_GET, (number,), number, raising=True):
                entry = self._sealer.entry(rows[0])
                if entry is None:
                    self._counters["damaged"] += 1
                    self._on_damage(number)
                elif entry.key == key:
                    return entry
        return None

    def scan(self) -> Iterator[EntryInfo]:
        """Yield the metadata of every entry. StoreError when the file cannot be read to its end."""
        last = _BELOW_ALL_ROWS
        while True:
            rows = self.rows(_SCAN, (last,), convert=lambda row: (row[0], *self._numbered_info(row[1:])))
            if rows is None:
                rows = self._infos_one_by_one(last)
            for place, number, info in rows:
                if not last < place:  # in a damaged tree rows may not be in order: the scan would never end
                    self._on_damage(None)
                    raise StoreError(f"{self._path} is damaged")
                last = place
                if info is None:
                    self._counters["damaged"] += 1
                    self._on_damage(number)
                else:
                    yield info
            if len(rows) < SCAN_ROWS:
                return

    def _numbered_info(self, row: tuple[Any, ...]) -> tuple[int, EntryInfo | None]:
        return row[0], self._sealer.info(row)

    def _infos_one_by_one(self, last: int) -> list[tuple[int, int, EntryInfo | None]]:
        """Return the places, ids and metadata of the next rows. Some cannot be read at all: None for those."""
        places = self.rows(_SCAN_IDS, (last,))
        if places is None:
            raise StoreError(f"{self._path} cannot be read")
        found: list[tuple[int, int, EntryInfo | None]] = []
        for place, number in places:
            rows = self.rows(_GET_INFO, (place,), number, raising=True, convert=lambda row: self._sealer.info(row[1:]))
            found.append((place, number, rows[0] if rows else None))
        return found

    def expired(self, now: float) -> dict[int, EntryInfo | None]:
        """Return up to SCAN_ROWS expired entries by row id; None for a damaged row."""
        return dict(self.rows(_EXPIRED, (now,), convert=self._numbered_info) or ())

    def snapshot(self) -> bytes | None:
        try:
            return load(self._sealer, lambda statement, values: self.rows(statement, values, 0))
        except ValueError:
            self._counters["damaged"] += 1
            return None

    def totals(self) -> Totals:
        """Return the totals of the change log; without one, those of all rows."""
        end = LogEnd.read(self._sealer, self.rows(GET_STATE, (CHANGES_ROW,), 0) or ())
        if end is not None:
            return end.totals
        rows = self.rows(TOTALS, ())
        return Totals(*rows[0]) if rows else Totals(0, 0)

    def changed(self, after: int, end: LogEnd) -> dict[bytes, EntryInfo | None] | None:
        """Return the metadata of the entries whose keys are in the rows of the change log after a number.

        None as metadata: the entry is gone. None: a row of the log, or an entry, cannot be read.
        """
        logged = self.rows(GET_CHANGES, (after, end.number), convert=lambda row: (row[0], end.keys(self._sealer, row)))
        if logged is None or [number for number, _ in logged] != list(range(after + 1, end.number + 1)):
            return None
        found: dict[bytes, EntryInfo | None] = {}
        for _, keys in logged:
            if keys is None:
                return None
            found |= dict.fromkeys(keys)
        numbers = sorted(number for key in found for number in self._sealer.row_ids(key))
        for k in range(0, len(numbers), SCAN_ROWS):
            rows = self.rows(_GET_INFOS, (json.dumps(numbers[k : k + SCAN_ROWS]),), convert=self._sealer.info)
            if rows is None or None in rows:
                return None
            found |= {info.key: info for info in rows if info.key in found}
        return found

    def check(self, totals: Totals) -> None:
        """Compare the totals, verify SQLite's own structures and every row; CorruptState if one is wrong."""
        for name, statement, expected in (("totals", TOTALS, tuple(totals)), ("integrity", _INTEGRITY, ("ok",))):
            found = self.rows(statement, ())
            if found != [expected]:
                raise CorruptState(f"{name}: expected {expected}, the file has {found}")
        ids = [number for info in self.scan() for number in self._sealer.row_ids(info.key)]
        reads = (self.rows(_GET, (number,)) for number in ids)  # None: the row cannot be read
        damaged = sum(rows is None or any(self._sealer.entry(row) is None for row in rows) for rows in reads)
        if damaged:
            raise CorruptState(f"{damaged} rows cannot be read or have an invalid seal")

    # Connections.

    def rows(
        self,
        statement: str,
        values: tuple[Any, ...],
        number: int | None = None,
        *,
        raising: bool = False,
        convert: Callable[[Any], Any] | None = None,
    ) -> list[Any] | None:
        """Return the rows. `number`: the only row that is read. `raising`: raise StoreError for a broken disk.

        `convert` is applied to each row as it is read. So a hostile file, in which many rows share one long value,
        takes the memory of one row.
        """
        try:
            cursor = self._cursor().execute(statement, values)
            return cursor.fetchall() if convert is None else [convert(row) for row in cursor]
        except Damaged:  # the schema
            self._counters["damaged"] += 1
            self._disconnect()
            self._on_damage(None)
        except DAMAGE:
            self._counters["damaged"] += 1
            self._disconnect()
            self._on_damage(number)
        # No column holds text, unless damage has made it so. No value is longer than we have written.
        except (UnicodeDecodeError, apsw.TooBigError):
            self._counters["damaged"] += 1
            self._disconnect()
            if number is not None:
                self._on_damage(number)
        except apsw.Error as error:
            self._counters["failed_reads"] += 1
            self._disconnect()
            if raising:
                raise StoreError(f"{self._path} could not be read: {error}") from error
        return None

    def close(self) -> None:
        """Close every connection; concurrent reads find nothing."""
        self._closed = True
        self._local = threading.local()
        for connection in list(self._connections):
            connection.close(True)

    def abandon(self) -> object:
        """Close in a forked child. Return the connections: they are the parent's, and must not be garbage-collected."""
        self._closed = True
        inherited = self._local, list(self._connections)
        self._local, self._connections = threading.local(), weakref.WeakSet()
        return inherited

    def _cursor(self) -> apsw.Cursor:
        local, generation = self._local, self.generation()
        if getattr(local, "generation", None) != generation:
            if self._closed:
                raise apsw.MisuseError("the store is closed")
            self._disconnect()
            connection = connect(self._path, self._vfs, BUSY_TIMEOUT, self._max_value)
            try:
                verify_schema(connection)
            except BaseException:
                connection.close(True)
                raise
            connection.pragma("query_only", True)
            connection.pragma("cache_size", -1024)
            self._connections.add(connection)
            local.connection, local.cursor, local.generation = connection, connection.cursor(), generation
        cursor: apsw.Cursor = local.cursor
        return cursor

    def _disconnect(self) -> None:
        """Close this thread's connection; its next read opens the file again."""
        self._local.generation = None
        connection = self._local.__dict__.pop("connection", None)
        if connection is not None:
            connection.close(True)

    def _watch_inode(self) -> int:
        now = time.monotonic()
        if now - self._checked_at > WATCH_SECONDS:
            self._checked_at = now
            inode = self._current_inode()
            if inode != self._inode:
                self._inode = inode
                self._replaced -= 1  # negative, so it differs from every count of an owner
        return self._replaced

    def _current_inode(self) -> int:
        try:
            return os.stat(self._path).st_ino
        except OSError:
            return 0
