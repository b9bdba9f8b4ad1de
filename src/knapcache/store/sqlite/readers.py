"""A connection for each thread that reads, opened anew when the file was replaced, and never an exception.

`rows` returns what a statement finds, read to its end: a statement left half way would hold the log back. When it
cannot, it returns None and counts why; or says StoreError, to those who want to tell a broken disk from damage. Damage
is reported to `on_damage`, with the row's id where it is known.
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
from knapcache.store.sqlite.database import DAMAGE, connect

BUSY = 0.05  # a reader only ever waits for a log that is being recovered
WATCH_SECONDS = 1.0  # how soon another process's replacing of the file is noticed


class Readers:
    """The reading side of one file."""

    def __init__(
        self, path: Path, vfs: str | None, counters: Counter[str], on_damage: Callable[[int | None], None]
    ) -> None:
        self.generation: Callable[[], int] = self._watched
        """How often the file was replaced. The owner knows; others look."""
        self._path, self._vfs, self._counters, self._on_damage = path, vfs, counters, on_damage
        self._local = threading.local()
        self._connections: weakref.WeakSet[apsw.Connection] = weakref.WeakSet()
        self._closed = False
        self._inode, self._looked, self._replaced = self._now_at_path(), time.monotonic(), 0

    def rows(
        self, statement: str, values: tuple[Any, ...], number: int | None = None, *, raising: bool = False
    ) -> list[Any] | None:
        """What the statement finds. `number`: the only row it can be about. `raising`: StoreError for a broken disk."""
        try:
            return self._cursor().execute(statement, values).fetchall()
        except DAMAGE:
            self._counters["damaged"] += 1
            self._let_go()
            self._on_damage(number)
        except UnicodeDecodeError:  # text, where only damage can have put text
            self._counters["damaged"] += 1
            self._let_go()
            if number is not None:
                self._on_damage(number)
        except apsw.Error as error:
            self._counters["failed_reads"] += 1
            self._let_go()
            if raising:
                raise StoreError(f"not read: {error}") from error
        return None

    def close(self) -> None:
        """Let go of every connection; whoever reads now finds nothing."""
        self._closed = True
        self._local = threading.local()
        for connection in list(self._connections):
            connection.close(True)

    def forked(self) -> object:
        """Closed without closing: the connections are the parent's. They have to be kept, or Python closes them."""
        self._closed = True
        kept = self._local, list(self._connections)
        self._local, self._connections = threading.local(), weakref.WeakSet()
        return kept

    def _cursor(self) -> apsw.Cursor:
        local, generation = self._local, self.generation()
        if getattr(local, "generation", None) != generation:
            if self._closed:
                raise apsw.MisuseError("the store is closed")
            self._let_go()
            connection = connect(self._path, self._vfs, BUSY)
            connection.pragma("query_only", True)
            connection.pragma("cache_size", -1024)
            self._connections.add(connection)
            local.connection, local.cursor, local.generation = connection, connection.cursor(), generation
        cursor: apsw.Cursor = local.cursor
        return cursor

    def _let_go(self) -> None:
        """The next read of this thread opens the file anew."""
        self._local.generation = None
        connection = self._local.__dict__.pop("connection", None)
        if connection is not None:
            connection.close(True)

    def _watched(self) -> int:
        now = time.monotonic()
        if now - self._looked > WATCH_SECONDS:
            self._looked = now
            inode = self._now_at_path()
            if inode != self._inode:
                self._inode = inode
                self._replaced -= 1  # below zero, where no owner counts
        return self._replaced

    def _now_at_path(self) -> int:
        try:
            return os.stat(self._path).st_ino
        except OSError:
            return 0
