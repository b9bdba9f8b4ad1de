"""Open a database file for writing in whatever state it is: new, valid, damaged, or larger than its size limit.

A file of another program is never touched (files.py). A damaged file of ours is quarantined: renamed to `….damaged-N`,
and replaced by an empty one. Of those, the newest are kept. With `exclusive`, the path is this store's alone, so a file
that is damaged beyond recognition is quarantined too; otherwise it is StoreError, because it may be anybody's.

SQLite frees no disk space without rewriting the whole file. So a file that exceeds a smaller size limit is rebuilt
once: the youngest entries that fit are copied to a new file. Until the old file is removed, both take space.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import apsw

from knapcache.errors import InvalidInput, StoreError
from knapcache.store.base import Clock, wall_clock
from knapcache.store.sqlite.change_log import CHANGES_ROW
from knapcache.store.sqlite.database import (
    DAMAGE_AT_OPENING,
    OpenDatabase,
    Oversize,
    bounded_work,
    connect,
    create,
    is_outdated,
    open_database,
)
from knapcache.store.sqlite.files import (
    Damaged,
    has_our_header,
    read_start,
    remove_unfinished,
    require_own_files,
    unrecognised_logs,
)
from knapcache.store.sqlite.layout import DiskLayout
from knapcache.store.sqlite.rows import COLUMNS, INSERT, PUT_STATE, Sealer
from knapcache.store.sqlite.snapshot_rows import SNAPSHOT_ROW, chunks_of

log = logging.getLogger("knapcache.store")


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteOptions:
    """Options of a SQLite store."""

    synchronous: str = "normal"
    """"normal", or "full" to lose nothing in a power cut."""
    secret: bytes = b""
    """Key of the seals."""
    memory_tier: int | None = None
    """Bytes of recently read entries that the owner keeps in memory; None: 1/8 of the size limit, at most 64 MiB."""
    busy_timeout: float = 1.0
    """Seconds to wait for SQLite's locks."""
    keep_damaged: int = 1
    """Most quarantined files that are kept."""
    encryption_keys: Sequence[bytes] = ()
    """The first encrypts, all decrypt (store/encryption.py). Empty: the file is not encrypted."""
    exclusive: bool = False
    """Only this store writes to the path. So a file damaged beyond recognition is quarantined, and a symbolic link,
    whose target could be any file, is refused."""
    clock: Clock = wall_clock
    vfs: str | None = None
    """Name of SQLite's virtual file system; None: the default."""

    def __post_init__(self) -> None:
        if self.synchronous not in ("normal", "full"):
            raise InvalidInput(f"synchronous must be 'normal' or 'full', not {self.synchronous!r}")


