"""Snapshots as rows of the table `state`.

A small one is row SNAPSHOT_ROW. One that exceeds a chunk is divided into chunks, each written by a transaction of its
own, because the log has to hold a whole transaction:

    row −n … −m      the chunks, under random numbers
    row SNAPSHOT_ROW   the head: the numbers of the chunks

The head is written last, and its transaction removes the chunks of the former snapshot. So a crash leaves one of the
two, never a mixture. Chunks that no head names are removed before the next ones are written.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import apsw

from knapcache.store.sqlite.rows import GET_STATE, PUT_STATE, Sealer

SNAPSHOT_ROW = 2
MAX_CHUNKS = 1 << 10

_CHUNKS = struct.Struct("<qq")
_FIRST = -(2**62)
_GET_CHUNKS = "SELECT id, seal, value FROM state WHERE id >= ? AND id < ?"
_COUNT = "SELECT count(*) FROM state WHERE id >= ? AND id < ?"
_DELETE_OTHERS = "DELETE FROM state WHERE id < 0 AND NOT (id >= ? AND id < ?)"


class SnapshotRow(NamedTuple):
    """A chunk of a snapshot, or its head."""

    number: int
    seal: bytes
    value: bytes
    chunks: range
    """The numbers of all chunks of this snapshot; empty: the head is all of it."""


def rows_of(snapshot: bytes, chunk_size: int, sealer: Sealer) -> list[SnapshotRow]:
    """Return the rows of a snapshot, in the order in which they are written. The last one is the head."""
    if len(snapshot) <= chunk_size:
        return [SnapshotRow(SNAPSHOT_ROW, *sealer.protect(b"snapshot", snapshot), range(0))]
    first = _FIRST + secrets.randbelow(2**61)
    chunks = range(first, first + -(-len(snapshot) // chunk_size))
    rows = [
        SnapshotRow(number, *sealer.protect(_name(number), snapshot[k * chunk_size : (k + 1) * chunk_size]), chunks)
        for k, number in enumerate(chunks)
    ]
    head = sealer.protect(b"snapshot chunks", _CHUNKS.pack(chunks.start, chunks.stop))
    return [*rows, SnapshotRow(SNAPSHOT_ROW, *head, chunks)]


def put_row(connection: apsw.Connection, sealer: Sealer, row: SnapshotRow) -> None:
    """Write a row of a snapshot, within a transaction."""
    if row.number == SNAPSHOT_ROW:
        ((count,),) = connection.execute(_COUNT, (row.chunks.start, row.chunks.stop))
        if count != len(row.chunks):
            raise apsw.AbortError("a part of the snapshot was not written")
        connection.execute(_DELETE_OTHERS, (row.chunks.start, row.chunks.stop))
    elif row.number == row.chunks.start:
        heads = [chunks_of(sealer, *head) for head in connection.execute(GET_STATE, (SNAPSHOT_ROW,)).fetchall()]
        named = heads[0] if heads and heads[0] else range(0)
        connection.execute(_DELETE_OTHERS, (named.start, named.stop))
    connection.execute(PUT_STATE, row[:3])


def chunks_of(sealer: Sealer, seal: Any, value: Any) -> range | None:
    """Return the chunks that a head names; None if it names none."""
    found = sealer.reveal(b"snapshot chunks", seal, value)
    if found is None or len(found) != _CHUNKS.size:
        return None
    first, end = _CHUNKS.unpack(found)
    return range(first, end) if first < end <= min(0, first + MAX_CHUNKS) else None


def is_sealed(sealer: Sealer, seal: Any, value: Any) -> bool:
    """Return whether SNAPSHOT_ROW holds a snapshot, or a head, that was written with these keys."""
    return sealer.reveal(b"snapshot", seal, value) is not None or chunks_of(sealer, seal, value) is not None


def load(sealer: Sealer, rows: Callable[[str, tuple[int, ...]], list[Any] | None]) -> bytes | None:
    """Return the snapshot; None if there is none. ValueError if it is damaged. `rows` executes a statement.

    A reader may see the head of a snapshot whose chunks its owner has just replaced: then it reads the next head.
    """
    head, former = rows(GET_STATE, (SNAPSHOT_ROW,)), None
    while head and head != former:
        whole = sealer.reveal(b"snapshot", *head[0])
        if whole is not None:
            return whole
        if chunks := chunks_of(sealer, *head[0]):
            found = {number: row for number, *row in rows(_GET_CHUNKS, (chunks.start, chunks.stop)) or ()}
            if len(found) == len(chunks):
                return b"".join(_revealed(sealer, number, found[number]) for number in chunks)
        head, former = rows(GET_STATE, (SNAPSHOT_ROW,)), head
    if head:
        raise ValueError("the snapshot is damaged")
    return None


def _revealed(sealer: Sealer, number: int, row: list[Any]) -> bytes:
    chunk = sealer.reveal(_name(number), *row)
    if chunk is None:
        raise ValueError("a chunk of the snapshot is damaged")
    return chunk


def _name(number: int) -> bytes:
    return b"snapshot chunk %d" % number
