"""The policy's state as bytes, and back.

    a line with the format's name; a line with length and CRC of the rest
    one line of JSON: policy, capacity, types of header and rows, how many ids of how many
    zlib: header, rows of the ids in use, spare rows, 32 bytes of key for each id

A state that does not fit into the room the store has for it is trimmed: residents stay first, then what was asked for
lately (`policy/trim.py`; `adaptive` only). The state of a policy that cannot be trimmed is not kept then. What lies in
the store and is not in the snapshot is fed to the policy after a restart, and the rest it learns anew.

Nothing is unpickled. Bytes that are not exactly a state of this policy at this capacity are no state; stores seal
snapshots, so that what is damaged never comes here.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np
import orjson

from knapcache.errors import CorruptState
from knapcache.kernel import Records
from knapcache.policy import registry
from knapcache.policy.adaptive.compaction import compacted, retention_order
from knapcache.policy.adaptive.policy import Adaptive
from knapcache.policy.base import Policy
from knapcache.store.base import KEY_BYTES

MAGIC = b"knapcache state 1\n"
PIECE = 1 << 18


class State(NamedTuple):
    """A copy of what a policy knows, and of the table of ids."""

    head: Records
    rows: Records
    """Of the ids in use."""
    spare: Records
    keys: bytes
    """32 bytes an id."""


def copied(policy: Policy, keys: list[bytes]) -> State:
    """A state that stays as it is while the policy goes on."""
    used = len(keys)
    return State(policy.head.copy(), policy.rows[:used].copy(), policy.rows[policy.ids :].copy(), b"".join(keys))


def pack(name: str, policy: Policy, state: State, room: int) -> bytes | None:
    """At most `room` bytes; None where that cannot be."""
    packed = _packed(name, policy, state, room)
    if isinstance(packed, bytes) or not isinstance(policy, Adaptive):
        return packed if isinstance(packed, bytes) else None
    order = retention_order(state.rows, len(state.rows))
    keys = np.frombuffer(state.keys, np.uint8).reshape(-1, KEY_BYTES)
    many = len(order)
    while True:
        head, rows = compacted(state.head, state.rows, order[:many])
        packed = _packed(name, policy, State(head, rows, state.spare, keys[order[:many]].tobytes()), room)
        if isinstance(packed, bytes) or not many:
            return packed if isinstance(packed, bytes) else None
        # By what an id takes now, with an eighth to spare; and fewer every time.
        many = min(many * 7 // 8, many * room * 7 // (8 * packed))


def _packed(name: str, policy: Policy, state: State, room: int) -> bytes | int:
    """The bytes, or about how many there would be where that is more than `room`.

    Piece by piece: a state has 20 MB and more, and whatever is made of it as a whole stays with the process.
    """
    line = orjson.dumps({**_form(name, policy), "used": len(state.rows)})
    packer, packed, size, read = zlib.compressobj(1), [b"%b\n" % line], len(line) + 1, 0
    parts = [memoryview(part.view(np.uint8)) for part in (state.head, state.rows, state.spare)]
    parts.append(memoryview(state.keys))
    total = sum(map(len, parts))
    for part in parts:
        for k in range(0, len(part), PIECE):
            packed.append(packer.compress(part[k : k + PIECE]))
            size, read = size + len(packed[-1]), read + min(PIECE, len(part) - k)
            if size > room:
                return max(room + 1, size * total // read)
    packed.append(packer.flush())
    rest = b"".join(packed)
    whole = b"%b%d %d\n%b" % (MAGIC, len(rest), zlib.crc32(rest), rest)
    return whole if len(whole) <= room else len(whole)


def _form(name: str, policy: Policy) -> dict[str, object]:
    """All that must be the same for a state to fit."""
    return {
        "policy": name,
        "capacity": policy.capacity,
        "ids": policy.ids,
        "spare": policy.spare,
        "head": str(policy.head.dtype.descr),
        "row": str(policy.rows.dtype.descr),
    }


class Known(NamedTuple):
    """A snapshot, read without a cache around it."""

    name: str
    policy: Policy
    keys: list[bytes]


def read(snapshot: bytes) -> Known | None:
    """The policy in a snapshot, whatever it is; None where there is none."""
    try:
        form = orjson.loads(snapshot.split(b"\n", 3)[2])
        name = str(form["policy"])
        policy = registry.find(name).build(form["capacity"], form["ids"])
    except (ValueError, TypeError, KeyError, IndexError):
        return None
    keys = unpack(name, policy, snapshot)
    return None if keys is None else Known(name, policy, keys)


def unpack(name: str, policy: Policy, snapshot: bytes) -> list[bytes] | None:
    """Put a state into a fresh policy; the keys by id. None, and the policy as it was, where it is no such state."""
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


def _restored(policy: Policy, used: int, content: bytes, sizes: tuple[int, ...]) -> list[bytes] | None:
    empty = policy.head.copy(), policy.rows[policy.ids :].copy()
    a, b, c = np.cumsum(sizes[:3]).tolist()
    policy.head[:] = np.frombuffer(content[:a], policy.head.dtype)
    policy.rows[:used] = np.frombuffer(content[a:b], policy.rows.dtype)
    policy.rows[policy.ids :] = np.frombuffer(content[b:c], policy.rows.dtype)
    keys = [content[k : k + KEY_BYTES] for k in range(c, len(content), KEY_BYTES)]
    try:
        policy.check()
        if len(set(keys)) == used:
            return keys
    except (CorruptState, IndexError):
        pass
    policy.head[:], policy.rows[policy.ids :] = empty
    policy.rows[:used] = np.zeros(used, policy.rows.dtype)
    return None
