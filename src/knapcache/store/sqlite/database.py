"""The database file: create, recognise, migrate and open it for writing.

A file identifies itself twice, by SQLite's application id and by a sealed row. So one flipped bit neither disowns it
nor makes it look like the work of a newer version. Formats are numbered: MIGRATIONS[n] takes format n to n + 1, and an
empty file has format 0. Creating a new file and migrating an old one are the same code.

Left untouched, with StoreError: a newer format, a database of another program, and a file written with another secret
(its rows would all look damaged, and would be deleted). A file that SQLite cannot read raises Damaged (recovery.py).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

import apsw

from knapcache.errors import InvalidInput, StoreError
from knapcache.store.base import Totals
from knapcache.store.sqlite.layout import PAGE, DiskLayout
from knapcache.store.sqlite.rows import GET_STATE, PUT_STATE, Sealer

APPLICATION_ID = 0x4B6E6170  # "Knap"
MIGRATIONS: list[tuple[str, ...]] = [
    (
        "CREATE TABLE entries (id INTEGER PRIMARY KEY, seal BLOB, key BLOB, size INTEGER, cost REAL, seconds REAL,"
        " created REAL, expires REAL, tenant BLOB, model BLOB, meta BLOB, request BLOB, payload BLOB)",
        "CREATE INDEX expiry ON entries (expires) WHERE expires IS NOT NULL",
        "CREATE TABLE state (id INTEGER PRIMARY KEY, seal BLOB, value BLOB)",
    ),
]
TOTALS = "SELECT count(*), coalesce(sum(CASE typeof(size) WHEN 'integer' THEN size ELSE 0 END), 0) FROM entries"
FORMAT_ROW, SNAPSHOT_ROW, SECRET_ROW = 1, 2, 3
"""Ids in the table `state`."""

DAMAGE = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError)
"""Errors that SQLite raises for a damaged file."""
# While a file is opened, a damaged header also looks like an unknown format or a read-only file.
DAMAGE_AT_OPENING = (*DAMAGE, apsw.SQLError, apsw.ReadOnlyError, apsw.TooBigError, ValueError, TypeError)


class OpenDatabase(NamedTuple):
    """A connection for writing, and the totals of the entries."""

    connection: apsw.Connection
    totals: Totals


class Damaged(Exception):  # noqa: N818 - never leaves the package
    """The file is damaged."""


class Oversize(Exception):  # noqa: N818 - never leaves the package
    """The file has more pages than its layout allows: it was made with a larger size limit."""


def validate_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file, existing or not, or raise InvalidInput."""
    found = Path(path)
    if found.exists() and not found.is_file():
        raise InvalidInput(f"path must name a file, but {found} is not a regular file")
    return found


def connect(path: Path, vfs: str | None, busy_timeout: float) -> apsw.Connection:
    """Return a connection that never checkpoints when it is closed, and never trusts the file's schema."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
    # Only the owner writes to the database. By default, the last connection to close would empty the log into it.
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.set_busy_timeout(int(busy_timeout * 1000))
    return connection


def create(path: Path) -> None:
    """Create an empty file of mode 0600, and its directory of mode 0700. Remove logs of an earlier file."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def open_database(
    path: Path, layout: DiskLayout, sealer: Sealer, *, synchronous: str, vfs: str | None, busy_timeout: float
) -> OpenDatabase:
    """Open an existing file for writing, and migrate it. Raise Damaged, Oversize, or StoreError (see above)."""
    connection = connect(path, vfs, busy_timeout)
    try:
        _recognise_and_migrate(connection)
        _check_secret(connection, sealer.seal(b"secret", b""))
        connection.pragma("synchronous", synchronous)
        connection.pragma("wal_autocheckpoint", 0)  # the writer does it when it has to
        connection.pragma("journal_size_limit", layout.log)
        connection.pragma("cache_spill", False)  # each page is written once per transaction, as layout.py assumes
        connection.pragma("cache_size", -4096)
        connection.pragma("max_page_count", layout.pages)
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        if connection.pragma("page_count") > layout.pages:
            raise Oversize
        _allocate_log(path, layout)
        _restrict_access(path)
        ((entries, size),) = connection.execute(TOTALS)
    except DAMAGE_AT_OPENING as error:
        connection.close(True)
        raise Damaged(str(error)) from error
    except BaseException:
        connection.close(True)
        raise
    return OpenDatabase(connection, Totals(entries, size))


