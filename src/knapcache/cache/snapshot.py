"""Snapshots: the policy's state as bytes, and back.

    a line with the format's name; a line with length and CRC of the rest
    one line of JSON: policy, capacity, types of header and rows, ids in use and in all
    zlib: header, rows of the ids in use, spare rows, 32 bytes of key for each id

A state that does not fit into the limit is reduced to fewer ids, if the policy can do that (`Policy.compacted`).
Otherwise no snapshot is saved. After a restart the policy is fed the entries that the store has and the snapshot does
not; the rest it learns again.

Nothing is unpickled. Bytes that are not exactly a state of this policy at this capacity are ignored. Stores seal
snapshots, so damaged ones never get here.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np
import orjson

from knapcache.cache.entry_index import request_counts
from knapcache.cache.key_array import KeyArray
from knapcache.errors import CorruptState
from knapcache.kernel import Records
from knapcache.policy import registry
from knapcache.policy.base import Policy
from knapcache.store.base import KEY_BYTES

MAGIC = b"knapcache state 1\n"
CHUNK = 1 << 18


class PolicyState(NamedTuple):
    """A copy of a policy's state and of its keys."""

    head: Records
    rows: Records
    """Of the ids in use."""
    spare: Records
    keys: bytes
    """32 bytes per id in use."""


def copy_state(policy: Policy, keys: KeyArray) -> PolicyState:
    """Return a copy of the state of a policy whose ids belong to `keys`."""
    used = len(keys)
    return PolicyState(
        policy.head.copy(), policy.rows[:used].copy(), policy.rows[policy.ids :].copy(), keys.rows.tobytes()
    )


def pack(name: str, policy: Policy, state: PolicyState, limit: int) -> bytes | None:
    """Return a snapshot of at most `limit` bytes, or None when there is none."""
    packed, many = _packed(name, policy, state, limit), len(state.rows)
    keys = np.frombuffer(state.keys, np.uint8).reshape(-1, KEY_BYTES)
    while not isinstance(packed, bytes):
        compact = policy.compacted(state.head, state.rows, many)
        if compact is None:
            return None
        smaller = PolicyState(compact.head, compact.rows, state.spare, keys[compact.ids].tobytes())
        packed = _packed(name, policy, smaller, limit)
        if isinstance(packed, int):
            if not many:
                return None
            # By the bytes per id so far, with an eighth to spare; and always fewer than before.
            many = min(many * 7 // 8, many * limit * 7 // (8 * packed))
    return packed


def _packed(name: str, policy: Policy, state: PolicyState, limit: int) -> bytes | int:
    """Return the snapshot, or an estimate of its size when that is above the limit.

    Compresses in chunks: a state has 20 MB and more, and memory allocated for it as a whole stays with the process.
    """
    line = orjson.dumps({**_form(name, policy), "used": len(state.rows)})
    packer, packed, size, read = zlib.compressobj(1), [b"%b\n" % line], len(line) + 1, 0
    parts = [memoryview(part.view(np.uint8)) for part in (state.head, state.rows, state.spare)]
    parts.append(memoryview(state.keys))
    total = sum(map(len, parts))
    for part in parts:
        for k in range(0, len(part), CHUNK):
            packed.append(packer.compress(part[k : k + CHUNK]))
            size, read = size + len(packed[-1]), read + min(CHUNK, len(part) - k)
            if size > limit:
                return max(limit + 1, size * total // read)
    packed.append(packer.flush())
    rest = b"".join(packed)
    whole = b"%b%d %d\n%b" % (MAGIC, len(rest), zlib.crc32(rest), rest)
    return whole if len(whole) <= limit else len(whole)


def _form(name: str, policy: Policy) -> dict[str, object]:
    """Return the properties that must match for a snapshot to be loaded."""
    return {
        "policy": name,
        "capacity": policy.capacity,
        "ids": policy.ids,
        "spare": policy.spare,
        "head": str(policy.head.dtype.descr),
        "row": str(policy.rows.dtype.descr),
    }


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
    keys = unpack(name, policy, snapshot)
    return None if keys is None else SnapshotContents(name, policy, keys)


def unpack(name: str, policy: Policy, snapshot: bytes) -> KeyArray | None:
    """Load a snapshot into a fresh policy. Return the keys by id, or None and an unchanged policy."""
    try:
        if not snapshot.startswith(MAGIC):
            return None
        size, rest = snapshot[len(MAGIC) :].split(b"\n", 1)
        if size != b"%d %d" % (len(rest), zlib.crc32(rest)):
            return None
        line, body = rest.split(b"\n", 1)
        form = orjson.loads(line)
        used = form.pop("used")
        if form != _form(name, policy) or not 0 <= used <= policy.ids:
            return None
        sizes = (policy.head.nbytes, used * policy.rows.itemsize, policy.spare * policy.rows.itemsize, used * KEY_BYTES)
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(body, sum(sizes) + 1)
    except (ValueError, TypeError, AttributeError, KeyError, zlib.error):
        return None
    if len(content) != sum(sizes):
        return None
    return _restored(policy, used, content, sizes)


def _restored(policy: Policy, used: int, content: bytes, sizes: tuple[int, ...]) -> KeyArray | None:
    empty = policy.head.copy(), policy.rows[policy.ids :].copy()
    a, b, c = np.cumsum(sizes[:3]).tolist()
    policy.head[:] = np.frombuffer(content[:a], policy.head.dtype)
    policy.rows[:used] = np.frombuffer(content[a:b], policy.rows.dtype)
    policy.rows[policy.ids :] = np.frombuffer(content[b:c], policy.rows.dtype)
    keys = KeyArray.of((content[c:],))
    try:
        policy.check()
        if keys.distinct:
            return keys
    except (CorruptState, IndexError):
        pass
    policy.head[:], policy.rows[policy.ids :] = empty
    policy.rows[:used] = np.zeros(used, policy.rows.dtype)
    return None
