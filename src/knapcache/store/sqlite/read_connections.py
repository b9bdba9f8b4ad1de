"""One read connection per thread, reopened when the database file was replaced.

`rows` returns all rows of a statement: a statement left unfinished would keep the log from being emptied. When the read
fails, `rows` counts the failure and returns None; or raises StoreError, for callers that tell a broken disk from
damage. It reports damage to `on_damage`, with the row's id where that is known.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from knapcache.errors import StoreError
from knapcache.store.sqlite.database import DAMAGE, connect, verify_schema
from knapcache.store.sqlite.files import Damaged

BUSY_TIMEOUT = 0.05  # seconds; a reader only ever waits for the recovery of a log
WATCH_SECONDS = 1.0  # how soon a reader notices that another process has replaced the file


class ReadConnections:
    """The read connections to one database file."""

    def __init__(
        self,
        path: Path,
        vfs: str | None,
        max_value: int,
        counters: Counter[str],
        on_damage: Callable[[int | None], None],
    ) -> None:
        self.generation: Callable[[], int] = self._watch_inode
        """How often the file was replaced. The owner sets this to its own count; readers watch the inode."""
        self._path, self._vfs, self._counters, self._on_damage = path, vfs, counters, on_damage
        self._max_value = max_value
        self._local = threading.local()
        self._connections: weakref.WeakSet[apsw.Connection] = weakref.WeakSet()
        self._closed = False
        self._inode, self._checked_at, self._replaced = self._current_inode(), time.monotonic(), 0

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
