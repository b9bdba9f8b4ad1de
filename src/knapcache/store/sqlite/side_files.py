"""Open the SQLite files that a proxy has beside its store: counters of limits, the semantic log, the content log.

    PATH, PATH-wal, PATH-shm   regular files of mode 0600, or missing
    PATH-journal               never ours, because these files have a write-ahead log. SQLite would apply it, or delete
                               a file that it names, so it is renamed before
    PATH.lock                  locked while a process opens, creates or replaces PATH
    PATH.damaged               a file that cannot be used; the next one replaces it

A symbolic link instead of one of them is not followed: StoreError. Several processes may have a file open. A process
that finds it replaced, by its inode, opens it again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import apsw

from knapcache.errors import StoreError
from knapcache.store.sqlite.files import format_in, read_start, restrict

BUSY_SECONDS = 5.0
"""How long a transaction waits for that of another process."""
MAX_LOG = 8 << 20
"""Bytes of a write-ahead log that stay on disk after a checkpoint."""
_FLAGS = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


Schema = tuple[tuple[str, ...], ...]
"""All tables, indexes, triggers and views of a file."""


class FileKind(NamedTuple):
    """The tables of a kind of file, and the numbers in its header by which it is recognised."""

    application_id: int
    format: int
    statements: tuple[str, ...]
    """They create the tables."""

    def check(self, connection: apsw.Connection, path: Path | None, *older: tuple[str, ...]) -> Schema:
        """Return the schema of a file; empty: it is new. older: statements of formats that the caller converts.

        Raises StoreError for a file of a newer version, and apsw.CorruptError for other tables.
        """
        identity = connection.pragma("application_id")
        self._require_known(path, identity, connection.pragma("user_version"))
        existing = schema_of(connection)
        known = map(schema_after, (self.statements, *older))
        if existing and (identity != self.application_id or existing not in known):
            raise apsw.CorruptError("its tables are not those that knapcache writes")
        return existing

    def known_format(self, path: Path) -> int:
        """Return the format of a file by its header, without opening the database. StoreError as `check`."""
        header = read_start(path)
        version = format_in(header)
        self._require_known(path, int.from_bytes(header[68:72]), version)
        return version

    def _require_known(self, path: Path | None, identity: int, version: int) -> None:
        if identity == self.application_id and version > self.format:
            raise StoreError(f"{path} was written by a newer version of knapcache; it was not changed")

    def create(self, connection: apsw.Connection) -> None:
        """Create the tables in an empty file."""
        for statement in self.statements:
            connection.execute(statement)
        connection.pragma("application_id", self.application_id)
        connection.pragma("user_version", self.format)


def connect(path: Path, max_value: int, prepare: Callable[[apsw.Connection], None]) -> apsw.Connection:
    """Open a file, which is created if it is missing, and prepare it. The caller holds `only_process`.

    max_value: bytes of a value. Raises StoreError, OSError or apsw.Error, and what `prepare` raises.
    """
    os.close(_open_regular(path))
    for suffix in ("-wal", "-shm"):
        _require_regular(Path(f"{path}{suffix}"))
    journal = Path(f"{path}-journal")
    _require_regular(journal)
    with contextlib.suppress(FileNotFoundError):
        os.rename(journal, f"{path}.damaged-journal")
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        restrict(connection, max_value)
        connection.set_busy_timeout(int(BUSY_SECONDS * 1000))
        prepare(connection)
    except BaseException:
        connection.close(True)
        raise
    return connection


def use_log(connection: apsw.Connection) -> None:
    """Use a write-ahead log; StoreError if the file system cannot."""
    if connection.pragma("journal_mode", "wal") != "wal":
        raise StoreError("the file system does not support shared memory, which SQLite's write-ahead log needs")
    connection.pragma("synchronous", "normal")
    connection.pragma("journal_size_limit", MAX_LOG)


def schema_of(connection: apsw.Connection) -> Schema:
    rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema LIMIT 100")
    return tuple(sorted(tuple(map(str, row)) for row in rows))


@functools.cache
def schema_after(statements: tuple[str, ...]) -> Schema:
    """Return the schema that statements create."""
    with contextlib.closing(apsw.Connection(":memory:")) as connection:
        for statement in statements:
            connection.execute(statement)
        return schema_of(connection)


@contextlib.contextmanager
def only_process(path: Path) -> Iterator[None]:
    """Keep other processes from opening or replacing the file `path` meanwhile."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = _open_regular(Path(f"{path}.lock"))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def writing(connection: apsw.Connection) -> Iterator[None]:
    """Run statements in one transaction, which waits for those of other processes."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(apsw.Error):
            connection.execute("ROLLBACK")
        raise


def set_aside(path: Path) -> str:
    """Rename a damaged file and its logs. Return the new name."""
    target = f"{path}.damaged"
    for suffix in ("-shm", "-wal", ""):
        Path(f"{target}{suffix}").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            os.rename(f"{path}{suffix}", f"{target}{suffix}")
    return target


def file_id(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file; None if there is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _open_regular(path: Path) -> int:
    """Open a regular file, which is created if it is missing; return its descriptor."""
    try:
        descriptor = os.open(path, _FLAGS, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            _refuse(path)
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        _refuse(path)
    return descriptor


def _require_regular(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            _refuse(path)


def _refuse(path: Path) -> None:
    what = "a symbolic link, which is not followed" if path.is_symlink() else "not a regular file"
    raise StoreError(f"{path} is {what}; move it away")
