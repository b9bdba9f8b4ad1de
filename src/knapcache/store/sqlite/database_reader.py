"""Read entries, metadata, totals and the snapshot from the database file, and verify their seals.

Damage is counted and reported to `on_damage`: with a row's id if that row has to be deleted, with None if the tree
itself is damaged and the file has to be quarantined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from knapcache.errors import CorruptState, StoreError
from knapcache.store.base import Entry, EntryInfo, Totals
from knapcache.store.sqlite.database import SNAPSHOT_ROW, TOTALS
from knapcache.store.sqlite.read_connections import ReadConnections
from knapcache.store.sqlite.rows import COLUMNS, GET_STATE, INFO_COLUMNS, Sealer

SCAN_ROWS = 512  # per statement: a reader that stays long keeps the log from being emptied

_GET = f"SELECT {COLUMNS} FROM entries WHERE id = ?"
_SCAN = f"SELECT {INFO_COLUMNS} FROM entries WHERE id > ? ORDER BY id LIMIT {SCAN_ROWS}"
_SCAN_IDS = f"SELECT id FROM entries WHERE id > ? ORDER BY id LIMIT {SCAN_ROWS}"
_GET_INFO = f"SELECT {INFO_COLUMNS} FROM entries WHERE id = ?"
_EXPIRED = f"SELECT {INFO_COLUMNS} FROM entries WHERE expires <= ? LIMIT {SCAN_ROWS}"
_INTEGRITY = "PRAGMA integrity_check"
_BELOW_ALL_IDS = -(2**63)


class DatabaseReader:
    """Reads one database file, from any thread."""

    def __init__(
        self,
        path: Path,
        vfs: str | None,
        max_value: int,
        sealer: Sealer,
        counters: Counter[str],
        on_damage: Callable[[int | None], None],
    ) -> None:
        self.connections = ReadConnections(path, vfs, max_value, counters, on_damage)
        self._path, self._sealer, self._counters, self._on_damage = path, sealer, counters, on_damage

    def entry(self, key: bytes) -> Entry | None:
        """Return the entry, expired or not, or None; StoreError when the file cannot be read."""
        for number in self._sealer.row_ids(key):
            if rows := self.connections.rows(_GET, (number,), number, raising=True):
                entry = self._sealer.entry(rows[0])
                if entry is None:
                    self._counters["damaged"] += 1
                    self._on_damage(number)
                elif entry.key == key:
                    return entry
        return None

    def scan(self) -> Iterator[EntryInfo]:
        """Yield the metadata of every entry. StoreError when the file cannot be read to its end."""
        last = _BELOW_ALL_IDS
        while True:
            rows = self.connections.rows(_SCAN, (last,), convert=self._numbered_info)
            if rows is None:
                rows = self._infos_one_by_one(last)
            for number, info in rows:
                if not last < number:  # in a damaged tree ids may not increase: the scan would never end
                    self._on_damage(None)
                    raise StoreError(f"{self._path} is damaged")
                last = number
                if info is None:
                    self._counters["damaged"] += 1
                    self._on_damage(number)
                else:
                    yield info
            if len(rows) < SCAN_ROWS:
                return

    def _numbered_info(self, row: tuple[Any, ...]) -> tuple[int, EntryInfo | None]:
        return row[0], self._sealer.info(row)

    def _infos_one_by_one(self, last: int) -> list[tuple[int, EntryInfo | None]]:
        """Return the next rows, of which some cannot be read at all: None for those."""
        numbers = self.connections.rows(_SCAN_IDS, (last,))
        if numbers is None:
            raise StoreError(f"{self._path} cannot be read")
        found: list[tuple[int, EntryInfo | None]] = []
        for (number,) in numbers:
            rows = self.connections.rows(_GET_INFO, (number,), number, raising=True, convert=self._numbered_info)
            found.append(rows[0] if rows else (number, None))
        return found

    def expired(self, now: float) -> dict[int, EntryInfo | None]:
        """Return up to SCAN_ROWS expired entries by row id; None for a damaged row."""
        return dict(self.connections.rows(_EXPIRED, (now,), convert=self._numbered_info) or ())

    def snapshot(self) -> bytes | None:
        for seal, value in self.connections.rows(GET_STATE, (SNAPSHOT_ROW,), 0) or ():
            if (decrypted := self._sealer.reveal(b"snapshot", seal, value)) is not None:
                return decrypted
            self._counters["damaged"] += 1
        return None

    def totals(self) -> Totals:
        rows = self.connections.rows(TOTALS, ())
        return Totals(*rows[0]) if rows else Totals(0, 0)

    def check(self, totals: Totals) -> None:
        """Compare the totals, verify SQLite's own structures and every row; CorruptState if one is wrong."""
        for name, statement, expected in (("totals", TOTALS, tuple(totals)), ("integrity", _INTEGRITY, ("ok",))):
            found = self.connections.rows(statement, ())
            if found != [expected]:
                raise CorruptState(f"{name}: expected {expected}, the file has {found}")
        ids = [number for info in self.scan() for number in self._sealer.row_ids(info.key)]
        reads = (self.connections.rows(_GET, (number,)) for number in ids)  # None: the row cannot be read
        damaged = sum(rows is None or any(self._sealer.entry(row) is None for row in rows) for rows in reads)
        if damaged:
            raise CorruptState(f"{damaged} rows cannot be read or have an invalid seal")
