"""The database file: created, recognised, migrated, set aside when it is beyond repair, and owned by one process.

A file is ours when it says so twice (application id, and a sealed row), so that one flipped bit neither disowns it nor
makes it look like the work of a newer version. Formats are numbered; STEPS[n] takes format n to n + 1, and an empty
file is format 0: making a new file and migrating an old one are the same code. A newer format, and a database that
is somebody else's, raise StoreError and stay untouched; so does a file of another secret, whose rows would all look
damaged, and would be dropped. What SQLite cannot read is renamed to `….damaged-N`.

One process owns a file, by a lock on `….lock` that the kernel drops when the process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
from pathlib import Path

import apsw

from knapcache.errors import InvalidInput, NotOwner, StoreError
from knapcache.store.base import Totals
from knapcache.store.sqlite.layout import PAGE, Layout
from knapcache.store.sqlite.rows import KEEP_STATE, Sealer

log = logging.getLogger("knapcache.store")

APPLICATION = 0x4B6E6170  # "Knap"
STEPS: list[tuple[str, ...]] = [
    (
        "CREATE TABLE entries (id INTEGER PRIMARY KEY, seal BLOB, key BLOB, size INTEGER, cost REAL, seconds REAL,"
        " created REAL, expires REAL, tenant BLOB, model BLOB, meta BLOB, request BLOB, payload BLOB)",
        "CREATE INDEX expiry ON entries (expires) WHERE expires IS NOT NULL",
        "CREATE TABLE state (id INTEGER PRIMARY KEY, seal BLOB, value BLOB)",
    ),
]
COUNT = "SELECT count(*), coalesce(sum(CASE typeof(size) WHEN 'integer' THEN size ELSE 0 END), 0) FROM entries"
FORMAT_ROW, SNAPSHOT_ROW, SECRET_ROW = 1, 2, 3

DAMAGE = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError)
"""What SQLite raises when a file is not what it should be."""
# While a file is being opened, a damaged header also looks like an unknown format or a file that may not be written.
DAMAGE_AT_OPENING = (*DAMAGE, apsw.SQLError, apsw.ReadOnlyError, apsw.TooBigError, ValueError, TypeError)


Opened = tuple[apsw.Connection, Totals]
"""A connection, and what it found."""


class Damaged(Exception):  # noqa: N818 - never leaves the package
    """The file cannot be used as it is."""


class Oversize(Exception):  # noqa: N818 - likewise
    """The file was made under a larger budget."""


def connect(path: Path, vfs: str | None, busy: float) -> apsw.Connection:
    """A connection that never checkpoints or deletes behind our back."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
    # The owner alone writes to the database: the last one to close would otherwise empty the log into it.
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.set_busy_timeout(int(busy * 1000))
    return connection


def create(path: Path) -> None:
    """An empty file that only its owner may read, in a directory of that kind. Logs without a file are removed."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def open_database(
    path: Path, layout: Layout, sealer: Sealer, *, synchronous: str, vfs: str | None, busy: float
) -> Opened:
    """The writer's connection to a file that is there, migrated and within its budget; Damaged when hopeless."""
    connection = connect(path, vfs, busy)
    try:
        _prepare(connection)
        _same_secret(connection, sealer.seal(b"secret", b""))
        connection.pragma("synchronous", synchronous)
        connection.pragma("wal_autocheckpoint", 0)  # the writer does it, when it has to
        connection.pragma("journal_size_limit", layout.log)
        connection.pragma("cache_spill", False)  # a page is written once a transaction: the log's arithmetic needs it
        connection.pragma("cache_size", -4096)
        connection.pragma("max_page_count", layout.pages)
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        if connection.pragma("page_count") > layout.pages:
            raise Oversize
        _take_blocks(path, layout)
        _only_for_us(path)
        ((entries, size),) = connection.execute(COUNT)
    except DAMAGE_AT_OPENING as error:
        connection.close(True)
        raise Damaged(str(error)) from error
    except BaseException:
        connection.close(True)
        raise
    return connection, Totals(entries, size)


def _prepare(connection: apsw.Connection) -> None:
    """Recognise the file, bring it to the newest format, and make sure that it is what we would have made."""
    known = connection.pragma("application_id")
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    if tables and known != APPLICATION and not {"entries", "state"} <= tables:
        raise StoreError("a SQLite database, but not one of knapcache's: it stays as it is")
    version = _format(connection, empty=not tables)
    if version > len(STEPS):
        raise StoreError(f"written by a newer version (format {version}, this one knows {len(STEPS)}): untouched")
    connection.pragma("page_size", PAGE)  # has an effect on an empty file only
    if connection.pragma("journal_mode", "wal") != "wal":
        raise StoreError("the file system cannot share memory between processes, which a write-ahead log needs")
    if version < len(STEPS):
        _migrate(connection, version)
    if _schema(connection) != _expected_schema() or connection.pragma("page_size") != PAGE:
        raise Damaged("the schema is not ours")


def _format(connection: apsw.Connection, *, empty: bool) -> int:
    if empty:
        return 0
    version = int(connection.pragma("user_version"))
    rows = connection.execute("SELECT seal, value FROM state WHERE id = ?", (FORMAT_ROW,)).fetchall()
    value = b"%d" % version
    if rows != [(Sealer().seal(b"format", value), value)]:
        raise Damaged("the format is said twice, and differently")
    return version


