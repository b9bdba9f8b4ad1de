"""A store in one SQLite file, for as many threads and processes as there are on a machine.

Each thread reads through a connection of its own, one row by its id; one thread of one process writes (writer.py).
Readers and writer do not wait for each other: SQLite's write-ahead log sees to that. The files together never exceed
the budget (layout.py), rows vouch for themselves (rows.py), a file beyond repair is set aside (file.py).

The process that opens with `own=True` writes. Others open with `own=False`: they read what it writes, `hand_over`
answers to it (spool.py), and may become the owner when it is gone (`own`). A store does not survive a fork: in
the child it is closed.
"""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Self

from knapcache.errors import CorruptState, InvalidInput, NotOwner, StoreError
from knapcache.store.base import (
    NOT_IN_MEMORY,
    Clock,
    Entry,
    EntryInfo,
    NotInMemory,
    Totals,
    content,
    purge_filter,
    validate_entry,
    validate_key,
    wall_clock,
)
from knapcache.store.sqlite import layout as arithmetic
from knapcache.store.sqlite.database import COUNT, SNAPSHOT_ROW, Ownership, checked_path
from knapcache.store.sqlite.memory_tier import MemoryTier
from knapcache.store.sqlite.readers import Readers
from knapcache.store.sqlite.recovery import Opener
from knapcache.store.sqlite.rows import COLUMNS, HEAD_COLUMNS, Sealer, row_id
from knapcache.store.sqlite.spool import Spool
from knapcache.store.sqlite.writer import Writer

AT_A_TIME = 512  # rows: a reader that stays long keeps the log from being emptied

_GET = f"SELECT {COLUMNS} FROM entries WHERE id = ?"
_HEADS = f"SELECT {HEAD_COLUMNS} FROM entries WHERE id > ? ORDER BY id LIMIT {AT_A_TIME}"
_EXPIRED = f"SELECT {HEAD_COLUMNS} FROM entries WHERE expires <= ? LIMIT {AT_A_TIME}"
_INTEGRITY = "PRAGMA integrity_check"
_BELOW_ALL = -(2**63)


