"""A store in one SQLite file, shared by the threads and processes of one machine.

Each thread reads through its own connection (database_reader.py). One thread of one process writes (writer.py).
SQLite's write-ahead log keeps readers and writer from waiting for each other. All files together never exceed the size
limit (layout.py). Rows are sealed against damage (rows.py). A file beyond repair is quarantined (recovery.py).

The process that opens the file with `own=True` is the owner, and writes. Others open it with `own=False`: they read
what the owner commits, hand entries over to it (spool.py), and become the owner when it is gone (`own`). A store does
not survive a fork: in the child it is closed, and `reader` opens a new one.
"""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

from knapcache.errors import CorruptState, InvalidInput, NotOwner, StoreError
from knapcache.store.base import NOT_IN_MEMORY, C, Change, Done, Entry, EntryInfo, NotInMemory, StoreOptions, Totals
from knapcache.store.encryption import Encryption
from knapcache.store.memory_tier import MemoryTier
from knapcache.store.sqlite import layout
from knapcache.store.sqlite.batch import ChangeEncoder, ChangeFuture, QueuedWrite
from knapcache.store.sqlite.database import require_keys
from knapcache.store.sqlite.database_reader import DatabaseReader
from knapcache.store.sqlite.files import Damaged, require_own_files, validate_path
from knapcache.store.sqlite.owner_lock import OwnerLock
from knapcache.store.sqlite.recovery import DatabaseOpener, SqliteOptions
from knapcache.store.sqlite.rows import Sealer
from knapcache.store.sqlite.spool import Spool
from knapcache.store.sqlite.writer import Writer
from knapcache.store.validation import content_size, validate_entry, validate_key

MAX_MEMORY_TIER = 64 << 20
DEFAULT_OPTIONS = SqliteOptions()


