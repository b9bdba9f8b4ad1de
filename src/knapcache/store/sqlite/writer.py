"""The one thread that writes to a SQLite store: many changes in one transaction, in their order.

`submit` shows a change to readers at once, in `pending`, and queues it. The thread takes what has gathered, as much as
fits into the log, and commits it whole; then the futures are resolved and the changes leave `pending`, so that a
reader who looks into `pending` first and into the file second never misses one. There is no waiting for company:
while one transaction is under way, the next one gathers.

A transaction that fails is tried again change by change, unless the file is locked (each would wait in vain) or
damaged (it is set aside, and the changes go into the new one). A change that fails still owes its evictions: they are
hidden from readers, and are the first thing in every transaction until one succeeds.
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
from knapcache.store.sqlite.database import DAMAGE, SNAPSHOT_ROW, Damaged, Opened
from knapcache.store.sqlite.layout import Layout, operation_frames, snapshot_frames
from knapcache.store.sqlite.memory_tier import MemoryTier
from knapcache.store.sqlite.rows import INSERT, KEEP_STATE, row_id

RETRY_SECONDS = 1.0  # how soon owed evictions are tried again when nothing else happens
LEAST_QUEUE = 8 << 20
MOST_JOBS = 1 << 14  # small changes take room as well

DELETE = "DELETE FROM entries WHERE id = ? RETURNING CASE typeof(size) WHEN 'integer' THEN size ELSE 0 END"


class Job:
    """One change on its way."""

    __slots__ = ("evict", "frames", "future", "keys", "put", "refusal", "row", "snapshot", "weight")

    def __init__(
        self,
        put: Entry | None,
        row: tuple[Any, ...] | None,
        keys: Sequence[bytes],
        snapshot: tuple[bytes, bytes] | None,
        refusal: str | None,
    ) -> None:
        self.put = put  # None: readers see that the keys are gone
        self.row = row
        self.keys = keys  # of all that it changes
        self.evict = [row_id(key) for key in keys]
        self.snapshot = snapshot  # seal and bytes
        self.refusal = refusal
        self.future: Future[None] = Future()
        content = len(put.request) + len(put.payload) + sum(map(len, row[8:11])) if put and row else 0
        state = len(snapshot[1]) if snapshot else 0
        self.weight = content + state
        self.frames = operation_frames() * len(self.evict)
        self.frames += (operation_frames(content) if row else 0) + (snapshot_frames(state) if snapshot else 0)


class Writer:
    """Owns the writing connection and the thread around it."""

    def __init__(
        self,
        layout: Layout,
        counters: Counter[str],
        hot: MemoryTier,
        opened: Opened,
        replace: Callable[[object], Opened],
    ) -> None:
        """`opened` is where to write; `replace(why)` puts an empty file in the place of a damaged one."""
        self.pending: dict[bytes, Job] = {}
        """What is on its way, by key."""
        self.totals: Totals
        self.generation = 0
        """How often the file was replaced: readers of another generation have to open it anew."""
        self._layout = layout
        self._counters = counters
        self._open_anew = replace
        self._hot = hot
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._most_queued = max(LEAST_QUEUE, 2 * layout.log)
        self._queued = 0  # bytes
        self._closed = False
        self._owed: dict[int, tuple[bytes, Job]] = {}
        self._suspect = False
        self._connection: apsw.Connection
        self._frames: int
        self._adopt(opened)
        self._thread = threading.Thread(target=self._run, name="knapcache-writer", daemon=True)
        self._thread.start()

    @property
    def write_backlog_full(self) -> bool:
        """Does more wait than may wait? Evictions always may: there are only so many entries to evict."""
        return self._queued > self._most_queued or self._queue.qsize() > MOST_JOBS

    def submit(
        self,
        put: Entry | None = None,
        row: tuple[Any, ...] | None = None,
        evict: Sequence[bytes] = (),
        snapshot: tuple[bytes, bytes] | None = None,
        refusal: str | None = None,
    ) -> Future[None]:
        """Queue a change; what is refused still evicts. More evictions than the log can hold go ahead of the rest."""
        with self._lock:
            if self.write_backlog_full and (row or snapshot):
                refusal = refusal or f"the disk is too slow: {self._queued} bytes are waiting"
            keys = [*evict, put.key] if put else evict
            if refusal:
                put = row = snapshot = None
            job = Job(put, row, keys, snapshot, refusal)
            while job.frames > self._layout.at_once:
                # As many as fit with the rest stay with it.
                many = -(-(job.frames - self._layout.at_once) // operation_frames())
                ahead = keys[: min(many, self._layout.at_once // operation_frames())]
                if not self._closed:
                    self._enqueue(Job(None, None, ahead, None, None))
                keys = keys[len(ahead) :]
                job = Job(put, row, keys, snapshot, refusal)
            if self._closed:
                job.future.set_exception(StoreError("the store is closed"))
                return job.future
            self._enqueue(job)
        return job.future

    def _enqueue(self, job: Job) -> None:
        for key in job.keys:
            self.pending[key] = job
        self._hot.discard(job.keys)
        self._queued += job.weight
        self._queue.put(job)

    def drop(self, numbers: Sequence[int]) -> None:
        """Rows that cannot be read, known by id only, are to go."""
        with self._lock:
            if not self._closed:
                for k in range(0, len(numbers), 100):
                    job = Job(None, None, (), None, None)
                    job.evict = list(numbers[k : k + 100])
                    job.frames = operation_frames() * len(job.evict)
                    self._queue.put(job)

    def suspect(self) -> None:
        """A reader found the tree itself broken: the file is to be set aside."""
        self._suspect = True
        self.drop([0])

    def close(self) -> None:
        """Finish what is queued, empty the log into the file, and stop."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        batch: list[Job] = []
        first: Job | None = None
        try:
            while True:
                try:
                    first = first or self._queue.get(timeout=RETRY_SECONDS if self._owed else None)
                except queue.Empty:
                    self._commit([])
                    continue
                if first is None:
                    break
                batch, first, last = self._gather(first)
                self._commit(batch)
                if last:
                    break
            if self._owed:
                self._commit([])
            self._shut()
        finally:
            self._abandon([*batch, first] if first else batch)

    def _abandon(self, jobs: list[Job]) -> None:
        """Nothing is written any more. After a bug, that is better than callers who wait for ever."""
        with self._lock:
            self._closed = True
        while not self._queue.empty():
            if job := self._queue.get():
                jobs.append(job)
        for job in jobs:
            if not job.future.done():
                job.put = None
                job.future.set_exception(StoreError("the writer has stopped"))

    def _gather(self, first: Job) -> tuple[list[Job], Job | None, bool]:
        """What waits and fits into one transaction; the one that did not fit; and whether the end was seen."""
        batch, frames = [first], first.frames
        while True:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                return batch, None, False
            if job is None:
                return batch, None, True
            frames += job.frames
            if frames > self._layout.at_once:
                return batch, job, False
            batch.append(job)

    def _commit(self, batch: list[Job]) -> None:
        try:
            if self._suspect:
                raise apsw.CorruptError("a reader could not follow the tree")
            refusals = self._transaction(batch)
        except (*DAMAGE, Damaged) as error:
            self._replace(batch, error)
        except apsw.Error as error:
            if len(batch) > 1 and not isinstance(error, (apsw.BusyError, apsw.LockedError)):
                for job in batch:
                    self._commit([job])
            else:
                for job in batch:
                    self._fail(job, error)
        else:
            for job, refusal in zip(batch, refusals, strict=True):
                self._settle(job, refusal)

    def _transaction(self, batch: list[Job]) -> list[str | None]:
        """Owed evictions and the batch, or nothing. Returns why a change was not made, for each."""
        room = self._layout.at_once - sum(job.frames for job in batch)
        while self._owed and operation_frames() * len(self._owed) > room:
            self._write(list(self._owed)[: self._layout.at_once // operation_frames()], [])
        return self._write(list(self._owed), batch)

    def _write(self, owed: list[int], batch: list[Job]) -> list[str | None]:
        frames = operation_frames() * len(owed) + sum(job.frames for job in batch)
        self._make_room(self._layout.fixed + frames)
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            entries, size = self.totals
            refusals = []
            for number in owed:
                for (room,) in connection.execute(DELETE, (number,)):
                    entries, size = entries - 1, size - room
            for job in batch:
                for number in job.evict:
                    for (room,) in connection.execute(DELETE, (number,)):
                        entries, size = entries - 1, size - room
                refusal = job.refusal
                if job.row and size + job.row[3] > self._layout.capacity:
                    refusal = f"no room: {job.row[3]} bytes, {self._layout.capacity - size} left"
                if not refusal and job.row:
                    connection.execute(INSERT, job.row)
                    entries, size = entries + 1, size + job.row[3]
                if not refusal and job.snapshot:
                    connection.execute(KEEP_STATE, (SNAPSHOT_ROW, *job.snapshot))
                refusals.append(refusal)
            connection.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        self.totals = Totals(entries, size)
        with self._lock:
            for number in owed:
                key, job = self._owed.pop(number)
                if self.pending.get(key) is job:
                    del self.pending[key]
        return refusals

    def _make_room(self, frames: int) -> None:
        """Empty the log when `frames` more might not fit."""
        if self._frames + frames > self._layout.frames:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
            self._frames = 0
            self._counters["checkpoints"] += 1

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except apsw.Error:  # it was rolled back by whatever went wrong
                self._counters["failed_rollbacks"] += 1

    def _settle(self, job: Job, refusal: str | None) -> None:
        with self._lock:
            self._queued -= job.weight
            for key in job.keys:
                if self.pending.get(key) is job:
                    del self.pending[key]
        if refusal is None:
            job.future.set_result(None)
        else:
            self._counters["refused"] += 1
            job.future.set_exception(StoreError(refusal))

    def _fail(self, job: Job, error: Exception) -> None:
        job.put = None
        there = [self._maybe_there(number) for number in job.evict]
        with self._lock:
            self._queued -= job.weight
            for key, number, owed in zip(job.keys, job.evict, there, strict=False):
                if owed:
                    self._owed[number] = (key, job)
                elif self.pending.get(key) is job:
                    del self.pending[key]
        if job.evict or job.snapshot:  # `flush` writes nothing of its own
            self._counters["failed_writes"] += 1
        job.future.set_exception(StoreError(f"not stored: {error}"))

    def _maybe_there(self, number: int) -> bool:
        """Owing only what is there keeps the debt bounded while a disk is dead and requests go on."""
        try:
            return bool(self._connection.execute("SELECT 1 FROM entries WHERE id = ?", (number,)).fetchall())
        except apsw.Error:
            return True

    def _replace(self, batch: list[Job], why: Exception) -> None:
        """Set the damaged file aside and go on with an empty one."""
        self._suspect = False
        self._connection.close(True)
        try:
            opened = self._open_anew(why)
        except StoreError as error:
            # Every write fails and says so, and every next one tries again.
            self._connection, self.totals, self._suspect = apsw.Connection(":memory:"), Totals(0, 0), True
            for job in batch:
                self._fail(job, error)
            return
        self._adopt(opened)
        self.generation += 1
        self._hot.clear()
        with self._lock:
            for key, owing in self._owed.values():
                if self.pending.get(key) is owing:
                    del self.pending[key]
            self._owed.clear()
        try:
            refusals = self._transaction(batch)
        except (apsw.Error, Damaged) as error:
            for job in batch:
                self._fail(job, error)
        else:
            for job, refusal in zip(batch, refusals, strict=True):
                self._settle(job, refusal)

    def _adopt(self, opened: Opened) -> None:
        """Write through this connection from now on."""
        self._connection, self.totals = opened
        self._frames = 0  # the log was emptied when the file was opened

        def committed(_connection: apsw.Connection, _name: str, frames: int) -> int:
            self._frames = frames
            return apsw.SQLITE_OK

        self._connection.set_wal_hook(committed)

    def _shut(self) -> None:
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error:  # the next owner will find it in the log
            self._counters["failed_checkpoints"] += 1
        self._connection.close(True)
