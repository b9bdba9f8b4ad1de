"""Recognise the files of a store, so that no file of another program is opened, changed, renamed or deleted.

A database is ours if its header has SQLite's magic string and our application id. So that one flipped bit does not
disown it, the application id may stand with other constants of the header instead of the magic string, and a file
without our id is ours if it has our sealed format row. A power cut during a checkpoint can damage the header's page;
then the log has the page, and SQLite repairs it. Such a file is ours if a sector of any page is the same in both. An
empty file (0 bytes) may be used: nothing in it can be lost.

    PATH             header as above
    PATH-wal         empty, zeros, or the header of a SQLite log with our page size, of which one bit may differ
    PATH-shm         whole blocks of 32 KiB that begin with zeros or with SQLite's version number
    PATH-journal     never ours: a rollback journal could change the database or name a file to delete
    PATH.lock        empty, or a process id (owner_lock.py)
    PATH.spool/      files with our names; all others are left alone (spool.py)
    PATH.new, PATH.rebuilt, PATH.rekeyed   unfinished copies: empty, or a database of ours

A power cut can leave anything in a log. So an unrecognisable log beside a database of ours is not an error: SQLite
would ignore and overwrite it, and it is renamed first (recovery.py). Without a database of ours it is StoreError.

The checks read bytes, and do not let SQLite open the file: that could create or replay a log.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import sys
from pathlib import Path
from urllib.parse import quote

import apsw

from knapcache.errors import InvalidInput, StoreError
from knapcache.store.sqlite.layout import PAGE
from knapcache.store.sqlite.rows import GET_STATE, Sealer

APPLICATION_ID = 0x4B6E6170  # "Knap"
FORMAT_ROW = 1
"""Id of the sealed format number in the table `state`."""

_MAGIC = b"SQLite format 3\0"
_CONSTANTS = PAGE.to_bytes(2, "big"), bytes((0, 64, 32, 32))  # at 16 and 20: page size; reserved bytes and fractions
_ID = APPLICATION_ID.to_bytes(4, "big")
_HEADER_BYTES = 100
_LOG_VERSION = 3_007_000
_LOG_HEADERS = tuple(struct.pack(">III", magic, _LOG_VERSION, PAGE) for magic in (0x377F0682, 0x377F0683))
_LOG_HEADER, _FRAME_HEADER, _SECTOR = 32, 24, 512
_DISTINCT = 16
"""Different bytes in a sector that cannot be the same by chance. Empty parts of pages are zeros."""
_INDEX_BLOCK = 32 << 10


class Damaged(Exception):  # noqa: N818 - never leaves the package
    """The file is damaged."""


def validate_path(path: str | os.PathLike[str], *, follow: bool = True) -> Path:
    """Return the path of a file, existing or not, with a symbolic link resolved; InvalidInput if it is not a file.

    follow: False refuses a symbolic link.
    """
    found = Path(path)
    if found.is_symlink():
        if not follow:
            raise InvalidInput(f"{found} is a symbolic link, which is not followed; move it away")
        found = found.resolve()  # SQLite keeps its logs beside the target
    if found.exists() and not found.is_file():
        raise InvalidInput(f"path must name a file, but {found} is not a regular file")
    return found


def require_own_files(path: Path, *, exclusive: bool = False) -> None:
    """Raise StoreError if `path` or a file beside it that the store would write is not ours.

    `exclusive`: the caller owns the directory, so a file that is not recognisable was ours. It raises Damaged.
    """
    header = read_start(path)
    if header and not has_our_header(header) and not _has_format_row(path) and not _is_in_our_log(path):
        if header.startswith(_MAGIC) and _is_database(path):
            raise StoreError(f"{path} is a SQLite database of another program; it was not changed")
        _refuse(path, exclusive)
    for log in unrecognised_logs(path):
        if not header:
            _refuse(log, exclusive)
    journal = Path(f"{path}-journal")
    if os.path.lexists(journal):
        raise StoreError(f"{journal} is not a file of this store, and SQLite would apply it; move it away")


def unrecognised_logs(path: Path) -> list[Path]:
    """Return those of PATH-wal and PATH-shm that are not recognisable as ours."""
    found = []
    for suffix, is_ours in (("-wal", _is_our_log), ("-shm", _is_our_index)):
        if not is_ours(Path(f"{path}{suffix}")):
            found.append(Path(f"{path}{suffix}"))
    return found


def _refuse(path: Path, exclusive: bool) -> None:
    if exclusive:
        raise Damaged(f"{path.name} is not recognisable as a file of knapcache")
    raise StoreError(
        f"{path} is not recognisable as a file of knapcache; it was not changed. Choose another path. If it was a file "
        "of knapcache, it is damaged: move it away, and the store starts empty"
    )


def remove_unfinished(path: Path) -> None:
    """Remove an unfinished copy and its logs; StoreError if one of them is not ours."""
    require_own_files(path)
    for suffix in ("-wal", "-shm", ""):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def read_start(path: Path, size: int = _HEADER_BYTES) -> bytes:
    """Return the first bytes of a regular file; none if it is missing. StoreError if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StoreError(f"{path} is not a regular file")
            return os.read(descriptor, size)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error}") from error


