"""Snapshots: the policy's state and the records of its entries as bytes, and back.

    a line with the format's name; a line with length and CRC of the rest
    one line of JSON: policy, capacity, types of header and rows, ids in use and in all, position, length of the names
    32 bytes of key for each id
    zlib: header, rows of the ids in use, spare rows; then, if the store has a change log, names and records of the
    resident entries (entry_index.py)

Rows and records are compressed by fields, in blocks of rows. Of a number, the first bytes of all rows come first, then
the second ones, and so on. That takes two thirds of the bytes. Digests and arrays often repeat, so they stay whole.
What an entry cost in dollars is mostly its cost, so only the difference of their bits is saved.

A state that does not fit into the limit is saved without records. If it still does not fit, it is reduced to fewer ids,
if the policy can do that (`Policy.compacted`). Otherwise no snapshot is saved. After a restart the policy is fed the
entries that the store has and the snapshot does not; the rest it learns again.

Nothing is unpickled. Bytes that are not exactly a state of this policy at this capacity are ignored. Fields of other
types, of an older version, are converted if every value stays the same. Fields of the header that an older version did
not have keep their initial values. Stores seal snapshots, so damaged ones never get here.
"""

from __future__ import annotations

import ast
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from knapcache.cache.entry_index import RECORD, EntryIndex, SavedIndex, copied, request_counts
from knapcache.cache.key_array import KeyArray, KeyRows
from knapcache.errors import CorruptState
from knapcache.kernel import Records
from knapcache.policy import registry
from knapcache.policy.base import Policy
from knapcache.store.base import KEY_BYTES

MAGIC, OLDER_MAGIC = b"knapcache state 2\n", b"knapcache state 1\n"
"""The older form has its rows row by row, and the keys at the end of the compressed bytes."""
BLOCK = 1 << 12
"""Rows that are compressed together."""
INPUT = 1 << 20
MAX_NAMES = 64 << 20
"""Most bytes of the names of a snapshot with records."""

_INVALID = (
    ValueError, TypeError, AttributeError, KeyError, OverflowError, SyntaxError, RecursionError, MemoryError,
    zlib.error,
)  # fmt: skip


class PolicyState(NamedTuple):
    """A copy of a policy's state and of its keys."""

    head: Records
    rows: Records
    """Of the ids in use."""
    spare: Records
    keys: KeyRows
    """Of the ids in use."""
    entries: SavedIndex | None = None
    """Records of the ids in use, of which those of residents are saved."""
    position: bytes = b""
    """Of the change log of the store."""


def copy_state(
    policy: Policy,
    keys: KeyArray,
    index: EntryIndex | None = None,
    position: bytes = b"",
    space: PolicyState | None = None,
) -> PolicyState:
    """Return a copy of the state of a policy whose ids belong to `keys`. Without a position, no records are saved.

    space   a former copy, which is overwritten
    """
    used = len(keys)
    return PolicyState(
        head=policy.head.copy(),
        rows=copied(policy.rows[:used], space and space.rows),
        spare=policy.rows[policy.ids :].copy(),
        keys=copied(keys.rows, space and space.keys),
        entries=index.copy(used, space and space.entries) if index is not None and position else None,
        position=position,
    )


