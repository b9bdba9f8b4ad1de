"""Keys and the small numbers that policies know them by: a table of bounded size.

Numbers are given out from 0 up. When all are taken the policy gives one back (`recycle`: the least useful of some, by
its own reckoning), and it means another key from then on. A policy that cannot give one back gets the same by a hand
that goes round and takes the next one that holds no answer; what such a policy knew of the old key, it then believes
of the new one, which touches the quality of a decision and never an answer: answers are found by key.

A request under way holds on to nothing here. It remembers key and number, and whoever comes back later looks whether
they still belong together (`holds`): so a caller that never comes back leaks nothing.

`serial[i]` counts the admissions of the answer under i. Who finds later that an answer has gone compares it, and does
not take a younger one for the older.
"""

from __future__ import annotations

from knapcache.policy.base import Policy

LEAST, MOST = 1 << 17, 1 << 20


def table_size(capacity: int) -> int:
    """Ids for a cache of so many bytes: more than answers fit, for what is remembered of those that do not."""
    return min(max(LEAST, capacity // 1024), MOST)


class Ids:
    """The table of one policy."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._ids: dict[bytes, int] = {}
        self._hand = 0
        self.keys: list[bytes] = []
        """By number."""
        self.serial: list[int] = []

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, key: bytes) -> int:
        """Its number; −1 where it has none."""
        return self._ids.get(key, -1)

    def holds(self, i: int, key: bytes) -> bool:
        """Does the number still mean the key?"""
        return 0 <= i < len(self.keys) and self.keys[i] == key

    def intern(self, key: bytes) -> tuple[int, int, bytes | None]:
        """A number for a key that has none.

        Also: that number where another key had to give it up, or −1; and the key whose answer has to go for it.
        """
        i = len(self.keys)
        if i < self._policy.ids:
            self.keys.append(key)
            self.serial.append(0)
            self._ids[key] = i
            return i, -1, None
        i, evicted = self._policy.recycle() if type(self._policy).recycle_kernel else self._next()
        old = self.keys[i]
        del self._ids[old]
        self.keys[i] = key
        self._ids[key] = i
        self.serial[i] += 1
        return i, i, old if evicted else None

    def load(self, keys: list[bytes]) -> None:
        """Numbers as they were in a former life."""
        self.keys = keys
        self.serial = [0] * len(keys)
        self._ids = {key: i for i, key in enumerate(keys)}

    def _next(self) -> tuple[int, bool]:
        rows = self._policy.rows["resident"]
        n = self._policy.ids
        for _ in range(n):
            i = self._hand
            self._hand = (i + 1) % n
            if not rows[i]:
                return i, False
        i = self._hand
        self._hand = (i + 1) % n
        self._policy.forget(i)
        return i, True
