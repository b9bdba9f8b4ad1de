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
from itertools import chain
from typing import Any

import apsw

from knapcache.errors import StoreError
from knapcache.store.base import C, Change, Done, Entry, Totals
from knapcache.store.sqlite.layout import DiskLayout, size_and_frames, snapshot_frames
from knapcache.store.sqlite.rows import INSERT, Sealer
from knapcache.store.sqlite.snapshot_rows import SnapshotRow, rows_of
from knapcache.store.validation import Fields, content_size, encode_fields, validate_entry, validate_key

MAX_ROWS, MAX_BYTES = 256, 1 << 20
"""Rows of one insertion, and bytes of their content. SQLite copies them."""

_ROWS = "FROM entries WHERE id IN (SELECT value FROM json_each(?))"
_SIZE = "CASE typeof(size) WHEN 'integer' THEN size ELSE 0 END"
_SIZES = f"SELECT json_group_array(json_array(id, {_SIZE})) {_ROWS}"
_DELETE = f"DELETE {_ROWS}"
_CLEAR = "DELETE FROM entries"
"""SQLite frees the pages of the table as a whole. The log gets the pages of the free list (`DiskLayout.fixed`)."""


class ChangeFuture(Future[None]):
    """The result of one change: it is durable, or has failed. urgent: set by a caller that waits for it."""

    def __init__(self, urgent: threading.Event) -> None:
        super().__init__()
        self._urgent = urgent

    def result(self, timeout: float | None = None) -> None:
        if not self.done():
            self._urgent.set()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.done():
            self._urgent.set()
        return super().exception(timeout)

    def resolve(self, _change: object, error: StoreError | None) -> None:
        """Resolve it."""
        if error is None:
            self.set_result(None)
        else:
            self.set_exception(error)


def ignore(_change: object, _error: StoreError | None) -> None:
    """Do nothing with the result of a change that no caller knows of."""


class QueuedWrite:
    """One change in the queue.

    Thousands of them may wait, so each is one object for the garbage collector, besides the change and its entry. What
    most changes have in common is in the class.

    keys     of all entries that it changes; that of the entry to put is the last one
    change   what the caller gave, and `done` is called with, and with the reason why it failed or None
    """

    evict: Sequence[int] = ()
    """Ids of the rows of `keys`, the same number for each. The writer sets them."""
    put: Entry | None = None
    """The entry to put. None: readers see that the keys are gone."""
    fields: Fields | None = None
    """Its `encode_fields`."""
    row: tuple[Any, ...] | None = None
    """Its row, encoded by the writer."""
    chunks: Sequence[SnapshotRow] = ()
    """Rows of a snapshot that are queued first: all but the last one, which makes it the current snapshot."""
    snapshot: SnapshotRow | None = None
    clears = False
    """It removes all rows, in a transaction of its own; `keys` are those of the changes that wait before it."""
    refusal: str | None = None
    content_bytes = 0
    """Of the row and the snapshot's row."""
    frames = 0
    """The most frames that it takes beside those for deletions of rows."""
    resolved = False

    def __init__(self, keys: tuple[bytes, ...] = (), change: Change | None = None, done: Done[Any] = ignore) -> None:
        self.keys, self._change, self._done = keys, change, done

    def add_snapshot(self, row: SnapshotRow) -> None:
        """Let it write a row of a snapshot."""
        self.snapshot = row
        self.content_bytes += len(row.value)
        self.frames += snapshot_frames(len(row.value))

    def refuse(self, refusal: str) -> None:
        """Only remove the rows, and fail."""
        self.refusal = self.refusal or refusal
        self.put = self.fields = self.snapshot = None
        self.chunks = ()
        self.content_bytes = self.frames = 0

    def resolve(self, error: StoreError | None = None) -> None:
        """Report that it is durable, or why it failed."""
        self.resolved = True
        self._done(self._change, error)