def pack(name: str, policy: Policy, state: PolicyState, limit: int) -> bytes | None:
    """Return a snapshot of at most `limit` bytes, or None when there is none."""
    packed, many = _packed(name, policy, state, limit), len(state.rows)
    if not isinstance(packed, bytes) and state.entries is not None:
        state = state._replace(entries=None)
        packed = _packed(name, policy, state, limit)
    while not isinstance(packed, bytes):
        compact = policy.compacted(state.head, state.rows, many)
        if compact is None:
            return None
        smaller = PolicyState(compact.head, compact.rows, state.spare, state.keys[compact.ids])
        packed = _packed(name, policy, smaller, limit)
        if isinstance(packed, int):
            if not many:
                return None
            # By the bytes per id so far, with an eighth to spare; and always fewer than before.
            many = min(many * 7 // 8, many * limit * 7 // (8 * packed))
    return packed


def _packed(name: str, policy: Policy, state: PolicyState, limit: int) -> bytes | int:
    """Return the snapshot, or an estimate of its size when that is above the limit.

    Compresses in blocks: a state has 20 MB and more, and memory allocated for it as a whole stays with the process.
    """
    names = b"" if state.entries is None else orjson.dumps(state.entries.names)
    if len(names) > MAX_NAMES:
        return limit + 1
    form = {
        **_form(name, policy),
        "head": str(policy.head.dtype.descr),
        "row": str(policy.rows.dtype.descr),
        "used": len(state.rows),
        "position": state.position.hex(),
        "names": None if state.entries is None else len(names),
    }
    line = orjson.dumps(form) + b"\n"
    packer, read = zlib.compressobj(1), 0
    packed = [line, *(block.tobytes() for block in _blocks(state.keys))]
    size, total = len(line) + state.keys.nbytes, int(state.head.nbytes + state.rows.nbytes + state.spare.nbytes)
    for part in _parts(state, names):
        packed.append(packer.compress(part))
        size, read = size + len(packed[-1]), read + len(part)
        if size > limit:
            return max(limit + 1, size * total // read)
    packed.append(packer.flush())
    size, check = 0, 0
    for piece in packed:
        size, check = size + len(piece), zlib.crc32(piece, check)
    packed.insert(0, b"%b%d %d\n" % (MAGIC, size, check))
    return b"".join(packed) if size + len(packed[0]) <= limit else size + len(packed[0])


def _parts(state: PolicyState, names: bytes) -> Iterator[bytes]:
    yield state.head.tobytes()
    for block in _blocks(state.rows):
        yield from _fields(block)
    yield state.spare.tobytes()
    if state.entries is not None:
        yield names
        for ids in _blocks(np.flatnonzero(state.rows["resident"])):
            yield from _fields(_with_usd_as_difference(state.entries.records[ids]))


def _blocks(array: npt.NDArray[Any]) -> Iterator[Any]:
    return (array[k : k + BLOCK] for k in range(0, len(array), BLOCK))


def _fields(rows: Records) -> Iterator[bytes]:
    for name in rows.dtype.names:
        column = np.ascontiguousarray(rows[name])
        yield (column.view(np.uint8).reshape(len(rows), -1).T if _by_bytes(rows.dtype[name]) else column).tobytes()


def _by_bytes(field: np.dtype[Any]) -> bool:
    return not field.shape and field != np.uint64


def _with_usd_as_difference(records: Records) -> Records:
    """Replace dollars by the difference of their bits from those of the cost, or the difference by the dollars."""
    records["usd"].view(np.uint64)[:] ^= records["cost"].view(np.uint64)
    return records


def _form(name: str, policy: Policy) -> dict[str, object]:
    """Return the properties that must match for a snapshot to be loaded."""
    return {"policy": name, "capacity": policy.capacity, "ids": policy.ids, "spare": policy.spare}


class SnapshotContents(NamedTuple):
    """A snapshot that was read without a cache."""

    name: str
    policy: Policy
    keys: KeyArray

    def requests(self) -> dict[bytes, float]:
        """Return the requests of each key, as the policy counted them."""
        counts = request_counts(self.policy, np.arange(len(self.keys)))
        return dict(zip(self.keys, counts.tolist(), strict=True))


def read_snapshot(snapshot: bytes) -> SnapshotContents | None:
    """Return the policy of a snapshot, whichever it is, or None when the bytes are not a snapshot."""
    try:
        form = orjson.loads(snapshot.split(b"\n", 3)[2])
        name = str(form["policy"])
        policy = registry.find(name).build(form["capacity"], form["ids"])
    except (ValueError, TypeError, KeyError, IndexError):
        return None
    saved = unpack(name, policy, snapshot)
    return None if saved is None else SnapshotContents(name, policy, saved.keys)


class SavedState(NamedTuple):
    """Keys, entries and position of a snapshot that was loaded into a policy."""

    keys: KeyArray
    """By id."""
    entries: SavedIndex | None
    """Records of the resident ids, in their order."""
    position: bytes


def unpack(name: str, policy: Policy, snapshot: bytes) -> SavedState | None:
    """Load a snapshot into a fresh policy. Return the rest of it, or None and an unchanged policy."""
    empty = policy.head.copy(), policy.rows[policy.ids :].copy()
    try:
        saved = _unpack(name, policy, snapshot)
        policy.check()
        if saved.keys.distinct:
            return saved
    except (*_INVALID, CorruptState, IndexError):
        pass
    policy.head[:], policy.rows[policy.ids :] = empty
    policy.rows[: policy.ids] = np.zeros(1, policy.rows.dtype)
    return None


def _unpack(name: str, policy: Policy, snapshot: bytes) -> SavedState:
    older, first = snapshot.startswith(OLDER_MAGIC), snapshot.index(b"\n", len(MAGIC)) + 1
    start, rest = snapshot.index(b"\n", first) + 1, memoryview(snapshot)[first:]
    sums = b"%d %d\n" % (len(rest), zlib.crc32(rest))
    if not (older or snapshot.startswith(MAGIC)) or snapshot[len(MAGIC) : first] != sums:
        raise ValueError("not a snapshot")
    form, content = orjson.loads(snapshot[first:start]), memoryview(snapshot)[start:]
    head = _saved_type(form.pop("head"), policy.head.dtype, subset=True)
    row = _saved_type(form.pop("row"), policy.rows.dtype)
    used, position, names_size = form.pop("used"), form.pop("position", ""), form.pop("names", None)
    if form != _form(name, policy) or not 0 <= used <= policy.ids:
        raise ValueError("a snapshot of another policy")
    keys = content[: 0 if older else used * KEY_BYTES]
    stream = _Stream(content[len(keys) :])
    _read_rows(stream, head, policy.head, whole=True)
    _read_rows(stream, row, policy.rows[:used], whole=older)
    _read_rows(stream, row, policy.rows[policy.ids :], whole=True)
    entries = None
    if names_size is not None:
        residents = int(np.count_nonzero(policy.rows["resident"][:used]))
        entries = _read_entries(stream, min(names_size, MAX_NAMES), residents)
    found = np.frombuffer(stream.take(used * KEY_BYTES) if older else keys, np.uint8).reshape(used, KEY_BYTES)
    stream.end()
    return SavedState(KeyArray(found), entries, bytes.fromhex(position))


def _read_entries(stream: _Stream, names_size: int, residents: int) -> SavedIndex:
    models, tenants, tag_sets = orjson.loads(stream.take(names_size))
    names = tuple([str(name) for name in table] for table in (models, tenants, tag_sets))
    records = np.zeros(residents, RECORD)
    _read_rows(stream, RECORD, records)
    return SavedIndex(_with_usd_as_difference(records), names)


def _saved_type(text: str, current: np.dtype[Any], *, subset: bool = False) -> np.dtype[Any]:
    """Return the type of saved rows: the current one, or one that has the same fields, or a subset, of other types."""
    if text == str(current.descr):
        return current
    fields = [(name or f"padding {k}", *rest) for k, (name, *rest) in enumerate(ast.literal_eval(text))]
    saved = np.dtype(fields)
    names = {name for name in saved.names or () if not name.startswith("padding")}
    known = set(current.names or ())
    if not (names <= known if subset else names == known):
        raise ValueError("other fields")
    if saved.hasobject or saved.itemsize > 2 * current.itemsize + BLOCK:
        raise ValueError("other fields")
    return saved


def _read_rows(stream: _Stream, saved: np.dtype[Any], rows: Records, *, whole: bool = False) -> None:
    """Read the rows of an array, whole or by fields, of a type that may differ. ValueError if a value does not fit."""
    for block in _blocks(rows):
        found = np.frombuffer(stream.take(len(block) * saved.itemsize), saved) if whole else None
        for name in saved.names or ():
            column = _read_field(stream, saved[name], len(block)) if found is None else found[name]
            if name in rows.dtype.names:
                block[name] = column
                if saved[name] != rows.dtype[name] and not _equal(block[name], column):
                    raise ValueError(f"{name} does not fit")


def _read_field(stream: _Stream, field: np.dtype[Any], rows: int) -> npt.NDArray[Any]:
    content = np.frombuffer(stream.take(rows * field.itemsize), np.uint8)
    if _by_bytes(field):
        content = np.ascontiguousarray(content.reshape(field.itemsize, rows).T)
    return content.view(field.base).reshape(rows, *field.shape)


def _equal(column: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    return np.array_equal(column, other, equal_nan=other.dtype.kind == "f")


class _Stream:
    """Compressed bytes, decompressed as they are taken. ValueError at their end."""

    def __init__(self, content: memoryview[int]) -> None:
        self._content, self._next, self._unpacker = content, 0, zlib.decompressobj()

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        found: list[bytes] = []
        while size > 0:
            source = self._unpacker.unconsumed_tail or self._input()
            found.append(self._unpacker.decompress(source, size))
            size -= len(found[-1])
            if not source:
                raise ValueError("too few bytes")
        return b"".join(found)

    def end(self) -> None:
        """Raise ValueError unless all bytes were taken."""
        source = self._unpacker.unconsumed_tail + bytes(self._content[self._next :])
        if self._unpacker.decompress(source, 1) or not self._unpacker.eof or self._unpacker.unused_data:
            raise ValueError("too many bytes")

    def _input(self) -> memoryview[int]:
        """Return the next of the compressed bytes, few at a time: the rest of them is copied with each call."""
        start, self._next = self._next, self._next + INPUT
        return self._content[start : self._next]
