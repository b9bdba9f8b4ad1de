"""Opening a file for writing, whatever state it is in: new, ours, damaged, or made under a larger budget.

SQLite gives no page back without writing all of them elsewhere, so when the budget has shrunk that is what happens,
once: the youngest entries that fit are copied. Until the old file is gone both of them take room on the disk.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import apsw

from knapcache.errors import StoreError
from knapcache.store.sqlite.database import (
    SNAPSHOT_ROW,
    Damaged,
    Opened,
    Oversize,
    connect,
    create,
    log,
    open_database,
    quarantine,
)
from knapcache.store.sqlite.layout import Layout
from knapcache.store.sqlite.rows import COLUMNS, INSERT, KEEP_STATE, Sealer


@dataclass(frozen=True, slots=True)
class Opener:
    """Knows where the file is and how it is to be opened."""

    path: Path
    layout: Layout
    sealer: Sealer
    counters: Counter[str]
    synchronous: str
    busy: float
    keep_damaged: int
    vfs: str | None

    def open(self) -> Opened:
        """A file to write to, empty if need be; StoreError when there is none to be had."""
        try:
            if not self.path.exists():
                create(self.path)
            try:
                return self._as_it_is(self.path)
            except Oversize:
                self._rebuild()
                return self._as_it_is(self.path)
        except Damaged as error:
            return self.anew(error)
        except (apsw.Error, OSError) as error:
            raise StoreError(f"{self.path} cannot be opened: {error}") from error

    def anew(self, why: object) -> Opened:
        """An empty file; the one that is there is set aside."""
        try:
            quarantine(self.path, self.keep_damaged, why)
            create(self.path)
            opened = self._as_it_is(self.path)
        except (apsw.Error, OSError, Damaged) as error:
            raise StoreError(f"{self.path} cannot be opened: {error}") from error
        self.counters["quarantined"] += 1
        return opened

    def _as_it_is(self, path: Path) -> Opened:
        return open_database(path, self.layout, self.sealer, synchronous=self.synchronous, vfs=self.vfs, busy=self.busy)

    def _rebuild(self) -> None:
        """Replace the file by one that keeps to the layout."""
        target = Path(f"{self.path}.rebuilt")
        target.unlink(missing_ok=True)  # of an earlier attempt that did not end
        create(target)
        new, _ = self._as_it_is(target)
        old = connect(self.path, self.vfs, self.busy)
        try:
            kept = self._copy(old, new)
            new.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            old.close(True)
            new.close(True)
        for suffix in ("-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)
            Path(f"{target}{suffix}").unlink(missing_ok=True)
        os.rename(target, self.path)
        log.warning("%s was larger than its budget allows now; %d of its entries were kept", self.path, kept)

    def _copy(self, old: apsw.Connection, new: apsw.Connection) -> int:
        new.pragma("wal_autocheckpoint", 100)
        size = kept = 0
        for (number,) in old.execute("SELECT id FROM entries ORDER BY created DESC").fetchall():
            (row,) = old.execute(f"SELECT {COLUMNS} FROM entries WHERE id = ?", (number,))
            entry = self.sealer.entry(row)
            if entry and entry.size <= self.layout.max_entry_size and size + entry.size <= self.layout.capacity:
                new.execute(INSERT, (number, *row))
                size += entry.size
                kept += 1
        for row in old.execute("SELECT id, seal, value FROM state WHERE id = ?", (SNAPSHOT_ROW,)).fetchall():
            if isinstance(row[2], bytes) and len(row[2]) <= self.layout.max_snapshot_size:
                new.execute(KEEP_STATE, row)
        return kept