class ChangeEncoder:
    """Encodes changes for the writer of a store."""

    def __init__(self, layout: DiskLayout, sealer: Sealer) -> None:
        self._sealer, self._max_entry_size = sealer, layout.max_entry_size
        self._chunk = layout.snapshot_chunk - sealer.overhead
        self.max_snapshot_size = self._chunk * (layout.max_snapshot_size // layout.snapshot_chunk)

    def queued(self, change: C, done: Done[C]) -> QueuedWrite:
        """Return a change as the writer takes it, or raise InvalidInput."""
        put, evict = change.put, change.evict
        keys = tuple(map(validate_key, evict)) if evict else ()
        if put is None:
            write = QueuedWrite(keys, change, done)
        else:
            fields = encode_fields(put)
            content, expires = content_size(put, fields) + self._sealer.overhead, put.expires is not None
            size, frames = size_and_frames(content, expires)
            put = validate_entry(put, size)
            write = QueuedWrite((*keys, put.key), change, done)
            write.put, write.fields, write.content_bytes, write.frames = put, fields, content, frames
            if put.size > self._max_entry_size:
                write.refuse(f"the entry has {put.size} bytes, at most {self._max_entry_size} are allowed")
        if change.snapshot is not None:
            self._add_snapshot(write, change.snapshot)
        return write

    def _add_snapshot(self, write: QueuedWrite, snapshot: bytes) -> None:
        if len(snapshot) > self.max_snapshot_size:
            write.refuse(f"the snapshot has {len(snapshot)} bytes, at most {self.max_snapshot_size} are allowed")
        elif write.refusal is None:
            *write.chunks, last = rows_of(snapshot, self._chunk, self._sealer)
            write.add_snapshot(last)


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
    if changes and changes[0].clears:  # it has no other changes beside it
        connection.execute(_CLEAR)
        return Totals(0, 0), [None]
    entries, size = totals.entries, totals.size
    present, new, refusals = dict(sizes), dict[int, QueuedWrite](), list[str | None]()
    for number in late:
        if (removed := present.pop(number, None)) is not None:
            entries, size = entries - 1, size - removed
    for change in changes:
        for number in change.evict:
            if number in present:
                entries, size = entries - 1, size - present.pop(number)
                new.pop(number, None)
        refusal, row = change.refusal, change.row
        if row is not None:
            number, row_size = row[0], row[3]
            if size + row_size > capacity:
                refusal = f"the store is full: the entry has {row_size} bytes, {capacity - size} are free"
            elif refusal is None:
                new[number], present[number] = change, row_size
                entries, size = entries + 1, size + row_size
        refusals.append(refusal)
    if sizes:
        connection.execute(_DELETE, (json.dumps(list(sizes)),))
    for rows in _chunks(new[number] for number in sorted(new)):  # neighbours in the index one after the other
        connection.execute(_insert(len(rows)), list(chain.from_iterable(rows)))
    return Totals(entries, size), refusals


def row_sizes(connection: apsw.Connection, numbers: list[int]) -> dict[int, int]:
    """Return the sizes of the rows that exist, by id. In one row: each row of a result releases the lock as well."""
    if not numbers:
        return {}
    found: Any = connection.execute(_SIZES, (json.dumps(numbers),)).fetchone()  # no second step to the end
    return dict(json.loads(found[0]))


@functools.cache
def _insert(rows: int) -> str:
    head, values = INSERT.split("VALUES ")
    return f"{head}VALUES {', '.join([values] * rows)}"


def _chunks(changes: Iterable[QueuedWrite]) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of changes, as many as one insertion takes."""
    rows, content = list[tuple[Any, ...]](), 0
    for change in changes:
        assert change.row is not None
        if rows and (len(rows) == MAX_ROWS or content + change.content_bytes > MAX_BYTES):
            yield rows
            rows, content = [], 0
        rows.append(change.row)
        content += change.content_bytes
    if rows:
        yield rows