def format_in(header: bytes) -> int:
    """Return the format number (`user_version`) in the first 100 bytes of a database."""
    return int.from_bytes(header[60:64])


def has_our_header(header: bytes) -> bool:
    """Return whether the first 100 bytes of a file are those of our database."""
    constants = header[16:18], header[20:24]
    return header[68:72] == _ID and (header.startswith(_MAGIC) or constants == _CONSTANTS)


def _has_format_row(path: Path) -> bool:
    """Return whether a database without our application id has our sealed format row: then its id is damaged."""
    try:
        connection = open_without_trace(path)
        try:
            ((kind,),) = connection.execute("SELECT type FROM sqlite_schema WHERE name = 'state'")
            ((seal, value),) = connection.execute(GET_STATE, (FORMAT_ROW,))
            return kind == "table" and isinstance(value, bytes) and seal == Sealer().seal(b"format", value)
        finally:
            connection.close(True)
    except (apsw.Error, ValueError):
        return False


def _is_in_our_log(path: Path) -> bool:
    """Return whether the log has our first page, and the file a sector of a page that the log has, too."""
    if not _is_our_log(log := Path(f"{path}-wal")):
        return False
    has_our_page = has_its_sector = False
    with contextlib.suppress(OSError), open(log, "rb") as frames, open(path, "rb") as file:
        header = frames.read(_LOG_HEADER)
        while (frame := frames.read(_FRAME_HEADER))[8:16] == header[16:24] and len(frame) == _FRAME_HEADER:
            number, page = int.from_bytes(frame[:4]), frames.read(PAGE)
            has_our_page = has_our_page or (number == 1 and has_our_header(page))
            if not has_its_sector:
                file.seek((number - 1) * PAGE)
                has_its_sector = _share_a_sector(page, file.read(PAGE))
            if has_our_page and has_its_sector:
                return True
    return False


def _share_a_sector(one: bytes, other: bytes) -> bool:
    """Return whether two pages have an equal sector at the same place. Sectors of few different bytes do not count."""
    sectors = (slice(k, k + _SECTOR) for k in range(0, PAGE, _SECTOR))
    return any(one[sector] == other[sector] and len(set(one[sector])) >= _DISTINCT for sector in sectors)


def _is_database(path: Path) -> bool:
    try:
        connection = open_without_trace(path)
        try:
            return bool(connection.execute("SELECT count(*) FROM sqlite_schema").fetchall())
        finally:
            connection.close(True)
    except (apsw.Error, ValueError):
        return False


def open_without_trace(path: Path) -> apsw.Connection:
    """Open a database that may be another program's: without locks, without its log, and with a bound on the work."""
    uri = f"file:{quote(str(path.absolute()))}?immutable=1"
    connection = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    restrict(connection, 1 << 20)
    connection.set_progress_handler(lambda: True, 100_000)
    return connection


def restrict(connection: apsw.Connection, max_value: int) -> None:
    """Turn off what a hostile schema could use, and limit each value to `max_value` bytes."""
    for option, value in (
        (apsw.SQLITE_DBCONFIG_DEFENSIVE, 1),
        (apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0),
        (apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0),
        (apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0),
    ):
        connection.config(option, value)
    for limit, value in (
        (apsw.SQLITE_LIMIT_LENGTH, max_value),
        (apsw.SQLITE_LIMIT_SQL_LENGTH, 100_000),
        (apsw.SQLITE_LIMIT_COLUMN, 100),
        (apsw.SQLITE_LIMIT_EXPR_DEPTH, 50),
        (apsw.SQLITE_LIMIT_ATTACHED, 0),
        (apsw.SQLITE_LIMIT_TRIGGER_DEPTH, 1),
        (apsw.SQLITE_LIMIT_WORKER_THREADS, 0),
    ):
        connection.limit(limit, value)
    connection.pragma("cell_size_check", True)
    connection.pragma("ignore_check_constraints", True)


def _is_our_log(path: Path) -> bool:
    start = read_start(path, 12)
    if not start.strip(b"\0"):
        return True
    found = int.from_bytes(start)
    return any((found ^ int.from_bytes(header[: len(start)])).bit_count() <= 1 for header in _LOG_HEADERS)


def _is_our_index(path: Path) -> bool:
    start = read_start(path, 4)
    if not start:
        return True
    return path.stat().st_size % _INDEX_BLOCK == 0 and int.from_bytes(start, sys.byteorder) in (0, _LOG_VERSION)


def sync(path: Path) -> None:
    """Write a file, or the names in a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