@dataclass(slots=True, kw_only=True)
class DatabaseOpener:
    """Opens the file at `path`, and recovers from damage."""

    path: Path
    layout: DiskLayout
    sealer: Sealer
    counters: Counter[str]
    options: SqliteOptions
    _opened: tuple[int, int] | None = None
    """Device and inode of the file that was opened last: it is ours, whatever it contains now."""

    def open(self, *, check_files: bool) -> OpenDatabase:
        """Open the file, or an empty one if it is missing or damaged; StoreError when neither is possible."""
        try:
            if check_files:
                require_own_files(self.path, exclusive=self.options.exclusive)
                _set_aside_logs(self.path)
            if not self.path.exists() or self.path.stat().st_size == 0:
                create(self.path)
            try:
                return self._open(self.path)
            except Oversize:
                self._rebuild()
                return self._open(self.path)
        except Damaged as error:
            return self.replace_damaged(error)
        except (apsw.Error, OSError) as error:
            raise StoreError(f"{self.path} cannot be opened: {error}") from error

    def replace_damaged(self, reason: object) -> OpenDatabase:
        """Quarantine the file, and open an empty one."""
        try:
            if self._identity() not in (None, self._opened):
                with contextlib.suppress(Damaged):
                    require_own_files(self.path, exclusive=self.options.exclusive)
            quarantine(self.path, self.options.keep_damaged, reason, exclusive=self.options.exclusive)
            create(self.path)
            opened = self._open(self.path)
        except (apsw.Error, OSError, Damaged) as error:
            raise StoreError(f"{self.path} cannot be opened: {error}") from error
        self.counters["quarantined"] += 1
        return opened

    def _open(self, path: Path) -> OpenDatabase:
        opened = open_database(
            path,
            self.layout,
            self.sealer,
            synchronous=self.options.synchronous,
            vfs=self.options.vfs,
            busy_timeout=self.options.busy_timeout,
        )
        self._opened = self._identity()
        return opened

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def _rebuild(self) -> None:
        """Replace the file by one that fits the layout."""
        target = Path(f"{self.path}.rebuilt")
        remove_unfinished(target)  # of an interrupted attempt
        create(target)
        new, _ = self._open(target)
        old = connect(self.path, self.options.vfs, self.options.busy_timeout, self.layout.max_value)
        try:
            kept = self._copy(old, new)
            new.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except DAMAGE_AT_OPENING as error:
            new.close(True)
            remove_unfinished(target)
            raise Damaged(str(error)) from error
        finally:
            old.close(True)
            new.close(True)
        for suffix in ("-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)
            Path(f"{target}{suffix}").unlink(missing_ok=True)
        os.rename(target, self.path)
        log.warning("database rebuilt: %s exceeded its size limit; %d of its entries were kept", self.path, kept)

    def _copy(self, old: apsw.Connection, new: apsw.Connection) -> int:
        """Copy the youngest entries that fit, and the snapshot; return the number of entries.

        The new file has no change log: it begins when the file is opened.
        """
        new.execute("DELETE FROM state WHERE id = ?", (CHANGES_ROW,))
        new.pragma("wal_autocheckpoint", 100)
        size = kept = 0
        with bounded_work(old, self.path):
            numbers = [number for (number,) in old.execute("SELECT id FROM entries ORDER BY created DESC")]
        for number in dict.fromkeys(numbers):
            try:
                rows = old.execute(f"SELECT {COLUMNS} FROM entries WHERE id = ?", (number,)).fetchall()
            except (apsw.TooBigError, UnicodeDecodeError):  # not a row of ours
                continue
            entry = self.sealer.entry(rows[0]) if rows else None
            if entry is None or number not in self.sealer.row_ids(entry.key) or is_outdated(entry.request):
                continue
            if entry.size <= self.layout.max_entry_size and size + entry.size <= self.layout.capacity:
                new.execute(INSERT, (number, *rows[0]))
                size += entry.size
                kept += 1
        for row in old.execute("SELECT id, seal, value FROM state WHERE id = ?", (SNAPSHOT_ROW,)).fetchall():
            fits = isinstance(row[2], bytes) and len(row[2]) <= self.layout.snapshot_chunk
            if fits and chunks_of(self.sealer, *row[1:]) is None:  # a larger one has a policy with another capacity
                new.execute(PUT_STATE, row)
        return kept


def quarantine(path: Path, keep: int, reason: object, *, exclusive: bool = False) -> None:
    """Rename the file and its logs to `….damaged-N`, and delete all but the newest `keep` of those that are ours."""
    numbers = sorted(_quarantined(path))
    number = max(numbers, default=0) + 1
    for suffix in ("-shm", "-wal", ""):
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}{suffix}", f"{path}.damaged-{number}{suffix}")
    numbers.append(number)
    for old in numbers[: max(0, len(numbers) - keep)]:
        if exclusive or has_our_header(read_start(Path(f"{path}.damaged-{old}"))):
            for suffix in ("", "-wal", "-shm"):
                Path(f"{path}.damaged-{old}{suffix}").unlink(missing_ok=True)
    log.warning("database quarantined: %s is damaged (%s); the store starts empty", path, reason)


def _set_aside_logs(path: Path) -> None:
    """Rename logs that may be anybody's: SQLite would overwrite them."""
    number = max(_quarantined(path), default=0) + 1
    for log_file in unrecognised_logs(path):
        suffix = log_file.name[len(path.name) :]
        target = f"{path}.damaged-{number}{suffix}"
        os.rename(log_file, target)
        log.warning("log renamed: %s is not recognisable as a log; it is now %s", log_file, target)


def _quarantined(path: Path) -> set[int]:
    pattern = re.compile(re.escape(path.name) + r"\.damaged-(\d+)(-wal|-shm)?")
    found = (pattern.fullmatch(other.name) for other in path.parent.iterdir())
    return {int(match[1]) for match in found if match}
