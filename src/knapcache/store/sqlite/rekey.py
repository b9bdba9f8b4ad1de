"""Encrypt a store's file, change its key, or decrypt it.

The file is copied to `PATH.rekeyed` under the new keys, synced, and renamed over the old one. Until the rename the old
file is complete and unchanged; after it the new one is. An interrupted run is repeated from the start: its copy is
removed first. No page of the old file is left in the new one, so no plain text is. What the file system keeps of a
removed file is beyond our reach.

    1. The owner's lock is taken, and no other process may have the file open: NotOwner.
    2. The log is emptied into the old file, and removed. So it can never be applied to the new file.
    3. Rows are copied one by one: decrypted with the old keys, verified, encrypted with the new ones.
    4. The copy replaces the file. Entries in the spool are written anew.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import apsw

from knapcache.errors import NotOwner, StoreError
from knapcache.store.base import Entry
from knapcache.store.encryption import Encryption
from knapcache.store.sqlite.database import (
    SECRET_ROW,
    Oversize,
    bounded_work,
    check_encryption,
    connect,
    create,
    key_ids_in,
    open_database,
    verify_schema,
)
from knapcache.store.sqlite.files import Damaged, remove_unfinished, require_own_files, sync, validate_path
from knapcache.store.sqlite.layout import MB, DiskLayout, entry_size
from knapcache.store.sqlite.owner_lock import OwnerLock
from knapcache.store.sqlite.rows import COLUMNS, INSERT, PUT_STATE, Sealer
from knapcache.store.sqlite.snapshot_rows import load, put_row, rows_of
from knapcache.store.sqlite.spool import Spool
from knapcache.store.validation import content_size

ROWS_PER_TRANSACTION = 64
Progress = Callable[[int, int], object]
"""Called with the number of rows done, and of all rows."""


class RekeyResult(NamedTuple):
    """Entries copied, and entries left out because their rows were damaged."""

    entries: int
    damaged: int


def rekey(
    path: str | os.PathLike[str],
    *,
    old_keys: Sequence[bytes],
    new_keys: Sequence[bytes],
    secret: bytes = b"",
    progress: Progress = lambda _done, _all: None,
) -> RekeyResult:
    """Write the file anew under `new_keys`, of which the first encrypts; without any, as an unencrypted file.

    `old_keys`: those that it may be encrypted with now; `new_keys` are tried as well. `secret`: that of the seals.
    StoreError if a key is missing. NotOwner while another process has the file open.
    """
    found = validate_path(path)
    require_own_files(found)
    if not found.exists():
        raise StoreError(f"{found}: no such file")
    lock = OwnerLock(found)
    try:
        _require_exclusive(found)
        keys = list(dict.fromkeys((*old_keys, *new_keys))) if _is_encrypted(found) else []
        old = Sealer(secret, Encryption(keys) if keys else None)
        new = Sealer(secret, Encryption(new_keys) if new_keys else None)
        return _rekey(found, old, new, progress)
    except (apsw.Error, OSError, Damaged) as error:
        raise StoreError(f"{found} cannot be rekeyed, and was not changed: {error}") from error
    finally:
        lock.release()


def _rekey(path: Path, old: Sealer, new: Sealer, progress: Progress) -> RekeyResult:
    layout = DiskLayout.for_file(path.stat().st_size)
    try:
        source, _ = open_database(path, layout, old, synchronous="full", vfs=None, busy_timeout=1.0)
    except Oversize:  # the layout follows from the file
        raise StoreError(f"{path} changed while it was opened") from None
    target = Path(f"{path}.rekeyed")
    remove_unfinished(target)
    create(target)
    copy = connect(target, None, 1.0, layout.max_value)
    try:
        copy.pragma("synchronous", "normal")
        check_encryption(copy, new)
        mark = source.execute("SELECT id, seal, value FROM state WHERE id = ?", (SECRET_ROW,)).fetchall()
        copy.executemany(PUT_STATE, mark)
        result = _copy(path, source, copy, old, new, progress, layout)
        copy.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        source.close(True)
        copy.close(True)
    sync(target)
    for file in (path, target):
        for suffix in ("-wal", "-shm"):
            Path(f"{file}{suffix}").unlink(missing_ok=True)
    sync(path.parent)  # the old log is gone before the new file comes
    os.rename(target, path)
    sync(path.parent)
    _rewrite_spool(path, layout, old, new)
    return result


def _copy(
    path: Path,
    source: apsw.Connection,
    copy: apsw.Connection,
    old: Sealer,
    new: Sealer,
    progress: Progress,
    layout: DiskLayout,
) -> RekeyResult:
    with bounded_work(source, path):
        numbers = [number for (number,) in source.execute("SELECT id FROM entries ORDER BY rowid")]
    copied = 0
    for first in range(0, len(numbers), ROWS_PER_TRANSACTION):
        with copy:
            for number in numbers[first : first + ROWS_PER_TRANSACTION]:
                entry = _read(source, number, old)
                if entry is not None:
                    copy.execute(INSERT, new.row(_with_size(entry, new)))
                    copied += 1
        progress(min(first + ROWS_PER_TRANSACTION, len(numbers)), len(numbers))
    with contextlib.suppress(ValueError):  # a damaged snapshot stays behind
        snapshot = load(old, lambda statement, values: source.execute(statement, values).fetchall())
        for row in () if snapshot is None else rows_of(snapshot, layout.snapshot_chunk - new.overhead, new):
            put_row(copy, new, row)
    return RekeyResult(copied, len(numbers) - copied)


def _read(source: apsw.Connection, number: int, sealer: Sealer) -> Entry | None:
    try:
        (row,) = source.execute(f"SELECT {COLUMNS} FROM entries WHERE id = ?", (number,))
    except (apsw.TooBigError, ValueError):  # a damaged row
        return None
    entry = sealer.entry(row)
    return entry if entry is not None and number in sealer.row_ids(entry.key) else None


def _with_size(entry: Entry, sealer: Sealer) -> Entry:
    return entry._replace(size=entry_size(content_size(entry) + sealer.overhead, entry.expires is not None))


def _require_exclusive(path: Path) -> None:
    """Raise NotOwner if another process has the file open, even as an idle reader."""
    connection = connect(path, None, 0.0, MB)
    try:
        connection.pragma("locking_mode", "exclusive")  # before the first read: then no other connection may exist
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except (apsw.BusyError, apsw.LockedError):
        raise NotOwner(f"{path} is open in another process: stop it first") from None
    finally:
        connection.close(True)


def _is_encrypted(path: Path) -> bool:
    connection = connect(path, None, 1.0, MB)
    try:
        verify_schema(connection)
        return bool(key_ids_in(connection))
    finally:
        connection.close(True)


def _rewrite_spool(path: Path, layout: DiskLayout, old: Sealer, new: Sealer) -> None:
    """Write entries that readers handed over under the new keys. Counts are dropped."""
    if Path(f"{path}.spool").is_dir():
        before, after = Spool(path, layout.spool, old), Spool(path, layout.spool, new)
        before.take_counts()
        for entry in list(before.take_entries()):
            after.put_entry(_with_size(entry, new))
