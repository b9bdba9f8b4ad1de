"""The table of keys and the small integers (ids) that the policy knows them by. Its size is bounded.

Ids are assigned from 0 up. When all are in use, the policy gives up the least useful one it finds (`recycle`), and the
id is assigned to the new key. For a policy that cannot recycle, a clock hand takes the next id that is not resident.
Such a policy then takes its statistics of the old key for those of the new one. That affects the quality of decisions
and never an answer: answers are found by key. The hand passes a limited number of ids, because in a cache of a million
small answers every id may be resident.

A request under way reserves nothing here. It remembers its key and id, and `holds` says later whether they still belong
together. So a caller that never returns leaks nothing.

`serial[i]` counts the admissions under id i. A caller that finds an entry missing compares it, so that it does not
forget a newer entry.

The table is three arrays: keys by id, serials by id, and a hash table of ids with linear probing, at most half full.
Keys are digests, so their first bytes are their hash. An id takes 44 to 68 bytes; in a dict and two lists it took 180.
A lookup takes about a microsecond more than in a dict. So RECENT keys that were looked up last are in a dict, too.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from knapcache.cache.key_array import KeyArray, KeyRows, first_bytes
from knapcache.policy.base import Policy
from knapcache.store.base import KEY_BYTES, Store

MIN_IDS, MAX_IDS = 1 << 17, 1 << 20
ENTRY_SIZE = 1024
"""Bytes for which there is an id, in stores of which no more is known."""
MAX_STEPS = 1024
"""Ids that the hand passes for one new key. A pass over a million ids takes a tenth of a second."""
FEW_IDS = 1 << 10
"""Ids for which there are slots at first. Their number is multiplied by four when needed, which takes 40 ms at most."""
RECENT = 1 << 14

_HASH = struct.Struct("<Q")


def table_size(store: Store) -> int:
    """Return the number of ids for a store: more than it has entries, for keys that are not resident.

    A store may have a `min_entry_size`: what it charges for an entry at least.
    """
    return min(max(MIN_IDS, store.capacity // getattr(store, "min_entry_size", ENTRY_SIZE)), MAX_IDS)


def _view(array: npt.NDArray[Any]) -> memoryview[int]:
    return memoryview(array)  # type: ignore[arg-type]


class IdTable:
    """Keys and ids of one policy."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self.max_ids = policy, policy.ids
        self._used = self._hand = 0
        self._keys = bytearray(KEY_BYTES * policy.ids)  # zeros take no memory until they are written
        self._slots: npt.NDArray[np.int32]
        """One more than the id of each slot's key; 0: the slot is free."""
        self._slot_view: memoryview[int]
        """The same: reading an item of an array takes three times as long."""
        self._mask: int
        self._allocate(FEW_IDS)
        self._recent: dict[bytes, int] = {}
        self.serial = _view(np.zeros(policy.ids, np.uint32))
        """By id."""

    def __len__(self) -> int:
        return self._used

    @property
    def keys(self) -> KeyArray:
        """The keys by id: a view of the table."""
        return KeyArray(self._rows[: self._used])

    @property
    def _rows(self) -> KeyRows:
        return np.frombuffer(self._keys, np.uint8).reshape(-1, KEY_BYTES)

    def key(self, i: int) -> bytes:
        """Return the key of id i."""
        return bytes(self._keys[KEY_BYTES * i : KEY_BYTES * (i + 1)])

    def last_byte(self, i: int) -> int:
        """Return the last byte of the key of id i."""
        return self._keys[KEY_BYTES * (i + 1) - 1]

    def find(self, key: bytes) -> int:
        """Return the id of a key, or −1."""
        i = self._recent.get(key)
        if i is None:
            i = self._slot_view[self._slot(key)] - 1
            if i >= 0:
                self._remember(key, i)
        return i

    def find_many(self, keys: KeyArray) -> npt.NDArray[np.int64]:
        """Return the id of each key, or −1."""
        found = np.full(len(keys), -1, np.int64)
        waiting, slots = np.arange(len(keys)), self._homes(keys.rows)
        while len(waiting):
            ids = self._slots[slots].astype(np.int64) - 1
            equal = (self._rows[ids] == keys.rows[waiting]).all(axis=1) & (ids >= 0)
            found[waiting[equal]] = ids[equal]
            on = ~equal & (ids >= 0)
            waiting, slots = waiting[on], (slots[on] + 1) & self._mask
        return found

    def holds(self, i: int, key: bytes) -> bool:
        """Return whether id i still belongs to the key."""
        return 0 <= i < self._used and self._keys[KEY_BYTES * i : KEY_BYTES * (i + 1)] == key

    def intern(self, key: bytes) -> tuple[int, bool, bytes | None]:
        """Assign an id to a key that has none.

        Return the id, whether it was recycled, and the key whose entry must be evicted for that, if any.
        """
        if self._used < self.max_ids:
            i, self._used = self._used, self._used + 1
            if 2 * self._used > len(self._slots):
                self._allocate(min(4 * self._used, self.max_ids))
                self._fill(i)
            self._insert(key, i)
            return i, False, None
        i, evicted = self._policy.recycle() if type(self._policy).recycle_kernel else self._advance_hand()
        old = self.key(i)
        self._delete(old)
        self._insert(key, i)
        self.serial[i] += 1
        return i, True, old if evicted else None

    def load(self, keys: KeyArray) -> None:
        """Restore the table from a snapshot."""
        self._used = len(keys)
        self._rows[: self._used] = keys.rows
        self._allocate(max(len(self._slots) // 2, self._used))
        self._recent.clear()
        self.serial = _view(np.zeros(self.max_ids, np.uint32))
        self._fill(self._used)

    def _allocate(self, ids: int) -> None:
        """Replace the slots by free ones, enough for some ids."""
        self._slots = np.zeros(1 << (2 * ids - 1).bit_length(), np.int32)
        self._slot_view, self._mask = _view(self._slots), len(self._slots) - 1

    def _fill(self, ids: int) -> None:
        """Give the first ids their slots."""
        waiting, slots = np.arange(ids), self._homes(self._rows[:ids])
        while len(waiting):  # all keys take one step together; of several at one slot, the last one gets it
            free = self._slots[slots] == 0
            self._slots[slots[free]] = waiting[free] + 1
            on = self._slots[slots] != waiting + 1
            waiting, slots = waiting[on], (slots[on] + 1) & self._mask

    def _homes(self, rows: KeyRows) -> npt.NDArray[np.int64]:
        """Return the slot at which the search for each key begins."""
        return (first_bytes(rows) & np.uint64(self._mask)).astype(np.int64)

    def _slot(self, key: bytes) -> int:
        """Return the slot of a key, or the free one where it belongs."""
        slots, keys, mask = self._slot_view, self._keys, self._mask
        slot: int = _HASH.unpack_from(key)[0] & mask
        while (i := slots[slot]) and keys[KEY_BYTES * (i - 1) : KEY_BYTES * i] != key:
            slot = (slot + 1) & mask
        return slot

    def _insert(self, key: bytes, i: int) -> None:
        self._slot_view[self._slot(key)] = i + 1
        self._keys[KEY_BYTES * i : KEY_BYTES * (i + 1)] = key
        self._remember(key, i)

    def _delete(self, key: bytes) -> None:
        """Free the slot of a key. Keys behind it move up, so that a search for them does not end at the free slot."""
        self._recent.pop(key, None)
        slots, keys, mask = self._slot_view, self._keys, self._mask
        free = slot = self._slot(key)
        while i := slots[slot := (slot + 1) & mask]:
            home = _HASH.unpack_from(keys, KEY_BYTES * (i - 1))[0] & mask
            if (slot - home) & mask >= (slot - free) & mask:
                slots[free], free = i, slot
        slots[free] = 0

    def _remember(self, key: bytes, i: int) -> None:
        if len(self._recent) >= RECENT:
            self._recent.clear()
        self._recent[key] = i

    def _advance_hand(self) -> tuple[int, bool]:
        """Return the next id that is not resident; when MAX_STEPS ids are resident, forget the next one."""
        resident = self._policy.rows["resident"]
        n = self.max_ids
        for _ in range(min(n, MAX_STEPS)):
            i = self._hand
            self._hand = (i + 1) % n
            if not resident[i]:
                return i, False
        i = self._hand
        self._hand = (i + 1) % n
        self._policy.forget(i)
        return i, True
