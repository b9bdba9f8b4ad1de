"""The database file: create, recognise, migrate and open it for writing.

A file identifies itself twice, by SQLite's application id and by a sealed row. So one flipped bit neither disowns it
nor makes it look like the work of a newer version. Formats are numbered: MIGRATIONS[n] takes format n to n + 1, and an
empty database has format 0. A new file gets its name when it is complete, so every file at the path is recognisable.

Left untouched, with StoreError: a file of another program (files.py), a newer format, and a file written with another
secret (its rows would all look damaged, and would be deleted), and an encrypted file without its key. A file of ours
whose schema is not exactly the expected one, or that SQLite cannot read, raises Damaged (recovery.py).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import apsw

from knapcache.errors import StoreError
from knapcache.model import REQUEST_VERSION
from knapcache.store.base import Totals
from knapcache.store.encryption import KEY_ID_BYTES, describe
from knapcache.store.sqlite.change_log import CHANGES_ROW, LogEnd, read_end, start_log
from knapcache.store.sqlite.files import (
    APPLICATION_ID,
    FORMAT_ROW,
    Damaged,
    format_in,
    open_without_trace,
    read_start,
    remove_unfinished,
    restrict,
    sync,
)
from knapcache.store.sqlite.layout import MB, PAGE, DiskLayout, operation_frames
from knapcache.store.sqlite.rows import GET_STATE, INFO_COLUMNS, PUT_STATE, Sealer
from knapcache.store.sqlite.side_files import Schema, schema_after, schema_of
from knapcache.store.sqlite.snapshot_rows import SNAPSHOT_ROW, is_sealed

log = logging.getLogger("knapcache.store")

_COLUMNS = (
    "seal BLOB, key BLOB, size INTEGER, cost REAL, seconds REAL, created REAL, expires REAL, tenant BLOB, model BLOB,"
    " meta BLOB, request BLOB, payload BLOB"
)
_OTHERS = (
    "CREATE INDEX expiry ON entries (expires) WHERE expires IS NOT NULL",
    "CREATE TABLE state (id INTEGER PRIMARY KEY, seal BLOB, value BLOB)",
)
MIGRATIONS: list[tuple[str, ...]] = [
    (
        f"CREATE TABLE entries (place INTEGER PRIMARY KEY, id INTEGER, {_COLUMNS})",
        "CREATE UNIQUE INDEX ids ON entries (id)",
        *_OTHERS,
    ),
    (),  # Format 2 has the same tables. Its payloads may be compact streams and typed results, which 0.1 would misread.
    (),  # Format 3: `state` has a change log (change_log.py), in which a change by an older version would be missing.
]
ORDERED_BY_ID = (f"CREATE TABLE entries (id INTEGER PRIMARY KEY, {_COLUMNS})", *_OTHERS)
"""The tables of files that 0.1 or 0.2 has created. Every statement works with both, and they are not converted."""
TOTALS = "SELECT count(*), coalesce(sum(CASE typeof(size) WHEN 'integer' THEN size ELSE 0 END), 0) FROM entries"
SECRET_ROW, ENCRYPTION_ROW, VERSION_ROW = 3, 4, 5
"""Ids in the table `state`, besides FORMAT_ROW, SNAPSHOT_ROW and CHANGES_ROW."""
REQUEST_START = 48
"""Bytes of a request that hold its version. Several items under one key have a length before it."""
_VERSION = re.compile(rb"(?:\d{1,12}:)?\d{2}:(knapcache request \d{1,4}),")

DAMAGE = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError)
"""Errors that SQLite raises for a damaged file."""
# While a file is opened, a damaged header also looks like an unknown format or a read-only file.
DAMAGE_AT_OPENING = (
    *DAMAGE, apsw.SQLError, apsw.ReadOnlyError, apsw.TooBigError, apsw.InterruptError, ValueError, TypeError
)  # fmt: skip


class OpenDatabase(NamedTuple):
    """A connection for writing, and the end of the change log, with the totals of the entries."""

    connection: apsw.Connection
    end: LogEnd


class Oversize(Exception):  # noqa: N818 - never leaves the package
    """The file has more pages than its layout allows: it was made with a larger size limit."""


def connect(path: Path, vfs: str | None, busy_timeout: float, max_value: int) -> apsw.Connection:
    """Return a connection that never checkpoints when it is closed, and never trusts the file's schema."""
    if os.path.lexists(f"{path}-journal"):  # never ours; SQLite would apply it to the database (files.py)
        raise apsw.CantOpenError(f"{path}-journal exists")
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
    # Only the owner writes to the database. By default, the last connection to close would empty the log into it.
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    restrict(connection, max_value)
    connection.set_busy_timeout(int(busy_timeout * 1000))
    return connection


