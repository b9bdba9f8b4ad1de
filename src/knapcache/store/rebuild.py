"""A file that was made under a larger budget, made anew under a smaller one.

SQLite gives no page back without writing all of them elsewhere, so that is what happens, once, while the store is
being opened: the youngest entries that fit are copied. Until the old file is gone both of them take room on the disk.
"""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from knapcache.store.file import SNAPSHOT_ROW, connect, create, log, open_database
from knapcache.store.layout import Layout
from knapcache.store.rows import COLUMNS, Sealer
from knapcache.store.writer import INSERT, KEEP_STATE


def rebuild(path: Path, layout: Layout, sealer: Sealer, *, vfs: str | None, busy: float) -> None:
    """Replace the file at `path` by one that keeps to `layout`."""
    target = Path(f"{path}.rebuilt")
    target.unlink(missing_ok=True)  # of an earlier attempt that did not end
    create(target)
    new, _ = open_database(target, layout, synchronous="normal", vfs=vfs, busy=busy)
    old = connect(path, vfs, busy)
    try:
        kept = _copy(old, new, layout, sealer)
        new.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        old.close(True)
        new.close(True)
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
        Path(f"{target}{suffix}").unlink(missing_ok=True)
    os.rename(target, path)
    log.warning("%s was larger than its budget allows now; %d of its entries were kept", path, kept)


def _copy(old: apsw.Connection, new: apsw.Connection, layout: Layout, sealer: Sealer) -> int:
    new.pragma("wal_autocheckpoint", 100)
    size = kept = 0
    for (number,) in old.execute("SELECT id FROM entries ORDER BY created DESC").fetchall():
        (row,) = old.execute(f"SELECT {COLUMNS} FROM entries WHERE id = ?", (number,))
        entry = sealer.entry(row)
        if entry is not None and entry.size <= layout.largest and size + entry.size <= layout.capacity:
            new.execute(INSERT, (number, *row))
            size += entry.size
            kept += 1
    for row in old.execute("SELECT id, seal, value FROM state WHERE id = ?", (SNAPSHOT_ROW,)).fetchall():
        if isinstance(row[2], bytes) and len(row[2]) <= layout.snapshot_room:
            new.execute(KEEP_STATE, row)
    return kept
