"""The writer thread of a SQLite store: it commits many changes in one transaction, in their order.

`submit` shows a change to readers at once, in `pending`, and queues it. The thread takes from the queue what fits into
the log, commits it, resolves the futures and removes the changes from `pending`. So a reader that looks into `pending`
first and into the file second never misses one.

While one transaction runs, the next batch queues up. If nothing has queued up, the thread waits GATHER_SECONDS for
more, unless a caller waits for the result of a change. Each transaction takes the interpreter's lock several times from
the threads that serve requests.

`submit` takes one change or many. The thread encodes their rows, so callers do not wait for digests and encryption.

The log bounds a transaction. When the thread takes changes from the queue, it assumes that their entries are new; if
too many of them replace rows, it divides the transaction.

A transaction that fails is retried change by change, unless the file is locked (each retry would wait as well) or
damaged (it is quarantined, and the changes go into the new file). The evictions of a failed change are late, not
refused: they are hidden from readers, and every transaction makes them first until one succeeds.

This file is long because the queue, its transactions and their failures change the same state.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain

import apsw

from knapcache.errors import StoreError
from knapcache.store.base import Totals
from knapcache.store.memory_tier import MemoryTier
from knapcache.store.sqlite.batch import ChangeFuture, QueuedWrite, row_sizes, write_changes
from knapcache.store.sqlite.change_log import ChangeLog, LogWrite
from knapcache.store.sqlite.database import DAMAGE, OpenDatabase
from knapcache.store.sqlite.files import Damaged
from knapcache.store.sqlite.layout import DiskLayout, operation_frames
from knapcache.store.sqlite.rows import Sealer
from knapcache.store.sqlite.snapshot_rows import put_row

GATHER_SECONDS = 0.02
RETRY_SECONDS = 1.0  # how soon late evictions are retried when nothing else is written
MIN_BACKLOG_BYTES = 8 << 20
MAX_BACKLOG_WRITES = 1 << 14  # small changes take memory as well
DELETE_BATCH = 100
_DELETION = operation_frames()


class Writer:
    """The write connection and its thread."""

    def __init__(
        self,
        layout: DiskLayout,
        counters: Counter[str],
        memory_tier: MemoryTier,
        opened: OpenDatabase,
        replace_damaged: Callable[[object], OpenDatabase],
        sealer: Sealer,
    ) -> None:
        """`replace_damaged(reason)` quarantines the file and returns an empty one."""
        self.pending: dict[bytes, QueuedWrite] = {}
        """The last change that is not yet committed, by key."""
        self.totals: Totals
        self.generation = 0
        """How often the file was replaced: connections of another generation have to be reopened."""
        self._layout = layout
        self._counters = counters
        self._memory_tier = memory_tier
        self._replace_damaged = replace_damaged
        self._sealer, self._ids_per_key = sealer, sealer.ids_per_key
        self.change_log = ChangeLog(sealer, layout.max_changes)
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[QueuedWrite | None] = queue.SimpleQueue()
        self._max_backlog_bytes = max(MIN_BACKLOG_BYTES, 2 * layout.log)
        self._backlog_bytes = 0
        self._closed = False
        self.urgent = threading.Event()
        """Set if a caller waits for a result."""
        self._late_evictions: dict[int, tuple[bytes, QueuedWrite]] = {}  # by row id
        self._damage_reported = False
        self._connection: apsw.Connection
        self._log_start: int
        self._use(opened)
        self._thread = threading.Thread(target=self._run, name="knapcache-writer", daemon=True)
        self._thread.start()

    @property
    def backlog_full(self) -> bool:
        """Whether puts should wait. Evictions never do: their number is bounded by the number of entries."""
        return self._backlog_bytes > self._max_backlog_bytes or self._queue.qsize() > MAX_BACKLOG_WRITES

    def submit(self, writes: Sequence[QueuedWrite]) -> None:
        """Queue changes. With a refusal, only the evictions of a change are made, and it fails with that message."""
        with self._lock:
            for write in writes:
                # Threads that saw space at the same time may exceed the limits, but not twice.
                if write.content_bytes and (
                    self._backlog_bytes > 2 * self._max_backlog_bytes or self._queue.qsize() > 2 * MAX_BACKLOG_WRITES
                ):
                    write.refuse(f"the disk is too slow: {self._backlog_bytes} bytes are waiting to be written")
                if self._closed:
                    write.resolve(StoreError("the store is closed"))
                else:
                    for row in write.chunks:
                        chunk = QueuedWrite()
                        chunk.add_snapshot(row)
                        self._enqueue(chunk)
                    if len(write.keys) > 1:
                        self._split_evictions(write)
                    self._enqueue(write)
            self._memory_tier.discard([key for write in writes for key in write.keys])

    def _split_evictions(self, write: QueuedWrite) -> None:
        """Queue evictions on their own, before the change, if all of them are more than the log can hold."""
        most, each = self._layout.frames_per_transaction, _DELETION * self._ids_per_key
        while (excess := write.frames + each * len(write.keys) - most) > 0:
            first = min(-(-excess // each), most // each)
            keys, write.keys = write.keys[:first], write.keys[first:]
            self._enqueue(QueuedWrite(keys))
            self._memory_tier.discard(keys)

    def _enqueue(self, write: QueuedWrite) -> None:
        for key in write.keys:
            self.pending[key] = write
        self._backlog_bytes += write.content_bytes
        self._queue.put(write)

    def delete_rows(self, numbers: Sequence[int]) -> None:
        """Queue the deletion of damaged rows, of which only the ids are known."""
        with self._lock:
            if not self._closed:
                for k in range(0, len(numbers), DELETE_BATCH):
                    write = QueuedWrite()
                    write.evict = numbers[k : k + DELETE_BATCH]
                    self._queue.put(write)

    def clear(self, done: ChangeFuture) -> None:
        """Queue the removal of all entries. Readers see at once that changes before it are gone."""
        with self._lock:
            if self._closed:
                done.resolve(None, StoreError("the store is closed"))
                return
            write = QueuedWrite(tuple(self.pending), done=done.resolve)
            write.clears = True
            self._enqueue(write)
            self._memory_tier.clear()

    def report_damage(self) -> None:
        """Have the file quarantined: a reader found its tree damaged."""
        self._damage_reported = True
        self.delete_rows([0])  # wakes the thread

    def close(self) -> None:
        """Commit what is queued, empty the log into the file, and stop."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
                self.urgent.set()
        self._thread.join()

    def _run(self) -> None:
        batch: list[QueuedWrite] = []
        first: QueuedWrite | None = None
        try:
            while True:
                try:
                    first = first or self._queue.get(timeout=RETRY_SECONDS if self._late_evictions else None)
                except queue.Empty:
                    self._commit([])
                    continue
                if first is None:
                    break
                if self._queue.empty():
                    self.urgent.wait(GATHER_SECONDS)
                self.urgent.clear()  # before the batch is taken: a caller queues its change before it waits
                batch, first, last = self._next_batch(first)
                self._commit(batch)
                if last:
                    break
            if self._late_evictions:
                self._commit([])
            self._close_connection()
        finally:
            self._fail_remaining([*batch, first] if first else batch)

    def _fail_remaining(self, writes: list[QueuedWrite]) -> None:
        """Fail all unresolved writes. Only after a bug are there any; without this, callers would wait for ever."""
        with self._lock:
            self._closed = True
        while not self._queue.empty():
            if write := self._queue.get():
                writes.append(write)
        for write in writes:
            if not write.resolved:
                write.put = None
                write.resolve(StoreError("the writer thread has stopped"))

    def _next_batch(self, first: QueuedWrite) -> tuple[list[QueuedWrite], QueuedWrite | None, bool]:
        """Return the queued writes that fit into one transaction, the first that does not, and whether to stop.

        The transaction is made for the rest of the log, unless that is less than half of it: then it is emptied first.
        """
        most = self._layout.frames_per_transaction
        free = most - self._log_frames
        limit = most if free < most // 2 else free
        batch, frames = [first], self._expected_frames(first)
        while not first.clears:
            try:
                write = self._queue.get_nowait()
            except queue.Empty:
                return batch, None, False
            if write is None:
                return batch, None, True
            frames += self._expected_frames(write)
            if frames > limit or write.clears:
                return batch, write, False
            batch.append(write)
        return batch, None, False

    def _expected_frames(self, write: QueuedWrite) -> int:
        """Set the ids of a write's rows. Return the most frames that it takes if its entry replaces no row."""
        if write.keys and not write.clears:
            write.evict = self._sealer.row_ids(*write.keys)
        removed = len(write.evict) - (0 if write.put is None else self._ids_per_key)
        return write.frames + _DELETION * removed

    def _commit(self, batch: list[QueuedWrite]) -> None:
        parts, refusals = list[list[QueuedWrite]](), list[str | None]()
        try:
            if self._damage_reported:
                raise apsw.CorruptError("a reader found the tree damaged")
            # Before the transaction, whose length depends on it. No other process writes.
            numbers = chain(self._late_evictions, *(write.evict for write in batch))
            sizes = row_sizes(self._connection, list(numbers))
            frames = sum(write.frames for write in batch) + _DELETION * len(sizes)
            if len(batch) > 1 and frames > self._layout.frames_per_transaction:
                parts = [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
            else:
                refusals = self._write(batch, sizes)
        except (*DAMAGE, Damaged) as error:
            self._replace_file(batch, error)
        except apsw.Error as error:
            if len(batch) > 1 and not isinstance(error, (apsw.BusyError, apsw.LockedError)):
                parts = [[write] for write in batch]
            else:
                for write in batch:
                    self._fail(write, error)
        else:
            if not parts:
                self._complete(batch, refusals)
        for part in parts:
            self._commit(part)

    def _write(self, batch: list[QueuedWrite], sizes: dict[int, int]) -> list[str | None]:
        """Write late evictions and the batch. Return for each write why it was refused, or None.

        sizes   of the rows that are to be removed and exist, by id
        """
        late = self._late_evictions
        free = self._layout.frames_per_transaction - sum(write.frames for write in batch)
        while late and _DELETION * len(sizes) > free:
            first = list(late)[: self._layout.frames_per_transaction // _DELETION]
            self._transaction(first, [], {number: sizes.pop(number) for number in first if number in sizes})
        for write in batch:
            if write.put is not None and write.row is None:
                write.row = self._sealer.row(write.put, write.fields)
        return self._transaction(list(late), batch, sizes)

    def _transaction(self, late: list[int], batch: list[QueuedWrite], sizes: dict[int, int]) -> list[str | None]:
        frames = _DELETION * len(sizes) + sum(write.frames for write in batch)
        self._ensure_log_space(self._layout.fixed + frames)
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            totals, refusals = write_changes(connection, self.totals, self._layout.capacity, late, batch, sizes)
            for write, refusal in zip(batch, refusals, strict=True):
                if write.snapshot and not refusal:
                    put_row(connection, self._sealer, write.snapshot)
            logged = self._log_changes(late, batch, refusals, totals)
            connection.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        self.totals = totals
        self.change_log.committed(logged)
        with self._lock:
            for number in late:
                self._forget_pending(*self._late_evictions.pop(number))
        return refusals

    def _log_changes(
        self, late: list[int], batch: list[QueuedWrite], refusals: list[str | None], totals: Totals
    ) -> LogWrite | None:
        """Write the changes of a transaction to the change log."""
        keys = [self._late_evictions[number][0] for number in late]
        keys.extend(chain.from_iterable(write.keys for write in batch))
        # Damaged rows were deleted by their ids; or the store is full, which the cache above would have prevented.
        unknown = not all(write.keys or not write.evict for write in batch)
        if any(refusals):
            unknown |= any(refusal and not write.refusal for write, refusal in zip(batch, refusals, strict=True))
        cleared = bool(batch) and batch[0].clears
        return self.change_log.write(self._connection, keys, totals, unknown=unknown, cleared=cleared)

    def _ensure_log_space(self, frames: int) -> None:
        """Empty the log when `frames` more might not fit."""
        if self._log_frames + frames > self._layout.frames:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
            self._log_start = self._pages_written
            self._counters["checkpoints"] += 1

    @property
    def _log_frames(self) -> int:
        """The pages in the log, at most. Rejected: a hook of SQLite, which takes the interpreter's lock once more."""
        return self._pages_written - self._log_start

    @property
    def _pages_written(self) -> int:
        return self._connection.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)[0]

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except apsw.Error:  # the failure has already rolled it back
                self._counters["failed_rollbacks"] += 1

    def _forget_pending(self, key: bytes, write: QueuedWrite) -> None:
        if self.pending.get(key) is write:  # else a newer change is queued
            del self.pending[key]

    def _complete(self, batch: list[QueuedWrite], refusals: list[str | None]) -> None:
        pending = self.pending
        with self._lock:
            for write in batch:
                self._backlog_bytes -= write.content_bytes
                for key in write.keys:
                    if pending.get(key) is write:  # else a newer change is queued
                        del pending[key]
                if write.clears:  # again: entries may have been read since it was queued
                    self._memory_tier.clear()
        for write, refusal in zip(batch, refusals, strict=True):
            if refusal is None:
                write.resolve()
                continue
            self.change_log.add_failed(write.keys)  # once more: the cache above learns of it only now
            self._counters["refused"] += 1
            write.resolve(StoreError(refusal))

    def _fail(self, write: QueuedWrite, error: Exception) -> None:
        write.put = None
        self.change_log.add_failed(write.keys)
        late = [self._may_exist(number) for number in write.evict]
        with self._lock:
            self._backlog_bytes -= write.content_bytes
            if write.clears:
                for key in write.keys:
                    self._forget_pending(key, write)
            keys = chain.from_iterable([key] * self._ids_per_key for key in write.keys)
            for key, number, is_late in zip(keys, write.evict, late, strict=False):
                if is_late:
                    self._late_evictions[number] = (key, write)
                else:
                    self._forget_pending(key, write)
        if write.evict or write.snapshot:  # a flush writes nothing
            self._counters["failed_writes"] += 1
        write.resolve(StoreError(f"write failed: {error}"))

    def _may_exist(self, number: int) -> bool:
        """Return whether a row may exist. Only such rows are evicted late, which bounds their number."""
        try:
            return bool(self._connection.execute("SELECT 1 FROM entries WHERE id = ?", (number,)).fetchall())
        except apsw.Error:
            return True

    def _replace_file(self, batch: list[QueuedWrite], reason: Exception) -> None:
        """Quarantine the damaged file and write the batch to an empty one."""
        self._damage_reported = False
        self._connection.close(True)
        try:
            opened = self._replace_damaged(reason)
        except StoreError as error:
            # Every write fails, and each one tries again to replace the file.
            self._connection, self.totals, self._damage_reported = apsw.Connection(":memory:"), Totals(0, 0), True
            for write in batch:
                self._fail(write, error)
            return
        self._use(opened)
        self.generation += 1
        self._memory_tier.clear()
        with self._lock:
            for key, write in self._late_evictions.values():
                self._forget_pending(key, write)
            self._late_evictions.clear()
        try:
            refusals = self._write(batch, {})
        except (apsw.Error, Damaged) as error:
            for write in batch:
                self._fail(write, error)
        else:
            self._complete(batch, refusals)

    def _use(self, opened: OpenDatabase) -> None:
        """Write through this connection from now on."""
        self._connection, self.totals = opened.connection, opened.end.totals
        self.change_log.begin(opened.connection, opened.end)
        self._log_start = self._pages_written  # the log was emptied when the file was opened

    def _close_connection(self) -> None:
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error:  # the next owner finds the changes in the log
            self._counters["failed_checkpoints"] += 1
        self._connection.close(True)
