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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import apsw

from knapcache.store.base import Entry, Totals
from knapcache.store.sqlite.layout import operation_frames, snapshot_frames
from knapcache.store.sqlite.rows import INSERT, row_id
from knapcache.store.sqlite.snapshot_rows import SnapshotRow

MAX_ROWS, MAX_BYTES = 256, 1 << 20
"""Rows of one insertion, and bytes of their content. SQLite copies them."""

_ROWS = "FROM entries WHERE id IN (SELECT value FROM json_each(?))"
_SIZE = "CASE typeof(size) WHEN 'integer' THEN size ELSE 0 END"
_SIZES = f"SELECT json_group_array(json_array(id, {_SIZE})) {_ROWS}"
_DELETE = f"DELETE {_ROWS}"


class WriteFuture(Future[None]):
    """The result of a change. urgent: set by a caller that waits for it."""

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


class QueuedWrite:
    """One change in the queue."""

    __slots__ = (
        "content_bytes",
        "evict",
        "evict_keys",
        "frames",
        "future",
        "keys",
        "put",
        "refusal",
        "row",
        "snapshot",
    )

    def __init__(
        self,
        urgent: threading.Event,
        row_ids: Callable[[bytes], Sequence[int]] = lambda key: (row_id(key),),
        keys: Sequence[bytes] = (),
        put: Entry | None = None,
        row: tuple[Any, ...] | None = None,
        snapshot: SnapshotRow | None = None,
        refusal: str | None = None,
    ) -> None:
        self.keys = keys  # of all entries that it changes
        self.put = put  # None: readers see that the keys are gone
        self.row = row
        self.snapshot = snapshot
        self.refusal = refusal
        rows = [(number, key) for key in keys for number in row_ids(key)]
        self.evict = [number for number, _ in rows]
        self.evict_keys = [key for _, key in rows]
        self.future = WriteFuture(urgent)
        content = _content_bytes(row) if row else 0
        state = len(snapshot.value) if snapshot else 0
        self.content_bytes = content + state
        self.frames = operation_frames() * len(self.evict)
        self.frames += (operation_frames(content) if row else 0) + (snapshot_frames(state) if snapshot else 0)


def write_changes(
    connection: apsw.Connection, totals: Totals, capacity: int, late: Sequence[int], changes: Sequence[QueuedWrite]
) -> tuple[Totals, list[str | None]]:
    """Delete the rows `late`, then make the changes. Return the new totals, and why each change was refused, or None.

    The caller has begun a transaction. It writes snapshots.
    """
    sizes = _sizes(connection, [*late, *(number for change in changes for number in change.evict)])
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
    for chunk in _chunks(rows.values()):
        connection.execute(_insert(len(chunk)), [value for row in chunk for value in row])
    return Totals(entries, size), refusals


def _sizes(connection: apsw.Connection, numbers: list[int]) -> dict[int, int]:
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