class SqliteStore:
    """Answers in a file. `budget` is for everything on disk, in bytes."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        size_limit: int,
        *,
        own: bool = True,
        synchronous: str = "normal",
        secret: bytes = b"",
        memory: int | None = None,
        busy: float = 1.0,
        keep_damaged: int = 1,
        clock: Clock = wall_clock,
        vfs: str | None = None,
    ) -> None:
        """`synchronous`: "normal", or "full" to lose nothing in a power cut. `busy`: seconds to wait for locks.

        `secret` goes into the seals: rows written under another one are not believed. `memory`: bytes of entries that
        the owner keeps at hand in memory besides, 1/8 of the budget and at most 64 MiB unless given.
        """
        if synchronous not in ("normal", "full"):
            raise InvalidInput(f"synchronous must be 'normal' or 'full', not {synchronous!r}")
        self.path = checked_path(path)
        self.layout = arithmetic.Layout.of(size_limit)
        self._options: dict[str, Any] = {
            "synchronous": synchronous, "secret": secret, "memory": memory, "busy": busy, "keep_damaged": keep_damaged,
            "clock": clock, "vfs": vfs,
        }  # fmt: skip
        self._clock = clock
        self._counters: Counter[str] = Counter()
        self._sealer = Sealer(secret)
        self._opener = Opener(
            self.path, self.layout, self._sealer, self._counters, synchronous, busy, keep_damaged, vfs
        )
        self._readers = Readers(self.path, vfs, self._counters, self._damaged)
        self._hot = MemoryTier(min(size_limit // 8, 64 << 20) if memory is None else memory)
        self._spool = Spool(self.path, self.layout.spool, self._sealer)
        self._writer: Writer | None = None
        self._ownership: Ownership | None = None
        self._closed = False
        if own:
            self._become_owner()
        _STORES.add(self)

    shared = True

    # What callers ask before they put.

    @property
    def size_limit(self) -> int:
        """Bytes for everything on disk."""
        return self.layout.size_limit

    @property
    def capacity(self) -> int:
        """Room for entries."""
        return self.layout.capacity

    @property
    def max_entry_size(self) -> int:
        """No entry charged more than this can be put."""
        return self.layout.max_entry_size

    @property
    def max_snapshot_size(self) -> int:
        """Bytes a snapshot may have."""
        return self.layout.max_snapshot_size

    @property
    def owner(self) -> bool:
        """Does this store write?"""
        return self._writer is not None

    def entry_size(self, entry: Entry) -> int:
        """Room the entry takes in the file, its share of everything around it included."""
        return arithmetic.entry_size(content(entry), entry.expires is not None)

    # Reading.

    def get(self, key: bytes) -> Entry | None:
        """The entry under `key`, or None."""
        entry = self.get_nowait(key)
        if entry is NOT_IN_MEMORY:
            try:
                return self.read(key)
            except StoreError:  # counted
                return None
        return entry  # type: ignore[return-value]

    def get_nowait(self, key: bytes) -> Entry | NotInMemory | None:
        """The entry as far as memory has it: read lately, or on its way to the file."""
        entry = self._hot.get(key)
        if entry is None:
            validate_key(key)
            writer = self._writer
            if writer is None or (job := writer.pending.get(key)) is None:
                return None if self._closed else NOT_IN_MEMORY
            put = job.put
            if put is None or put.key != key:
                return None
            entry = put
        return entry if entry.expires is None or entry.expires > self._clock() else None

    def read(self, key: bytes) -> Entry | None:
        """The entry in the file; StoreError when the file cannot be read."""
        stamp = self._hot.stamp  # before the look at what is on its way: what comes between makes the stamp old
        if self._writer is not None and (job := self._writer.pending.get(key)) is not None:
            entry = job.put if job.put is not None and job.put.key == key else None
        else:
            entry = self._read(key, stamp)
        return entry if entry is None or entry.expires is None or entry.expires > self._clock() else None

    def _read(self, key: bytes, stamp: int) -> Entry | None:
        number = row_id(key)
        rows = self._readers.rows(_GET, (number,), number, raising=True)
        if not rows:
            return None
        entry = self._sealer.entry(rows[0])
        if entry is None:
            self._counters["damaged"] += 1
            self._damaged(number)
        elif entry.key != key:
            return None
        elif self._writer is not None:  # who does not write cannot know what has changed
            self._hot.add(entry, stamp)
        return entry

    def _damaged(self, number: int | None) -> None:
        """A row that cannot be read goes; a tree that cannot be followed takes the file with it."""
        if self._writer is not None and number is not None:
            self._writer.drop([number])
        elif self._writer is not None:
            self._writer.suspect()

    # Writing.

    @property
    def write_backlog_full(self) -> bool:
        """Is the disk so slow that more would be refused?"""
        return self._writer is not None and self._writer.write_backlog_full

    def apply(
        self, put: Entry | None = None, evict: Collection[bytes] = (), snapshot: bytes | None = None
    ) -> Future[None]:
        """`evict` leaves, then `put` comes and `snapshot` replaces the older one. Resolved when committed."""
        writer = self._writing()
        keys = [validate_key(key) for key in evict]
        row = sealed = refusal = None
        if put is not None:
            put = validate_entry(put, self.entry_size(put))
            if put.size > self.max_entry_size:
                refusal = f"an entry of {put.size} bytes, of {self.max_entry_size} allowed"
            else:
                row = self._sealer.row(put)
        if snapshot is not None:
            sealed = self._sealer.seal(b"snapshot", snapshot), snapshot
            if len(snapshot) > self.max_snapshot_size:
                refusal = f"a snapshot of {len(snapshot)} bytes, of {self.max_snapshot_size} allowed"
        return writer.submit(put, row, keys, sealed, refusal)

    def purge(
        self, *, tenant: str | None = None, model: str | None = None, before: float | None = None
    ) -> tuple[bytes, ...]:
        """Remove what meets every condition given. StoreError when it could not be removed from the disk yet."""
        writer = self._writing()
        meets = purge_filter(tenant, model, before)
        keys = [head.key for head in self.scan() if meets(head)]
        writer.submit(evict=keys).result()
        return tuple(keys)

    def expire(self) -> tuple[bytes, ...]:
        """Remove what has expired."""
        writer = self._writing()
        self.flush()
        found: dict[int, bytes] = {}
        while rows := self._readers.rows(_EXPIRED, (self._clock(),)):
            infos = {row[0]: self._sealer.head(row) for row in rows if row[0] not in found}
            if not infos:  # an index that lists what is not there
                break
            writer.drop([number for number, head in infos.items() if head is None])
            keys = [head.key for head in infos.values() if head is not None]
            found |= {number: head.key if head else b"" for number, head in infos.items()}
            writer.submit(evict=keys).result()
        return tuple(key for key in found.values() if key)

    def flush(self) -> None:
        """Wait until all that was applied is committed, or has failed."""
        if self._writer is not None and not self._closed:
            self._writer.submit().exception()

    def _writing(self) -> Writer:
        if self._closed:
            raise StoreError("the store is closed")
        if self._writer is None:
            raise NotOwner(f"{self.path} is written by another process")
        return self._writer

    # Looking around.

    def scan(self) -> Iterator[EntryInfo]:
        """Every entry but its bytes. StoreError when the file cannot be read to its end."""
        self.flush()
        last = _BELOW_ALL
        while True:
            rows = self._readers.rows(_HEADS, (last,))
            if rows is None:
                raise StoreError(f"{self.path} cannot be read")
            for row in rows:
                if not last < row[0]:  # a tree in the wrong order would be walked for ever
                    self._damaged(None)
                    raise StoreError(f"{self.path} is damaged")
                last = row[0]
                head = self._sealer.head(row)
                if head is None:
                    self._counters["damaged"] += 1
                    self._damaged(row[0])
                else:
                    yield head
            if len(rows) < AT_A_TIME:
                return

    def load_snapshot(self) -> bytes | None:
        """The last snapshot, or None."""
        self.flush()
        rows = self._readers.rows("SELECT seal, value FROM state WHERE id = ?", (SNAPSHOT_ROW,), 0)
        for seal, value in rows or ():
            if isinstance(value, bytes) and self._sealer.seal(b"snapshot", value) == seal:
                return value
            self._counters["damaged"] += 1
        return None

    def totals(self) -> Totals:
        """The books: what the writer has counted; what lies in the file, for those who only read."""
        if self._writer is not None:
            return self._writer.totals
        rows = self._readers.rows(COUNT, ())
        return Totals(*rows[0]) if rows else Totals(0, 0)

    def counters(self) -> Mapping[str, int]:
        """What went wrong so far: damaged, failed_reads, failed_writes, refused, set_aside…"""
        return dict(self._counters)

    def disk_bytes(self) -> int:
        """What the store takes on disk now. Never above the budget."""
        total = self._spool.size()
        for suffix in ("", "-wal", "-shm", ".lock"):
            with suppress(FileNotFoundError):
                total += os.stat(f"{self.path}{suffix}").st_size
        return total

    def check(self) -> None:
        """Count anew, read every row, ask SQLite about its own structures, weigh the files."""
        if self._closed:
            return
        self.flush()
        books = self.totals()
        for what, statement, expected in (("totals", COUNT, tuple(books)), ("integrity", _INTEGRITY, ("ok",))):
            found = self._readers.rows(statement, ())
            if found != [expected]:
                raise CorruptState(f"{what}: {expected} in the books, {found} in the file")
        damaged = sum(self._sealer.entry(row) is None for row in self._every_row())
        if damaged:
            raise CorruptState(f"{damaged} rows are not as they were sealed")
        if self.owner and (books.size > self.capacity or self.disk_bytes() > self.layout.size_limit):
            taken = f"{self.disk_bytes()} of {self.layout.size_limit} on disk"
            raise CorruptState(f"{books.size} of {self.capacity} bytes, {taken}")

    def _every_row(self) -> Iterator[Any]:
        for head in self.scan():
            yield from self._readers.rows(_GET, (row_id(head.key),)) or ()

    def reader(self) -> SqliteStore:
        """Another store on the same file, for reading: what a child needs after a fork."""
        return SqliteStore(self.path, self.layout.size_limit, own=False, **self._options)

    # Owning.

    def own(self) -> bool:
        """Become the owner, if there is none; True when this store is the owner now."""
        if self._writer is None and not self._closed:
            try:
                self._become_owner()
            except NotOwner:
                return False
        return self.owner

    def _become_owner(self) -> None:
        try:
            ownership = Ownership(self.path)
        except OSError as error:
            raise StoreError(f"{self.path} cannot be opened: {error}") from error
        try:
            opened = self._opener.open()
        except BaseException:
            ownership.release()
            raise
        writer = Writer(self.layout, self._counters, self._hot, opened, self._opener.anew)
        self._readers.generation = lambda: writer.generation
        self._ownership, self._writer = ownership, writer

    def hand_over(self, entry: Entry) -> None:
        """Leave an answer for the owner to decide about; StoreError when there is no room for it."""
        self._spool.put(validate_entry(entry, self.entry_size(entry)))

    def collect(self) -> Iterator[Entry]:
        """What others handed over, taken out. The owner's cache settles it like an answer of its own."""
        self._writing()
        return self._spool.drain()

    @property
    def max_counted_keys(self) -> int:
        """Keys that one `put_counts` keeps."""
        return self._spool.max_counted_keys

    def put_counts(self, counts: Mapping[bytes, int]) -> None:
        """Leave hits by key for the owner; StoreError when there is no space for them."""
        self._spool.put_counts(counts)

    def take_counts(self) -> Mapping[bytes, int]:
        """Take the hits that readers left, added up by key."""
        self._writing()
        return self._spool.take_counts()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Commit what is queued, and let go of the files."""
        if self._closed:
            return
        self._closed = True
        if self._writer is not None:
            self._writer.close()
        self._hot.clear()
        self._readers.close()
        if self._ownership is not None:
            self._ownership.release()
        self._writer = None

    def _forked(self) -> None:
        """In a child: locks and connections belong to the parent, and must not even be closed."""
        if not self._closed:
            self._closed = True
            _PARENTS.append((self._readers.forked(), self._writer, self._ownership))
            self._writer, self._ownership, self._hot = None, None, MemoryTier(0)


_STORES: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_PARENTS: list[object] = []


def _after_fork() -> None:
    Ownership.forget_all()
    for store in list(_STORES):
        store._forked()


os.register_at_fork(after_in_child=_after_fork)