def has_other_secret(path: Path, secret: bytes) -> bool:
    """Return whether a file was written with another secret. A reader would see each of its rows as damaged."""
    try:
        connection = connect(path, None, 1.0)
        try:
            return _secret_mark(connection) not in (None, Sealer(secret).seal(b"secret", b""))
        finally:
            connection.close(True)
    except (apsw.Error, UnicodeDecodeError):
        return False  # not readable: the caller's own read will report it


def _recognise_and_migrate(connection: apsw.Connection) -> None:
    application_id = connection.pragma("application_id")
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    if tables and application_id != APPLICATION_ID and not {"entries", "state"} <= tables:
        raise StoreError(f"{connection.filename} is a SQLite database of another program; it was not changed")
    version = _format(connection, empty=not tables)
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{connection.filename} was written by a newer version of knapcache (format {version}, known: "
            f"{len(MIGRATIONS)}); it was not changed"
        )
    connection.pragma("page_size", PAGE)  # has an effect on an empty file only
    if connection.pragma("journal_mode", "wal") != "wal":
        raise StoreError("the file system does not support shared memory, which SQLite's write-ahead log needs")
    if version < len(MIGRATIONS):
        _migrate(connection, version)
    if _schema(connection) != _expected_schema() or connection.pragma("page_size") != PAGE:
        raise Damaged("the schema or the page size is wrong")


def _format(connection: apsw.Connection, *, empty: bool) -> int:
    if empty:
        return 0
    version = int(connection.pragma("user_version"))
    rows = connection.execute(GET_STATE, (FORMAT_ROW,)).fetchall()
    value = b"%d" % version
    if rows != [(Sealer().seal(b"format", value), value)]:
        raise Damaged("user_version and the sealed format differ")
    return version


def _check_secret(connection: apsw.Connection, mark: bytes) -> None:
    known = _secret_mark(connection)
    if known is None:
        connection.execute(PUT_STATE, (SECRET_ROW, Sealer().seal(b"secret", mark), mark))
    elif known != mark:
        raise StoreError(f"{connection.filename} was written with another secret; it was not changed")


def _secret_mark(connection: apsw.Connection) -> bytes | None:
    """Return the mark of the file's secret. Its own seal needs no secret, so damage is not taken for another one."""
    for seal, value in connection.execute(GET_STATE, (SECRET_ROW,)).fetchall():
        if isinstance(value, bytes) and seal == Sealer().seal(b"secret", value):
            return value
    return None


def _migrate(connection: apsw.Connection, version: int) -> None:
    with connection:  # one transaction
        for migration in MIGRATIONS[version:]:
            for statement in migration:
                connection.execute(statement)
        value = b"%d" % len(MIGRATIONS)
        # Sealed without the deployment's secret: the format must be readable when the secret is lost.
        connection.execute(PUT_STATE, (FORMAT_ROW, Sealer().seal(b"format", value), value))
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("user_version", len(MIGRATIONS))


def _schema(connection: apsw.Connection) -> set[tuple[object, ...]]:
    return set(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema"))


def _expected_schema() -> set[tuple[object, ...]]:
    connection = apsw.Connection(":memory:")
    for migration in MIGRATIONS:
        for statement in migration:
            connection.execute(statement)
    return _schema(connection)


def _allocate_log(path: Path, layout: DiskLayout) -> None:
    """Allocate all blocks of the log. Without the allocation the store works too, until the disk is full."""
    if hasattr(os, "posix_fallocate"):
        with contextlib.suppress(OSError):
            descriptor = os.open(f"{path}-wal", os.O_RDWR)
            try:
                os.posix_fallocate(descriptor, 0, layout.log)
            finally:
                os.close(descriptor)


def _restrict_access(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(OSError):
            os.chmod(f"{path}{suffix}", 0o600)
