"""Numbering of 64-bit keys: ids 0, 1, 2, … in the order of first appearance.

An open-addressing hash table of (key, id + 1), at most half full, with 0 for an empty slot. Linear probing starts at

    (key ⊕ key ≫ 32) · φ ≫ (64 − bits)        φ = 2^64 divided by the golden ratio, made odd

The high half is mixed into the low half first, so that keys that differ only there do not collide; the product spreads
neighbours. A Python dict takes more than ten times as long, because every key becomes an object.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from knapcache.errors import CorruptState, InvalidInput
from knapcache.kernel import Records, kernel, records
from knapcache.lab.trace import Floats, Ints, Trace

Keys = npt.NDArray[np.uint64]

PHI = np.uint64(0x9E3779B97F4A7C15)
BLOCK = 1 << 13
"""Keys per kernel call: their slots fit into the processor's cache."""
FIELDS = [("key", "u8"), ("number", "i8")]


@kernel
def number_block(table: Records, keys: Keys, slots: Ints, ids: Ints, names: Keys, count: int) -> int:
    """Look up keys from their first slots on, and give new ones the next ids; returns the number of distinct keys."""
    last = len(table) - 1
    for k in range(len(keys)):
        slot = slots[k]
        while table[slot].number > 0 and table[slot].key != keys[k]:
            slot = (slot + 1) & last
        if table[slot].number == 0:
            names[count] = keys[k]
            count += 1
            table[slot].key = keys[k]
            table[slot].number = count
        ids[k] = table[slot].number - 1
    return count


class Numbering:
    """A growing map from 64-bit keys to ids."""

    def __init__(self) -> None:
        self._count = 0
        self._names: Keys = np.zeros(BLOCK, np.uint64)
        self._table = records(FIELDS, 2 * BLOCK)  # Invariant: a power of two, at least twice the number of keys

    def __len__(self) -> int:
        return self._count

    @property
    def names(self) -> Keys:
        """The keys, by id."""
        return self._names[: self._count].copy()

    def number(self, keys: Keys) -> Ints:
        """Return the ids of these keys. A new key gets the next id."""
        if keys.ndim != 1 or keys.dtype != np.uint64:
            raise InvalidInput(f"keys must be a flat array of uint64, not {keys.dtype} {keys.shape}")
        ids = np.empty(len(keys), np.int64)
        for start in range(0, len(keys), BLOCK):
            block = slice(start, start + BLOCK)
            self._reserve(self._count + len(ids[block]))
            self._count = self._insert(keys[block], ids[block], self._count)
        return ids

    def _insert(self, keys: Keys, ids: Ints, count: int) -> int:
        bits = len(self._table).bit_length() - 1
        slots = ((keys ^ (keys >> np.uint64(32))) * PHI) >> np.uint64(64 - bits)
        keys = np.ascontiguousarray(keys)  # a field of packed records may be unaligned
        return int(number_block(self._table, keys, slots.view(np.int64), ids, self._names, count))

    def _reserve(self, keys: int) -> None:
        """Grow the arrays for this total number of keys."""
        if keys > len(self._names):
            longer = np.zeros(max(keys, 2 * len(self._names)), np.uint64)
            longer[: self._count] = self._names[: self._count]
            self._names = longer
        size = len(self._table)
        while size < 2 * keys:
            size *= 2
        if size > len(self._table):
            self._table = records(FIELDS, size)
            # Inserted in the order of their ids, the keys keep them.
            names = self.names
            self._insert(names, np.empty(len(names), np.int64), 0)

    def check(self) -> None:
        """Raise CorruptState unless every key is found under its id."""
        ids = np.empty(self._count, np.int64)
        count = self._insert(self.names, ids, self._count)
        if count != self._count or not np.array_equal(ids, np.arange(self._count)):
            raise CorruptState("the key table lost keys or holds some twice")


def trace_of_keys(keys: Keys, sizes: Ints, costs: Floats) -> Trace:
    """Return a trace of requests whose keys are arbitrary 64-bit numbers."""
    numbering = Numbering()
    ids = numbering.number(keys)
    return Trace(ids, sizes, costs, len(numbering), names=numbering.names.tolist())
