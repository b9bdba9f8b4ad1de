"""The writer thread of a SQLite store: it commits many changes in one transaction, in their order.

`submit` shows a change to readers at once, in `pending`, and queues it. The thread takes from the queue what fits into
the log, commits it, resolves the futures and removes the changes from `pending`. So a reader that looks into `pending`
first and into the file second never misses one.

While one transaction runs, the next batch queues up. If nothing has queued up, the thread waits GATHER_SECONDS for
more, unless a caller waits for the result of a change. Each transaction takes the interpreter's lock several times from
the threads that serve requests.

A transaction that fails is retried change by change, unless the file is locked (each retry would wait as well) or
damaged (it is quarantined, and the changes go into the new file). The evictions of a failed change are late, not
refused: they are hidden from readers, and every transaction makes them first until one succeeds.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import apsw

from knapcache.errors import StoreError
from knapcache.store.base import Entry, Totals
from knapcache.store.memory_tier import MemoryTier
from knapcache.store.sqlite.batch import QueuedWrite, write_changes
from knapcache.store.sqlite.change_log import ChangeLog, LogWrite
from knapcache.store.sqlite.database import DAMAGE, OpenDatabase
from knapcache.store.sqlite.files import Damaged
from knapcache.store.sqlite.layout import DiskLayout, operation_frames
from knapcache.store.sqlite.rows import Sealer
from knapcache.store.sqlite.snapshot_rows import SnapshotRow, put_row

GATHER_SECONDS = 0.02
RETRY_SECONDS = 1.0  # how soon late evictions are retried when nothing else is written
MIN_BACKLOG_BYTES = 8 << 20
MAX_BACKLOG_WRITES = 1 << 14  # small changes take memory as well
DELETE_BATCH = 100


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
        self._sealer, self._row_ids, self._ids_per_key = sealer, sealer.row_ids, sealer.ids_per_key
        self.change_log = ChangeLog(sealer, layout.max_changes)
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[QueuedWrite | None] = queue.SimpleQueue()
        self._max_backlog_bytes = max(MIN_BACKLOG_BYTES, 2 * layout.log)
        self._backlog_bytes = 0
        self._closed = False
        self._urgent = threading.Event()
        """Set if a caller waits for a result."""
        self._late_evictions: dict[int, tuple[bytes, QueuedWrite]] = {}  # by row id
        self._damage_reported = False
        self._connection: apsw.Connection
        self._log_frames: int
        self._use(opened)
        self._thread = threading.Thread(target=self._run, name="knapcache-writer", daemon=True)
        self._thread.start()

    @property
    def backlog_full(self) -> bool:
        """Whether puts should wait. Evictions never do: their number is bounded by the number of entries."""
        return self._backlog_bytes > self._max_backlog_bytes or self._queue.qsize() > MAX_BACKLOG_WRITES

    def submit(
        self,
        put: Entry | None = None,
        row: tuple[Any, ...] | None = None,
        evict: Sequence[bytes] = (),
        snapshot: Sequence[SnapshotRow] = (),
        refusal: str | None = None,
    ) -> Future[None]:
        """Queue a change. With a `refusal`, only its evictions are made and its future fails with that message.

        snapshot   its rows. All but the last one, which makes it the current snapshot, are queued first
        """
        with self._lock:
            # Threads that saw space at the same time may exceed the limits, but not twice.
            too_much = self._backlog_bytes > 2 * self._max_backlog_bytes or self._queue.qsize() > 2 * MAX_BACKLOG_WRITES
            if too_much and (row or snapshot):
                refusal = refusal or f"the disk is too slow: {self._backlog_bytes} bytes are waiting to be written"
            keys = [*evict, put.key] if put else evict
            if refusal:
                put, row, snapshot = None, None, ()
            head = snapshot[-1] if snapshot else None
            for chunk in () if self._closed else snapshot[:-1]:
                self._enqueue(QueuedWrite(self._urgent, snapshot=chunk))
            write = QueuedWrite(self._urgent, self._row_ids, keys, put, row, head, refusal)
            frames_per_key = operation_frames() * self._ids_per_key
            # More evictions than the log can hold are split off and queued first.
            while write.frames > self._layout.frames_per_transaction:
                excess = -(-(write.frames - self._layout.frames_per_transaction) // frames_per_key)
                first = keys[: min(excess, self._layout.frames_per_transaction // frames_per_key)]
                if not self._closed:
                    self._enqueue(QueuedWrite(self._urgent, self._row_ids, first))
                keys = keys[len(first) :]
                write = QueuedWrite(self._urgent, self._row_ids, keys, put, row, head, refusal)
            if self._closed:
                write.future.set_exception(StoreError("the store is closed"))
                return write.future
            self._enqueue(write)
        return write.future

    def _enqueue(self, write: QueuedWrite) -> None:
        for key in write.keys:
            self.pending[key] = write
        self._memory_tier.discard(write.keys)
        self._backlog_bytes += write.content_bytes
        self._queue.put(write)

    def delete_rows(self, numbers: Sequence[int]) -> None:
        """Queue the deletion of damaged rows, of which only the ids are known."""
        with self._lock:
            if not self._closed:
                for k in range(0, len(numbers), DELETE_BATCH):
                    write = QueuedWrite(self._urgent)
                    write.evict = list(numbers[k : k + DELETE_BATCH])
                    write.frames = operation_frames() * len(write.evict)
                    self._queue.put(write)

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
                self._urgent.set()
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
                    self._urgent.wait(GATHER_SECONDS)
                self._urgent.clear()  # before the batch is taken: a caller queues its change before it waits
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
            if not write.future.done():
                write.put = None
                write.future.set_exception(StoreError("the writer thread has stopped"))

    def _next_batch(self, first: QueuedWrite) -> tuple[list[QueuedWrite], QueuedWrite | None, bool]:
        """Return the queued writes that fit into one transaction, the first that does not, and whether to stop."""
        batch, frames = [first], first.frames
        while True:
            try:
                write = self._queue.get_nowait()
            except queue.Empty:
                return batch, None, False
            if write is None:
                return batch, None, True
            frames += write.frames
            if frames > self._layout.frames_per_transaction:
                return batch, write, False
            batch.append(write)

    def _commit(self, batch: list[QueuedWrite]) -> None:
        try:
            if self._damage_reported:
                raise apsw.CorruptError("a reader found the tree damaged")
            refusals = self._write(batch)
        except (*DAMAGE, Damaged) as error:
            self._replace_file(batch, error)
        except apsw.Error as error:
            if len(batch) > 1 and not isinstance(error, (apsw.BusyError, apsw.LockedError)):
                for write in batch:
                    self._commit([write])
            else:
                for write in batch:
                    self._fail(write, error)
        else:
            self._complete(batch, refusals)

    def _write(self, batch: list[QueuedWrite]) -> list[str | None]:
        """Write late evictions and the batch. Return for each write why it was refused, or None."""
        free = self._layout.frames_per_transaction - sum(write.frames for write in batch)
        while self._late_evictions and operation_frames() * len(self._late_evictions) > free:
            at_once = self._layout.frames_per_transaction // operation_frames()
            self._transaction(list(self._late_evictions)[:at_once], [])
        return self._transaction(list(self._late_evictions), batch)

    def _transaction(self, late: list[int], batch: list[QueuedWrite]) -> list[str | None]:
        frames = operation_frames() * len(late) + sum(write.frames for write in batch)
        self._ensure_log_space(self._layout.fixed + frames)
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            totals, refusals = write_changes(connection, self.totals, self._layout.capacity, late, batch)
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
        keys += [key for write in batch for key in write.keys]
        # Damaged rows were deleted by their ids; or the store is full, which the cache above would have prevented.
        unknown = any(write.evict and not write.keys for write in batch)
        unknown |= any(refusal and not write.refusal for write, refusal in zip(batch, refusals, strict=True))
        return self.change_log.write(self._connection, keys, totals, unknown=unknown)

    def _ensure_log_space(self, frames: int) -> None:
        """Empty the log when `frames` more might not fit."""
        if self._log_frames + frames > self._layout.frames:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
            self._log_frames = 0
            self._counters["checkpoints"] += 1

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
        with self._lock:
            for write in batch:
                self._backlog_bytes -= write.content_bytes
                for key in write.keys:
                    self._forget_pending(key, write)
        for write, refusal in zip(batch, refusals, strict=True):
            if refusal is None:
                write.future.set_result(None)
            else:
                self.change_log.add_failed(write.keys)  # once more: the cache above learns of it only now
                self._counters["refused"] += 1
                write.future.set_exception(StoreError(refusal))

    def _fail(self, write: QueuedWrite, error: Exception) -> None:
        write.put = None
        self.change_log.add_failed(write.keys)
        late = [self._may_exist(number) for number in write.evict]
        with self._lock:
            self._backlog_bytes -= write.content_bytes
            for key, number, is_late in zip(write.evict_keys, write.evict, late, strict=False):
                if is_late:
                    self._late_evictions[number] = (key, write)
                else:
                    self._forget_pending(key, write)
        if write.evict or write.snapshot:  # a flush writes nothing
            self._counters["failed_writes"] += 1
        write.future.set_exception(StoreError(f"write failed: {error}"))

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
            refusals = self._write(batch)
        except (apsw.Error, Damaged) as error:
            for write in batch:
                self._fail(write, error)
        else:
            self._complete(batch, refusals)

    def _use(self, opened: OpenDatabase) -> None:
        """Write through this connection from now on."""
        self._connection, self.totals = opened.connection, opened.end.totals
        self.change_log.begin(opened.connection, opened.end)
        self._log_frames = 0  # the log was emptied when the file was opened

        def committed(_connection: apsw.Connection, _name: str, frames: int) -> int:
            self._log_frames = frames
            return apsw.SQLITE_OK

        self._connection.set_wal_hook(committed)

    def _close_connection(self) -> None:
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error:  # the next owner finds the changes in the log
            self._counters["failed_checkpoints"] += 1
        self._connection.close(True)