def _same_secret(connection: apsw.Connection, mark: bytes) -> None:
    known = _mark_in(connection)
    if known is None:
        connection.execute(KEEP_STATE, (SECRET_ROW, Sealer().seal(b"secret", mark), mark))
    elif known != mark:
        raise StoreError("written under another secret: it stays as it is")


def _mark_in(connection: apsw.Connection) -> bytes | None:
    """The file says whose secret it is of, and says it sealed without one: a flipped bit is not another secret."""
    for seal, value in connection.execute("SELECT seal, value FROM state WHERE id = ?", (SECRET_ROW,)).fetchall():
        if isinstance(value, bytes) and seal == Sealer().seal(b"secret", value):
            return value
    return None


def is_of_another_secret(path: Path, secret: bytes) -> bool:
    """Whether a file says so, for those who only read: to them every row would look damaged, and none be shown."""
    try:
        connection = connect(path, None, 1.0)
        try:
            return _mark_in(connection) not in (None, Sealer(secret).seal(b"secret", b""))
        finally:
            connection.close(True)
    except (apsw.Error, UnicodeDecodeError):
        return False  # what cannot be read says nothing, and reading it will tell


def _migrate(connection: apsw.Connection, version: int) -> None:
    """All steps in one transaction: a file is of one format or of another."""
    with connection:
        for step in STEPS[version:]:
            for statement in step:
                connection.execute(statement)
        value = b"%d" % len(STEPS)
        # Not with the deployment's secret: whoever lost it still has to see which format this is.
        connection.execute(
            "INSERT OR REPLACE INTO state VALUES (?, ?, ?)", (FORMAT_ROW, Sealer().seal(b"format", value), value)
        )
        connection.pragma("application_id", APPLICATION)
        connection.pragma("user_version", len(STEPS))


def _schema(connection: apsw.Connection) -> set[tuple[object, ...]]:
    return set(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema"))


def _expected_schema() -> set[tuple[object, ...]]:
    plain = apsw.Connection(":memory:")
    for step in STEPS:
        for statement in step:
            plain.execute(statement)
    return _schema(plain)


def _take_blocks(path: Path, layout: Layout) -> None:
    """Allocate the whole log. Where that cannot be done there is no reserve, which is no reason not to open."""
    if hasattr(os, "posix_fallocate"):
        with contextlib.suppress(OSError):
            descriptor = os.open(f"{path}-wal", os.O_RDWR)
            try:
                os.posix_fallocate(descriptor, 0, layout.log)
            finally:
                os.close(descriptor)


def _only_for_us(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(OSError):
            os.chmod(f"{path}{suffix}", 0o600)


def quarantine(path: Path, keep: int, why: object) -> None:
    """Rename the file and its logs to `….damaged-N`, keep the youngest `keep` of those, and say so once."""
    numbers = sorted(_damaged(path))
    number = numbers[-1] + 1 if numbers else 1
    for suffix in ("-shm", "-wal", ""):
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}{suffix}", f"{path}.damaged-{number}{suffix}")
    numbers.append(number)
    for old in numbers[: max(0, len(numbers) - keep)]:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}.damaged-{old}{suffix}").unlink(missing_ok=True)
    log.warning("%s was damaged and is set aside; the store starts empty (%s)", path, why)


def _damaged(path: Path) -> list[int]:
    pattern = re.compile(re.escape(path.name) + r"\.damaged-(\d+)")
    found = (pattern.fullmatch(other.name) for other in path.parent.iterdir())
    return [int(match[1]) for match in found if match]


class Ownership:
    """The lock that makes this process the owner of `path`."""

    # Locks of this kind are the process's: a second one in the same process would be granted, and closing any
    # descriptor of the file would drop the first. So owners within the process are counted here.
    _owned: dict[Path, Ownership] = {}  # noqa: RUF012 - shared on purpose

    def __init__(self, path: Path) -> None:
        self._path = Path(f"{path.resolve()}.lock")
        if self._owned.setdefault(self._path, self) is not self:  # one step: threads may open at the same time
            raise NotOwner(f"{path} is open in this process already")
        try:
            self._take(path)
        except BaseException:
            del self._owned[self._path]
            raise

    def _take(self, path: Path) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(self._descriptor, 20).decode(errors="replace").strip() or "unknown"
            os.close(self._descriptor)
            raise NotOwner(f"{path} belongs to process {owner}") from None
        # For people: the lock is what counts. A full disk is no reason not to own.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, b"%d\n" % os.getpid(), 0)

    @classmethod
    def forget_all(cls) -> None:
        """In a child process, which inherited no locks."""
        cls._owned.clear()

    def release(self) -> None:
        """Another process may own it now."""
        self._owned.pop(self._path, None)
        os.close(self._descriptor)


def checked_path(path: str | os.PathLike[str]) -> Path:
    """A path that can be a file, or InvalidInput."""
    found = Path(path)
    if found.exists() and not found.is_file():
        raise InvalidInput(f"path must name a file, and {found} is something else")
    return found