class SqliteStore:
    """Entries in a file. `size_limit` is the bytes of all its files together."""

    shared: Final = True
    writes_stalled: Final = False  # only the time that a write takes tells

    def __init__(
        self,
        path: str | os.PathLike[str],
        size_limit: int,
        options: SqliteOptions = DEFAULT_OPTIONS,
        *,
        own: bool = True,
    ) -> None:
        """Open the file. NotOwner if `own` is set and another process owns it; StoreError if the file is not ours."""
        self.path = validate_path(path, follow=not options.exclusive)
        self.layout = parts = layout.DiskLayout.of(size_limit)
        self.size_limit, self.capacity, self.max_entry_size = size_limit, parts.capacity, parts.max_entry_size
        check_files = not is_open_here(self.path)
        if check_files:  # before a lock file is created beside it
            with suppress(Damaged):  # the owner quarantines it
                require_own_files(self.path, exclusive=options.exclusive)
        self._options, self._clock = options, options.clock
        self._counters: Counter[str] = Counter()
        self._sealer = Sealer(options.secret, Encryption(options.encryption_keys) if options.encryption_keys else None)
        self._opener = DatabaseOpener(
            path=self.path, layout=self.layout, sealer=self._sealer, counters=self._counters, options=options
        )
        self._database = DatabaseReader(
            self.path, options.vfs, self.layout.max_value, self._sealer, self._counters, self._handle_damage
        )
        default_tier = min(size_limit // 8, MAX_MEMORY_TIER)
        self._memory_tier = MemoryTier(default_tier if options.memory_tier is None else options.memory_tier)
        self._spool = Spool(self.path, parts.spool, self._sealer)
        self._encoder = ChangeEncoder(parts, self._sealer)
        self.max_snapshot_size = self._encoder.max_snapshot_size
        self.max_counted_keys = self._spool.max_counted_keys
        self._writer: Writer | None = None
        self._owner_lock: OwnerLock | None = None
        self._closed, self._pid = False, os.getpid()
        if own:
            self._become_owner(check_files=check_files)
        elif self.path.exists():
            require_keys(self.path, self._sealer)
        _STORES.add(self)

    @classmethod
    def open(cls, location: str, options: StoreOptions, defaults: SqliteOptions = DEFAULT_OPTIONS) -> SqliteStore:
        """Open `sqlite:location`, as the registry does: as the owner, or as a reader while another process owns it."""
        if location.startswith("///"):
            location = "/" + location.lstrip("/")
        elif location.startswith("//"):
            raise InvalidInput(f"a SQLite URL is sqlite:PATH or sqlite:///ABSOLUTE/PATH, not 'sqlite:{location}'")
        if not location:
            raise InvalidInput("a SQLite store needs a path, such as sqlite:answers.db")
        if not options.exclusive and not (parent := Path(location).parent).is_dir():  # it may be a typing error
            raise InvalidInput(f"the directory {parent} does not exist: create it, or give another path")
        found = replace(
            defaults,
            secret=options.secret,
            synchronous=options.synchronous,
            clock=options.clock,
            exclusive=options.exclusive,
            encryption_keys=options.encryption_keys,
        )
        try:
            return cls(location, options.size_limit, found)
        except NotOwner:
            return cls(location, options.size_limit, found, own=False)

    @classmethod
    def open_file(cls, path: Path, *, own: bool, secret: bytes = b"", encryption_keys: Sequence[bytes] = ()) -> Self:
        """Open an existing file with the smallest size limit that does not shrink it."""
        size_limit = layout.DiskLayout.for_file(path.stat().st_size).size_limit
        return cls(path, size_limit, SqliteOptions(secret=secret, encryption_keys=encryption_keys), own=own)

    @classmethod
    def open_beside_owner(cls, path: Path, secret: bytes, encryption_keys: Sequence[bytes]) -> Self:
        """Open a file that another process owns, with nearly its size limit: the spool has a share of it."""
        log = Path(f"{path}-wal")
        log_bytes = log.stat().st_size if log.exists() else 0
        size_limit = layout.DiskLayout.for_file(path.stat().st_size, log_bytes).size_limit
        return cls(path, size_limit, SqliteOptions(secret=secret, encryption_keys=encryption_keys), own=False)

    def entry_size(self, entry: Entry) -> int:
        """Return the bytes that an entry takes in the file, its share of everything around it included."""
        return layout.entry_size(content_size(entry) + self._sealer.overhead, entry.expires is not None)

    # Reading.

    def get(self, key: bytes) -> Entry | None:
        entry = self.get_nowait(key)
        if entry is NOT_IN_MEMORY:
            try:
                return self.read(key)
            except StoreError:  # counted
                return None
        return entry  # type: ignore[return-value]

    def get_nowait(self, key: bytes) -> Entry | NotInMemory | None:
        entry = self._memory_tier.get(key)
        if entry is None:
            validate_key(key)
            writer = self._writer
            if writer is None or (write := writer.pending.get(key)) is None:
                return None if self._closed else NOT_IN_MEMORY
            put = write.put
            if put is None or put.key != key:
                return None
            entry = put
        return entry if entry.expires is None or entry.expires > self._clock() else None

    def read(self, key: bytes) -> Entry | None:
        version = self._memory_tier.version  # before the look into `pending`: a change after it outdates the version
        if self._writer is not None and (write := self._writer.pending.get(key)) is not None:
            entry = write.put if write.put is not None and write.put.key == key else None
        else:
            entry = self._database.entry(key)
            if entry is not None and self._writer is not None:  # a reader cannot know what has changed: it keeps none
                self._memory_tier.add(entry, version)
        return entry if entry is None or entry.expires is None or entry.expires > self._clock() else None

    def peek(self, key: bytes) -> Entry | None:
        found = self.get_nowait(key)
        return self._database.entry(key) if isinstance(found, NotInMemory) else found

    def _handle_damage(self, number: int | None) -> None:
        """Delete a damaged row; quarantine the file if its tree is damaged (None). A reader leaves it to the owner."""
        if self._writer is not None and isinstance(number, int):
            self._writer.delete_rows([number])
        elif self._writer is not None:
            self._writer.report_damage()

    # Writing.

    @property
    def write_backlog_full(self) -> bool:
        return self._writer is not None and self._writer.backlog_full

    def apply(
        self, put: Entry | None = None, evict: Collection[bytes] = (), snapshot: bytes | None = None
    ) -> Future[None]:
        writer = self._writer_or_raise()
        done = ChangeFuture(writer.urgent)
        writer.submit([self._encoder.queued(Change(put, evict, snapshot), done.resolve)])
        return done

    def apply_all(self, changes: Sequence[C], done: Done[C], /) -> None:
        writer = self._writer_or_raise()
        writes = []
        for change in changes:
            try:
                writes.append(self._encoder.queued(change, done))
            except InvalidInput as error:
                done(change, StoreError(str(error)))
        writer.submit(writes)

    def clear(self) -> Future[None]:
        writer = self._writer_or_raise()
        done = ChangeFuture(writer.urgent)
        writer.clear(done)
        return done

    def expire(self) -> tuple[bytes, ...]:
        self._writer_or_raise()
        self.flush()
        found: dict[int, bytes] = {}
        while infos := {k: info for k, info in self._database.expired(self._clock()).items() if k not in found}:
            for number in [number for number, info in infos.items() if info is None]:
                self._handle_damage(number)
            found |= {number: info.key if info else b"" for number, info in infos.items()}
            self.apply(evict=[info.key for info in infos.values() if info is not None]).result()
        return tuple(key for key in found.values() if key)

    def flush(self) -> None:
        writer = self._writer
        if writer is not None and not self._closed:
            done = ChangeFuture(writer.urgent)
            writer.submit([QueuedWrite(done=done.resolve)])
            done.exception()

    def _writer_or_raise(self) -> Writer:
        if self._closed:
            raise StoreError("the store is closed")
        if self._writer is None:
            raise NotOwner(f"{self.path} is owned by another process; this one may only read it")
        return self._writer

    # The whole store.

    def scan(self) -> Iterator[EntryInfo]:
        """Yield the metadata of every entry. StoreError when the file cannot be read to its end."""
        self.flush()
        yield from self._database.scan()

    def load_snapshot(self) -> bytes | None:
        self.flush()
        return self._database.snapshot()

    # The change log (change_log.py).

    def position(self) -> bytes:
        return b"" if self._writer is None else self._writer.change_log.position

    def infos_since(self, position: bytes) -> Mapping[bytes, EntryInfo | None] | None:
        self.flush()
        writer = self._writer
        after = None if writer is None else writer.change_log.rows_after(position)
        if writer is None or after is None:
            return None
        return self._database.changed(after, writer.change_log.end)

    def drop_changes(self, position: bytes) -> None:
        if self._writer is not None:
            self._writer.change_log.drop(position)

    def totals(self) -> Totals:
        """Return the writer's totals; in a reader, those of the file."""
        return self._database.totals() if self._writer is None else self._writer.totals

    def counters(self) -> Mapping[str, int]:
        """Return the faults so far: damaged, failed_reads, failed_writes, refused, quarantined…"""
        return dict(self._counters)

    def disk_bytes(self) -> int:
        total = self._spool.size()
        for suffix in ("", "-wal", "-shm", ".lock"):
            with suppress(FileNotFoundError):
                total += os.stat(f"{self.path}{suffix}").st_size
        return total

    def check(self) -> None:
        """Recompute the totals, verify every row, SQLite's own structures and the limits; CorruptState if one fails."""
        if self._closed:
            return
        self.flush()
        totals = self.totals()
        self._database.check(totals)
        disk_bytes = self.disk_bytes()
        if self.owner and (totals.size > self.capacity or disk_bytes > self.size_limit):
            on_disk = f"{disk_bytes} of {self.size_limit} bytes on disk"
            raise CorruptState(f"limit exceeded: {totals.size} of {self.capacity} bytes of entries, {on_disk}")

    # Roles.

    @property
    def owner(self) -> bool:
        return self._writer is not None

    def own(self) -> bool:
        if self._writer is None and not self._closed:
            with suppress(NotOwner):
                self._become_owner(check_files=False)
        return self.owner

    def _become_owner(self, *, check_files: bool) -> None:
        try:
            owner_lock = OwnerLock(self.path)
        except OSError as error:
            raise StoreError(f"{self.path} cannot be opened: {error}") from error
        try:
            opened = self._opener.open(check_files=check_files)
        except BaseException:
            owner_lock.release()
            raise
        replace_damaged = self._opener.replace_damaged
        writer = Writer(self.layout, self._counters, self._memory_tier, opened, replace_damaged, self._sealer)
        self._database.generation = lambda: writer.generation
        self._owner_lock, self._writer = owner_lock, writer

    def hand_over(self, entry: Entry, /) -> None:
        self._spool.put_entry(validate_entry(entry, self.entry_size(entry)))

    def collect(self) -> Iterator[Entry]:
        self._writer_or_raise()
        return self._spool.take_entries()

    def put_counts(self, counts: Mapping[bytes, int], /) -> None:
        self._spool.put_counts(counts)

    def take_counts(self) -> Mapping[bytes, int]:
        self._writer_or_raise()
        return self._spool.take_counts()

    def reader(self) -> SqliteStore:
        return SqliteStore(self.path, self.size_limit, self._options, own=False)

    # Closing.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Commit what is queued, close the files and release the ownership."""
        if self._closed:
            return
        self._closed = True
        if self._writer is not None:
            self._writer.close()
        self._memory_tier.clear()
        self._database.close()
        if self._owner_lock is not None:
            self._owner_lock.release()
        self._writer = None

    def _after_fork(self) -> None:
        """Close in a child. Locks and connections are the parent's: the child must not even close them."""
        if not self._closed and self._pid != os.getpid():  # `reader` may have opened one in the child already
            self._closed = True
            _INHERITED.append((self._database.abandon(), self._writer, self._owner_lock))
            self._writer, self._owner_lock, self._memory_tier = None, None, MemoryTier(0)


def is_open_here(path: Path) -> bool:
    """Return whether a store of this process has the file open. Then closing it elsewhere would drop SQLite's locks."""
    return any(store.path == path and not store._closed for store in list(_STORES))


_STORES: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_INHERITED: list[object] = []
"""In a forked child: the parent's objects, kept so that the garbage collector does not close them."""


def _after_fork() -> None:
    OwnerLock.forget_all()
    for store in list(_STORES):
        store._after_fork()


os.register_at_fork(after_in_child=_after_fork)
