"""Many changes in one transaction, with a number of statements that hardly depends on how many they are.

Every statement releases the interpreter's lock. While other threads compute, the writer thread gets it back only after
the switch interval, 5 ms: with two statements for each change it wrote 2,200 entries a second. So changes are combined
before they are written: one query for the sizes of the rows that they remove, one deletion, and insertions of many rows
at once. No reader sees the steps in between.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from operator import itemgetter
from typing import Any, TypeVar

import apsw

from knapcache.errors import StoreError
from knapcache.store.base import (
    Change,
    Entry,
    Fields,
    Totals,
    content_size,
    encode_fields,
    validate_entry,
    validate_key,
)
from knapcache.store.sqlite.layout import DiskLayout, entry_size, operation_frames, snapshot_frames
from knapcache.store.sqlite.rows import INSERT, Sealer
from knapcache.store.sqlite.snapshot_rows import SnapshotRow, rows_of

MAX_ROWS, MAX_BYTES = 256, 1 << 20
"""Rows of one insertion, and bytes of their content. SQLite copies them."""

_ROWS = "FROM entries WHERE id IN (SELECT value FROM json_each(?))"
_SIZE = "CASE typeof(size) WHEN 'integer' THEN size ELSE 0 END"
_SIZES = f"SELECT json_group_array(json_array(id, {_SIZE})) {_ROWS}"
_DELETE = f"DELETE {_ROWS}"


T = TypeVar("T")


class WriteFuture(Future[T]):
    """The result of queued changes. urgent: set by a caller that waits for it."""

    def __init__(self, urgent: threading.Event) -> None:
        super().__init__()
        self._urgent = urgent

    def result(self, timeout: float | None = None) -> T:
        if not self.done():
            self._urgent.set()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.done():
            self._urgent.set()
        return super().exception(timeout)


class ChangeFuture(WriteFuture[None]):
    """The result of one change. It fails with the change."""

    def resolve(self, _place: int, error: StoreError | None) -> None:
        """Resolve it: the change is durable, or has failed."""
        if error is None:
            self.set_result(None)
        else:
            self.set_exception(error)


class ChangesFuture(WriteFuture[Sequence[StoreError | None]]):
    """The results of several changes: for each of them why it failed, or None. One thread resolves all of them."""

    def __init__(self, urgent: threading.Event, changes: int) -> None:
        super().__init__(urgent)
        self._errors: list[StoreError | None] = [None] * changes
        self._open = changes
        if not changes:
            self.set_result(())

    def resolve(self, place: int, error: StoreError | None) -> None:
        """Note that one change is durable, or has failed. The last one resolves the future."""
        self._errors[place] = error
        self._open -= 1
        if not self._open:
            self.set_result(self._errors)


class QueuedWrite:
    """One change in the queue.

    keys      of all entries that it changes
    rows      ids of their rows, the same number for each key. Those of the entry to put are the last ones
    put       the entry to put, its `encode_fields`, and the bytes of its row. None: readers see that the keys are gone
    snapshot  rows of a snapshot. All but the last one, which makes it the current snapshot, are queued first (chunks)
    """

    __slots__ = (
        "_future", "_place", "chunks", "content_bytes", "done", "evict", "fields", "frames", "keys", "put", "refusal",
        "row", "snapshot",
    )  # fmt: skip

    def __init__(
        self,
        future: ChangeFuture | ChangesFuture,
        place: int = 0,
        keys: Sequence[bytes] = (),
        rows: Sequence[int] = (),
        put: tuple[Entry, Fields, int] | None = None,
        snapshot: Sequence[SnapshotRow] = (),
        refusal: str | None = None,
    ) -> None:
        self._future, self._place, self.done = future, place, False
        self.keys, self.evict, self.refusal, self.chunks = keys, rows, refusal, snapshot[:-1]
        self.snapshot = snapshot[-1] if snapshot else None
        self.put: Entry | None = None
        self.fields: Fields | None = None
        content = 0
        if put is not None:
            self.put, self.fields, content = put
        self.row: tuple[Any, ...] | None = None
        state = len(self.snapshot.value) if self.snapshot else 0
        self.content_bytes = content + state
        self.frames = 0
        """The most frames that it takes beside those for deletions of rows."""
        if self.put is not None:
            self.frames += operation_frames(content, expires=self.put.expires is not None)
        if snapshot:
            self.frames += snapshot_frames(state)

    @property
    def most_frames(self) -> int:
        """The most frames that it takes if every key has all its rows."""
        return self.frames + operation_frames() * len(self.evict)

    def refuse(self, refusal: str) -> None:
        """Only remove the rows, and fail."""
        self.refusal = self.refusal or refusal
        self.put = self.fields = self.snapshot = None
        self.chunks = ()
        self.content_bytes = self.frames = 0

    def resolve(self, error: StoreError | None = None) -> None:
        """Report that it is durable, or why it failed."""
        self.done = True
        self._future.resolve(self._place, error)


class ChangeEncoder:
    """Encodes changes for the writer of a store."""

    def __init__(self, layout: DiskLayout, sealer: Sealer) -> None:
        self._sealer, self._max_entry_size = sealer, layout.max_entry_size
        self._chunk = layout.snapshot_chunk - sealer.overhead
        self.max_snapshot_size = self._chunk * (layout.max_snapshot_size // layout.snapshot_chunk)

    def queued(self, done: ChangeFuture | ChangesFuture, place: int, change: Change) -> QueuedWrite:
        """Return a change as the writer takes it, or raise InvalidInput."""
        put, evict, snapshot = change
        keys = [validate_key(key) for key in evict]
        encoded = refusal = None
        rows: Sequence[SnapshotRow] = ()
        if put is not None:
            content = content_size(put, fields := encode_fields(put)) + self._sealer.overhead
            put = validate_entry(put, entry_size(content, put.expires is not None))
            keys.append(put.key)
            encoded = put, fields, content
            if put.size > self._max_entry_size:
                refusal = f"the entry has {put.size} bytes, at most {self._max_entry_size} are allowed"
        if snapshot is not None:
            rows = rows_of(snapshot, self._chunk, self._sealer)
            if len(snapshot) > self.max_snapshot_size:
                refusal = f"the snapshot has {len(snapshot)} bytes, at most {self.max_snapshot_size} are allowed"
        numbers = [number for key in keys for number in self._sealer.row_ids(key)]
        if refusal is not None:
            return QueuedWrite(done, place, keys, numbers, refusal=refusal)
        return QueuedWrite(done, place, keys, numbers, encoded, rows)


def write_changes(
    connection: apsw.Connection,
    totals: Totals,
    capacity: int,
    late: Sequence[int],
    changes: Sequence[QueuedWrite],
    sizes: Mapping[int, int],
) -> tuple[Totals, list[str | None]]:
    """Delete the rows `late`, then make the changes. Return the new totals, and why each change was refused, or None.

    sizes   of the rows that exist, by id (`row_sizes`)

    The caller has begun a transaction, and has encoded the rows of the changes. It writes snapshots.
    """
    entries, size = totals.entries, totals.size
    present, rows, refusals = dict(sizes), dict[int, tuple[Any, ...]](), list[str | None]()

    def remove(numbers: Sequence[int]) -> None:
        nonlocal entries, size
        for number in numbers:
            if (removed := present.pop(number, None)) is not None:
                entries, size = entries - 1, size - removed
                rows.pop(number, None)

    remove(late)
    for change in changes:
        remove(change.evict)
        refusal, row = change.refusal, change.row
        if row and size + row[3] > capacity:
            refusal = f"the store is full: the entry has {row[3]} bytes, {capacity - size} are free"
        if row and not refusal:
            rows[row[0]], present[row[0]] = row, row[3]
            entries, size = entries + 1, size + row[3]
        refusals.append(refusal)
    if sizes:
        connection.execute(_DELETE, (json.dumps(list(sizes)),))
    for chunk in _chunks(sorted(rows.values(), key=itemgetter(0))):  # neighbours in the tree one after the other
        connection.execute(_insert(len(chunk)), [value for row in chunk for value in row])
    return Totals(entries, size), refusals


def row_sizes(connection: apsw.Connection, numbers: list[int]) -> dict[int, int]:
    """Return the sizes of the rows that exist, by id. In one row: each row of a result releases the lock as well."""
    if not numbers:
        return {}
    ((found,),) = connection.execute(_SIZES, (json.dumps(numbers),))
    return dict(json.loads(found))


@functools.cache
def _insert(rows: int) -> str:
    head, values = INSERT.split("VALUES ")
    return f"{head}VALUES {', '.join([values] * rows)}"


def _chunks(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    chunk, content = list[tuple[Any, ...]](), 0
    for row in rows:
        row_bytes = _content_bytes(row)
        if chunk and (len(chunk) == MAX_ROWS or content + row_bytes > MAX_BYTES):
            yield chunk
            chunk, content = [], 0
        chunk.append(row)
        content += row_bytes
    if chunk:
        yield chunk


def _content_bytes(row: tuple[Any, ...]) -> int:
    """Return the bytes of the strings of a row."""
    return sum(map(len, row[8:13]))
