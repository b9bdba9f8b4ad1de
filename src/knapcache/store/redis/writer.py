"""The owner's thread that writes to the server: many changes in few commands, in their order.

`submit` shows a change to this process at once, in `pending`, and queues it. The thread takes a batch from the queue. A
batch changes no key twice. It makes all evictions of the batch first, one command for each shard, then the puts, one
command each, then resolves the futures and removes the changes from `pending`. A change is atomic within a shard. An
observer in another process may see the evictions of a batch before its puts, but never more than the capacity. A put
replaces an entry of the same key in one step, so no observer misses it.

A change that fails leaves nothing of its put. Its keys are late evictions: they are hidden in this process, and every
batch makes them first until one succeeds. Only while a shard's node is away can they pile up, and then the backlog
counts as full, so that no more than the entries that exist are queued.

When the server answers FENCED, another process owns the store. Then every queued change fails with NotOwner.
"""

from __future__ import annotations

import queue
import secrets
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from knapcache.errors import NotOwner, StoreError
from knapcache.store.base import Entry
from knapcache.store.redis import scripts
from knapcache.store.redis.layout import CHUNK, KeyNames, ServerLayout
from knapcache.store.redis.records import Record
from knapcache.store.redis.server import Fenced, RedisServer
from knapcache.store.redis.shard_table import ShardTable

RETRY_SECONDS = 0.5  # how soon late evictions are retried when nothing else is written
MAX_BATCH = 256
MAX_BATCH_BYTES = 4 << 20
MAX_BACKLOG = 1 << 14
MIN_BACKLOG_BYTES = 8 << 20
UNUSED_CHUNK_SECONDS = 600


@dataclass(slots=True, eq=False)
class QueuedChange:
    """One change in the queue."""

    keys: Sequence[bytes] = ()  # of all entries that it changes
    put: Entry | None = None  # None: this process sees that the keys are gone
    record: Record | None = None
    life: int | None = None  # milliseconds
    parked: bool = False  # whether the server has the record in the nursery
    drop: Sequence[tuple[int, bytes]] = ()  # shards and names in the nursery
    snapshot: tuple[bytes, bytes] | None = None
    refusal: str | None = None
    error: StoreError | None = None
    future: Future[None] = field(default_factory=Future)

    @property
    def content_bytes(self) -> int:
        return (len(self.record.value) if self.record else 0) + (len(self.snapshot[1]) if self.snapshot else 0)