def create(path: Path) -> None:
    """Create a database without entries, of mode 0600, and its directory of mode 0700.

    The file is complete when it gets its name. Only an empty file is replaced. Logs of an earlier file are removed: the
    caller has checked that they are ours.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = Path(f"{path}.new")
    remove_unfinished(unfinished)
    with open(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600), "wb") as file:
        file.write(_new_database())
        file.flush()
        os.fsync(file.fileno())
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    try:
        if path.exists() and path.stat().st_size == 0:
            path.unlink()
        os.link(unfinished, path)  # unlike a rename, it never replaces a file
    finally:
        unfinished.unlink()
    sync(path.parent)


def _new_database() -> bytes:
    """Return the bytes of a database without entries, in write-ahead mode."""
    connection = apsw.Connection(":memory:")
    connection.pragma("page_size", PAGE)
    _migrate(connection, 0)
    image = bytearray(connection.serialize("main"))
    image[18:20] = b"\2\2"  # write-ahead mode; a database in memory has none
    return bytes(image)


def open_database(
    path: Path, layout: DiskLayout, sealer: Sealer, *, synchronous: str, vfs: str | None, busy_timeout: float
) -> OpenDatabase:
    """Open an existing file for writing, and migrate it. Raise Damaged, Oversize, or StoreError (see above)."""
    connection = connect(path, vfs, busy_timeout, layout.max_value)
    try:
        _verify_and_migrate(connection)
        _check_secret(connection, sealer.secret_mark)
        check_encryption(connection, sealer)
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
        with bounded_work(connection, path):
            remove_outdated(connection, layout, path)
            end = read_end(connection, sealer)
            if end is None:
                ((entries, size),) = connection.execute(TOTALS)
                end = start_log(connection, sealer, Totals(entries, size))
    except DAMAGE_AT_OPENING as error:
        connection.close(True)
        raise Damaged(str(error)) from error
    except BaseException:
        connection.close(True)
        raise
    return OpenDatabase(connection, end)


@contextlib.contextmanager
def bounded_work(connection: apsw.Connection, path: Path) -> Iterator[None]:
    """Raise InterruptError in a statement that takes more steps than the file can have rows.

    In a hostile tree many pointers lead to one page, so a small file can have any number of rows.
    """
    steps = 100_000 + path.stat().st_size // 4  # a row has more than 100 bytes, and takes fewer than 20 steps
    connection.set_progress_handler(lambda: True, min(steps, 2**31 - 1))
    try:
        yield
    finally:
        connection.set_progress_handler(None)


def is_outdated(request: bytes) -> bool:
    """Return whether a stored request has the form of another version."""
    found = _VERSION.match(request)
    return found is not None and found[1] != REQUEST_VERSION


def remove_outdated(connection: apsw.Connection, layout: DiskLayout, path: Path) -> None:
    """Remove entries whose requests have the form of an older version: no request has their keys, so none is ever hit.

    A stored request begins with its version (`keys/canonical.py`), and the key is a digest of the whole. VERSION_ROW
    has the version of all requests of a file. Where it differs or is missing, the file is converted once. The policy's
    state is removed if nothing is left for it. Bytes that name no version are not touched. An encrypted file names
    none: encryption is younger than the last change of the version.
    """
    mark = Sealer().seal(b"requests", REQUEST_VERSION), REQUEST_VERSION
    if connection.execute(GET_STATE, (VERSION_ROW,)).fetchall() == [mark]:
        return
    rows = connection.execute(
        "SELECT id, substr(request, 1, ?) FROM entries WHERE typeof(request) = 'blob'", (REQUEST_START,)
    )
    found = [number for number, start in rows if start and is_outdated(start)]  # SQLite returns null for no bytes
    if found:
        connection.execute("DELETE FROM state WHERE id = ?", (CHANGES_ROW,))  # first: the totals will not be right
    batch = max(1, layout.frames_per_transaction // operation_frames())  # the log has a fixed size
    for first in range(0, len(found), batch):
        with connection:
            connection.executemany("DELETE FROM entries WHERE id = ?", [(k,) for k in found[first : first + batch]])
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    if found:
        if not connection.execute("SELECT 1 FROM entries LIMIT 1").fetchall():
            connection.execute("DELETE FROM state WHERE id = ?", (SNAPSHOT_ROW,))
        log.warning(
            "%s: %d entries of an older version of knapcache were removed. The form of stored requests has changed, "
            "so none of them could be hit.", path, len(found)
        )  # fmt: skip
    connection.execute(PUT_STATE, (VERSION_ROW, *mark))


def known_format(path: Path) -> int:
    """Return the format of a file by its header, without opening the database. StoreError for a newer one."""
    version = format_in(read_start(path))
    _require_known(path, version)
    return version


def has_other_secret(path: Path, secret: bytes, *, trace: bool = True) -> bool:
    """Return whether a file was written with another secret. A reader would see each of its rows as damaged.

    trace   SQLite may create or change files beside it; False: its log is not read
    """
    try:
        connection = connect(path, None, 1.0, MB) if trace else open_without_trace(path)
        try:
            return _secret_mark(connection) not in (None, Sealer(secret).secret_mark)
        finally:
            connection.close(True)
    except (apsw.Error, UnicodeDecodeError):
        return False  # not readable: the caller's own read will report it


def _verify_and_migrate(connection: apsw.Connection) -> None:
    schema = schema_of(connection)
    version = int(connection.pragma("user_version"))
    if 0 < version <= len(MIGRATIONS) and schema not in _expected_schemas(version):
        # Before anything else is read: a view or a generated column instead of ours would compute what we read.
        raise Damaged("the schema is not that of its format")
    if ("table", "state", "state") not in {row[:3] for row in schema}:
        raise Damaged("the table of the format is missing")
    _check_format(connection, version)
    _require_known(connection.filename, version)
    if connection.pragma("page_size") != PAGE or connection.pragma("auto_vacuum") != 0:
        raise Damaged("the page size or the kind of free list is not ours")
    if connection.pragma("journal_mode", "wal") != "wal":
        raise StoreError("the file system does not support shared memory, which SQLite's write-ahead log needs")
    if version < len(MIGRATIONS):
        _migrate(connection, version)
    if connection.pragma("application_id") != APPLICATION_ID:  # a bit of it was flipped
        connection.pragma("application_id", APPLICATION_ID)


def _require_known(path: str | Path, version: int) -> None:
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path} was written by a newer version of knapcache (format {version}, known: {len(MIGRATIONS)}); "
            "it was not changed"
        )


def _check_format(connection: apsw.Connection, version: int) -> None:
    rows = connection.execute(GET_STATE, (FORMAT_ROW,)).fetchall()
    value = b"%d" % version
    if rows != [(Sealer().seal(b"format", value), value)]:
        raise Damaged("user_version and the sealed format differ")


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


def check_encryption(connection: apsw.Connection, sealer: Sealer, *, write: bool = True) -> None:
    """Raise StoreError unless the file can be read with these keys. `write`: record that the first one is used."""
    used = key_ids_in(connection)
    given = () if sealer.encryption is None else sealer.encryption.key_ids
    name = connection.filename
    if used and not given:
        raise StoreError(f"{name} is encrypted, and no key was given (it needs {describe(used)}); it was not changed")
    if missing := [key_id for key_id in used if key_id not in given]:
        raise StoreError(
            f"{name} is encrypted with another key: it needs {describe(missing)}, given: {describe(given)}; "
            "it was not changed"
        )
    if given and not used:
        rows = connection.execute(f"SELECT {INFO_COLUMNS} FROM entries LIMIT 1").fetchall()
        if (rows and sealer.info(rows[0]) is None) or (not rows and _has_plain_snapshot(connection, sealer)):
            raise StoreError(
                f"{name} is not encrypted, and a key was given; it was not changed. `knapcache rekey` encrypts it"
            )
    if write and given and given[0] not in used:
        value = b"".join(sorted({*used, given[0]}))
        connection.execute(PUT_STATE, (ENCRYPTION_ROW, Sealer().seal(b"encryption", value), value))


def key_ids_in(connection: apsw.Connection) -> tuple[bytes, ...]:
    """Return the ids of the keys that the file is encrypted with; none if it is not encrypted."""
    for seal, value in connection.execute(GET_STATE, (ENCRYPTION_ROW,)).fetchall():
        if isinstance(value, bytes) and seal == Sealer().seal(b"encryption", value):
            return tuple(value[k : k + KEY_ID_BYTES] for k in range(0, len(value), KEY_ID_BYTES))
    return ()


def require_keys(path: Path, sealer: Sealer) -> None:
    """Raise StoreError unless an existing file can be read with these keys."""
    try:
        connection = connect(path, None, 1.0, MB)
        try:
            verify_schema(connection)
            check_encryption(connection, sealer, write=False)
        finally:
            connection.close(True)
    except (apsw.Error, UnicodeDecodeError, Damaged):
        return  # not readable: the caller's own read will report it


def _has_plain_snapshot(connection: apsw.Connection, sealer: Sealer) -> bool:
    return any(not is_sealed(sealer, *row) for row in connection.execute(GET_STATE, (SNAPSHOT_ROW,)))


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


def verify_schema(connection: apsw.Connection) -> None:
    """Raise Damaged unless the schema is exactly ours. That of a newer format is not."""
    if schema_of(connection) not in _expected_schemas(len(MIGRATIONS)):
        raise Damaged("the schema is not ours")


def _expected_schemas(version: int) -> list[Schema]:
    later = tuple(statement for migration in MIGRATIONS[1:version] for statement in migration)
    return [schema_after((*tables, *later)) for tables in (MIGRATIONS[0], ORDERED_BY_ID)]


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
