"""A SQLite file beside the store that several processes write, or the same tables in memory.

A file that SQLite cannot read is renamed (side_files.py), and an empty one is begun. So is a file of another program.
Processes that had an old file open notice that another one has its name, and open that.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import apsw

from knapcache.errors import StoreError
from knapcache.store.sqlite.database import DAMAGE
from knapcache.store.sqlite.side_files import connect, file_id, only_process, set_aside

log = logging.getLogger("knapcache.store")

DAMAGE_AT_OPENING = (*DAMAGE, apsw.SQLError, apsw.ReadOnlyError, apsw.TooBigError, UnicodeDecodeError)
T = TypeVar("T")


class SharedFile:
    """The file `path`; None: in memory. Threads share one connection.

    name        what the file is, in messages
    max_value   bytes of a value
    prepare     creates the tables of a new file, and checks those of an existing one
    lost        what it means that a damaged file was replaced, in messages
    """

    def __init__(
        self, path: Path | None, name: str, max_value: int, prepare: Callable[[apsw.Connection], None], lost: str
    ) -> None:
        self.path = path
        self._name, self._max_value, self._prepare, self._lost = name, max_value, prepare, lost
        self._lock = threading.Lock()
        self._connection: apsw.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._closed = False

    def run(self, operation: Callable[[apsw.Connection], T]) -> T:
        """Run an operation, or raise StoreError. A damaged file is replaced, and the operation repeated."""
        with self._lock:
            try:
                try:
                    return operation(self._connected())
                except (*DAMAGE, TypeError, ValueError) as error:
                    self._disconnect()
                    return operation(self._connected(str(error)))
            except (apsw.Error, OSError, TypeError, ValueError) as error:
                self._disconnect()
                raise StoreError(f"{self._name} {self.path or 'in memory'} failed: {error}") from error

    def close(self) -> None:
        """Close the connection. Later calls raise StoreError."""
        with self._lock:
            self._closed = True
            self._disconnect()

    def _connected(self, damage: str = "") -> apsw.Connection:
        """Return the connection. damage: what was found; the file is replaced unless another process has done that."""
        if self._closed:
            raise StoreError(f"{self._name} is closed")
        path = self.path
        if path is None:
            if self._connection is None:
                self._connection = apsw.Connection(":memory:")
                self._prepare(self._connection)
        elif self._connection is None or self._inode != file_id(path):
            self._disconnect()
            with only_process(path):
                self._connection = self._open(path, damage)
                self._inode = file_id(path)
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(apsw.Error):
                connection.close(True)

    def _open(self, path: Path, damage: str) -> apsw.Connection:
        def prepare(connection: apsw.Connection) -> None:
            if damage and connection.pragma("quick_check") != "ok":
                raise apsw.CorruptError(damage)
            self._prepare(connection)

        try:
            return connect(path, self._max_value, prepare)
        except DAMAGE_AT_OPENING as error:
            log.warning(
                "%s %s is damaged (%s); it is now %s, and %s",
                self._name, path, damage or str(error), set_aside(path), self._lost,
            )  # fmt: skip
        return connect(path, self._max_value, self._prepare)
