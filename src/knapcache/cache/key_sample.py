"""A sample of the keys in a table of ids: one key in RATE, numbered from 0.

Keys are digests, so the bits of their last byte are uniform: a key is in every sample or in none. (The table's hash is
made from the first bytes.) A key of the sample gets a number when it is asked for, and keeps it while it has its id. So
what is recorded for each number takes an eighth of what is recorded for each id. The sample itself takes four bytes an
id.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from knapcache.cache.ids import IdTable
from knapcache.errors import CorruptState

RATE = 8
SPARE = 4096
"""Numbers beside an eighth of the ids: 11 standard deviations of the sample of a million keys."""


class KeySample:
    """Numbers of the sampled keys by id."""

    def __init__(self, ids: IdTable) -> None:
        self._ids = ids
        self.size = ids.max_ids // RATE + SPARE
        """Numbers are below it. A key that finds none free is not in the sample."""
        self._numbers: npt.NDArray[np.int32] = np.zeros(ids.max_ids, np.int32)
        """By id, one more than the number; 0: none."""
        self._free: list[int] = []
        self._used = 0

    def number(self, i: int) -> int:
        """Return the number of the key of id i, or −1 if it is not in the sample."""
        if self._ids.last_byte(i) % RATE:
            return -1
        found = int(self._numbers[i])
        if not found:
            if not self._free and self._used == self.size:
                return -1
            found = self._free.pop() if self._free else self._used + 1
            self._used = max(self._used, found)
            self._numbers[i] = found
        return found - 1

    def known(self, i: int) -> int:
        """Return the number of id i, or −1 if it has none yet. The id may be another key's already."""
        return int(self._numbers[i]) - 1

    def release(self, i: int) -> None:
        """Free the number of id i, which is given to another key."""
        if self._numbers[i]:
            self._free.append(int(self._numbers[i]))
            self._numbers[i] = 0

    def select(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return those of some ids whose keys are in the sample."""
        return np.asarray(ids[self._ids.keys.rows[ids, -1] % RATE == 0])

    def check(self) -> None:
        """Raise CorruptState unless every number is either free or that of one id, whose key is in the sample."""
        ids = np.flatnonzero(self._numbers)
        numbers = np.sort(np.append(self._numbers[ids], np.array(self._free, np.int32)))
        if not np.array_equal(numbers, np.arange(1, self._used + 1)) or len(self.select(ids)) != len(ids):
            raise CorruptState("the numbers of sampled keys differ from the table of ids")