class ServerWriter:
    """The queue, its thread and the table of shards."""

    def __init__(
        self,
        server: RedisServer,
        names: KeyNames,
        layout: ServerLayout,
        table: ShardTable,
        names_of: Callable[[bytes], Sequence[bytes]],
        counters: Counter[str],
        on_fenced: Callable[[ServerWriter], None],
    ) -> None:
        """`table` is open. `names_of(key)` are the names under which an entry may be stored."""
        self.pending: dict[bytes, QueuedChange] = {}
        """The last change that the server has not confirmed, by key."""
        self.table = table
        self._server, self._names, self._layout = server, names, layout
        self._names_of, self._counters, self._on_fenced = names_of, counters, on_fenced
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[QueuedChange | None] = queue.SimpleQueue()
        self._backlog_bytes = 0
        self._max_backlog_bytes = max(MIN_BACKLOG_BYTES, layout.capacity // 64)
        self._late: dict[bytes, QueuedChange] = {}
        self._next: QueuedChange | None = None  # taken from the queue, for the next batch
        self._closed = False
        self._fenced = False
        self._thread = threading.Thread(target=self._run, name="knapcache-server-writer", daemon=True)
        self._thread.start()

    @property
    def backlog_full(self) -> bool:
        """Whether puts should wait. Evictions never do."""
        return (
            self._backlog_bytes > self._max_backlog_bytes
            or self._queue.qsize() > MAX_BACKLOG
            or bool(self._server.breakers.probes)
        )

    def _refuses(self) -> bool:
        """Return whether a put is refused. Threads and batches that saw space may exceed the limits, but not twice."""
        if self._backlog_bytes > 2 * self._max_backlog_bytes or self._queue.qsize() > 2 * MAX_BACKLOG:
            return True
        return bool(self._server.breakers.probes)

    def submit(self, change: QueuedChange, discard: Callable[[], None] = lambda: None) -> Future[None]:
        """Queue a change. `discard` is called after this process sees the change in `pending`."""
        with self._lock:
            if (change.record or change.snapshot) and not change.refusal and self._refuses():
                change.refusal = "the server does not answer, or is too slow"
            if change.refusal:
                change.put = change.record = change.snapshot = None
            if self._fenced:
                change.future.set_exception(NotOwner("another process has become the owner of the store"))
            elif self._closed:
                change.future.set_exception(StoreError("the store is closed"))
            else:
                self.pending.update(dict.fromkeys(change.keys, change))
                self._backlog_bytes += change.content_bytes
                self._queue.put(change)
        discard()
        return change.future

    def fence(self) -> None:
        """Fail every change that is not yet made: another process owns the store."""
        with self._lock:
            self._fenced = True
            self._queue.put(QueuedChange())  # wakes the thread

    def close(self) -> None:
        """Write what is queued and end the thread."""
        with self._lock:
            self._closed = True
            self._queue.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        stop = False
        while not stop:
            batch, stop = self._take_batch()
            if batch or self._late:
                self._commit(batch)
        with self._lock:
            self._closed = True
            self.pending.clear()
            rest = list(iter(self._take_rest, None))
        _resolve(rest, [NotOwner("another process has become the owner of the store")] * len(rest))

    def _take_rest(self) -> QueuedChange | None:
        """Return a change that is left in the queue, or None."""
        while not self._queue.empty():
            if (change := self._queue.get()) is not None:
                return change
        return None

    def _take_batch(self) -> tuple[list[QueuedChange], bool]:
        """Return changes of different keys that wait in the queue, and whether to stop after them."""
        batch: list[QueuedChange] = []
        seen: set[bytes] = set()
        size = 0
        while len(batch) < MAX_BATCH and size < MAX_BATCH_BYTES:
            change: QueuedChange | None
            if self._next is not None:
                change, self._next = self._next, None
            else:
                try:
                    timeout = RETRY_SECONDS if self._late else None
                    change = self._queue.get_nowait() if batch else self._queue.get(timeout=timeout)
                except queue.Empty:
                    break
                if change is None:
                    return batch, True
            if not seen.isdisjoint(change.keys):
                self._next = change
                break
            seen.update(change.keys)
            batch.append(change)
            size += change.content_bytes
        return batch, False

    def _commit(self, batch: list[QueuedChange]) -> None:
        try:
            if self._fenced:
                raise Fenced("another process has become the owner of the store")
            self.table.ensure_open()
            self._evict(batch)
            self.table.correct_limits()
            for change in batch:
                self._put(change)
        except Fenced as error:
            self._lose_ownership(batch, error)
            return
        except StoreError as error:  # the totals could not be read
            for change in batch:
                change.error = change.error or error
        with self._lock:
            errors = [self._finish(change, change.error) for change in batch]
        _resolve(batch, errors)

    def _evict(self, batch: list[QueuedChange]) -> None:
        """Make late evictions and those of the batch. A change whose eviction fails has `error` set."""
        remove: dict[int, list[bytes]] = defaultdict(list)
        drop: dict[int, list[bytes]] = defaultdict(list)
        changes: dict[int, list[QueuedChange]] = defaultdict(list)
        late: dict[int, list[bytes]] = defaultdict(list)
        for key in self._late:
            late[self._names.shard(key)].append(key)
            remove[self._names.shard(key)].extend(self._names_of(key))
        for change in batch:
            for key in change.keys:
                shard = self._names.shard(key)
                changes[shard].append(change)
                names = self._names_of(key)
                # A put also replaces what is stored under the first name.
                remove[shard].extend(names[1:] if change.put is not None and key == change.put.key else names)
            for shard, name in change.drop:
                drop[shard].append(name)
        for shard in remove.keys() | drop.keys():
            try:
                for k in range(0, max(1, len(remove[shard])), 1000):  # short scripts: the server has one thread
                    self.table.change(shard, remove=remove[shard][k : k + 1000], drop=() if k else drop[shard])
            except Fenced:
                raise
            except StoreError as error:
                for change in changes[shard]:
                    change.error = error
            else:
                self._forget_late(late[shard])

    def _forget_late(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            for key in keys:
                change = self._late.pop(key)
                if self.pending.get(key) is change:  # else a newer change is queued
                    del self.pending[key]

    def _put(self, change: QueuedChange) -> None:
        """Put the entry and the snapshot of a change, unless it has failed."""
        if change.error is not None or change.refusal is not None:
            return
        try:
            if change.record is not None and change.put is not None:
                self._put_record(change.record, change.put, change)
            if change.snapshot is not None and change.error is None:
                self._save_snapshot(*change.snapshot)
        except Fenced:
            raise
        except StoreError as error:
            change.error = error

    @property
    def _free(self) -> int:
        return self._layout.capacity - self.table.totals.size

    def _put_record(self, record: Record, put: Entry, change: QueuedChange) -> None:
        shard = self._names.shard(put.key)
        if record.size > self._free and not change.parked:  # what it replaces may take the space
            self.table.change(shard, remove=self._names_of(put.key)[:1])
        if record.size > self._free:
            change.refusal = f"the store is full: the entry has {record.size} bytes, {self._free} are free"
            if change.parked:
                self.table.change(shard, remove=self._names_of(put.key))
            return
        limit = self.table.make_space(shard, record.size)
        status = self.table.change(shard, limit=limit, put=(record, put.expires, change.life, change.parked))
        if status == "missing":
            status = self.table.change(shard, limit=limit, put=(record, put.expires, change.life, False))
        if status != "ok":
            change.refusal = f"the store is full: the entry has {record.size} bytes"

    def _save_snapshot(self, seal: bytes, content: bytes) -> None:
        """Store a snapshot in chunks. Fenced if another owner has taken over.

        The chunks of a new generation are written first, with a life time. One script then makes them permanent, points
        the hash at them and removes the old ones. So a reader finds a whole snapshot, and what a crash leaves vanishes.
        """
        name, generation = self._names.snapshot, secrets.token_hex(8).encode()
        chunks: list[bytes] = []
        for k in range(0, len(content), CHUNK):
            chunks.append(b"%s.%s.%d" % (name, generation, len(chunks)))
            self._server.command(name, "SET", chunks[-1], content[k : k + CHUNK], "EX", UNUSED_CHUNK_SECONDS)
        keys = [name, self._names.epoch, *chunks]
        self._server.run(scripts.SAVE_SNAPSHOT, keys, self.table.epoch, generation, seal)

    def _finish(self, change: QueuedChange, error: StoreError | None) -> StoreError | None:
        """Account for a change that was made, refused or failed. Return the error of its future."""
        self._backlog_bytes -= change.content_bytes
        if error is not None:
            change.put = None
            self._late.update(dict.fromkeys(change.keys, change))
            if change.keys or change.snapshot:  # a flush writes nothing
                self._counters["failed_writes"] += 1
            return error
        for key in change.keys:
            if self.pending.get(key) is change:
                del self.pending[key]
        if change.refusal is None:
            return None
        self._counters["refused"] += 1
        return StoreError(change.refusal)

    def _lose_ownership(self, batch: list[QueuedChange], error: Fenced) -> None:
        with self._lock:
            self._fenced = self._closed = True
            self._late.clear()
            self.pending.clear()
            self._queue.put(None)  # ends the thread
            lost = [*batch, *([self._next] if self._next else [])]
            self._next = None
        self._on_fenced(self)
        _resolve(lost, [error] * len(lost))


def _resolve(changes: Sequence[QueuedChange], errors: Sequence[StoreError | None]) -> None:
    """Resolve futures. Their callbacks take locks of the cache, so the caller holds none."""
    for change, error in zip(changes, errors, strict=True):
        if error is None:
            change.future.set_result(None)
        else:
            change.future.set_exception(error)
