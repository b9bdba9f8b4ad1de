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
"""

from __future__ import annotations

from knapcache.policy.base import Policy

MIN_IDS, MAX_IDS = 1 << 17, 1 << 20
MAX_STEPS = 1024
"""Ids that the hand passes for one new key. A pass over a million ids takes a tenth of a second."""


def table_size(capacity: int) -> int:
    """Return the number of ids for a capacity in bytes: more than there are entries, for keys that are not resident."""
    return min(max(MIN_IDS, capacity // 1024), MAX_IDS)


class IdTable:
    """Keys and ids of one policy."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self._max_ids = policy, policy.ids
        self._ids: dict[bytes, int] = {}
        self._hand = 0
        self.keys: list[bytes] = []
        """By id."""
        self.serial: list[int] = []
        """By id."""

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, key: bytes) -> int:
        """Return the id of a key, or −1."""
        return self._ids.get(key, -1)

    def holds(self, i: int, key: bytes) -> bool:
        """Return whether id i still belongs to the key."""
        return 0 <= i < len(self.keys) and self.keys[i] == key

    def intern(self, key: bytes) -> tuple[int, bool, bytes | None]:
        """Assign an id to a key that has none.

        Return the id, whether it was recycled, and the key whose entry must be evicted for that, if any.
        """
        i = len(self.keys)
        if i < self._max_ids:
            self.keys.append(key)
            self.serial.append(0)
            self._ids[key] = i
            return i, False, None
        i, evicted = self._policy.recycle() if type(self._policy).recycle_kernel else self._advance_hand()
        old = self.keys[i]
        del self._ids[old]
        self.keys[i] = key
        self._ids[key] = i
        self.serial[i] += 1
        return i, True, old if evicted else None

    def load(self, keys: list[bytes]) -> None:
        """Restore the table from a snapshot."""
        self.keys = keys
        self.serial = [0] * len(keys)
        self._ids = {key: i for i, key in enumerate(keys)}

    def _advance_hand(self) -> tuple[int, bool]:
        """Return the next id that is not resident; when MAX_STEPS ids are resident, forget the next one."""
        resident = self._policy.rows["resident"]
        n = self._max_ids
        for _ in range(min(n, MAX_STEPS)):
            i = self._hand
            self._hand = (i + 1) % n
            if not resident[i]:
                return i, False
        i = self._hand
        self._hand = (i + 1) % n
        self._policy.forget(i)
        return i, True
