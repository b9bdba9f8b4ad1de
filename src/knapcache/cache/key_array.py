"""Keys as the rows of one array, 32 bytes each.

A Python object for each key would take 80 bytes, and every garbage collection would visit all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from knapcache.store.base import KEY_BYTES

PART = 1 << 14
"""Keys that are searched at a time."""
HEX = re.compile(rf"[0-9a-f]{{1,{2 * KEY_BYTES}}}")

KeyRows = npt.NDArray[np.uint8]
"""One key in each row."""


class KeyArray(Sequence[bytes]):
    """A sequence of keys. Reading one makes a `bytes` object."""

    __slots__ = ("rows",)

    def __init__(self, rows: KeyRows) -> None:
        self.rows = rows

    @classmethod
    def of(cls, keys: Iterable[bytes]) -> KeyArray:
        """Return an array of these keys."""
        return cls(np.frombuffer(b"".join(keys), np.uint8).reshape(-1, KEY_BYTES))

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, k: int) -> bytes: ...
    @overload
    def __getitem__(self, k: slice) -> KeyArray: ...
    def __getitem__(self, k: int | slice) -> bytes | KeyArray:
        return KeyArray(self.rows[k]) if isinstance(k, slice) else self.rows[k].tobytes()

    def equal(self, key: bytes) -> npt.NDArray[np.bool_]:
        """Return which keys are equal to one."""
        return np.asarray((self.rows == np.frombuffer(key, np.uint8)).all(axis=1))

    def containing(self, text: str) -> npt.NDArray[np.bool_]:
        """Return which keys contain a text in their hex digits, in lower case."""
        found = np.zeros(len(self), np.bool_)
        if not HEX.fullmatch(text):
            return found
        for first in range(0, len(self), PART):  # `hex` of all keys would stop other threads
            digits = self.rows[first : first + PART].tobytes().hex()
            place = digits.find(text)
            while place >= 0:
                k, start = divmod(place, 2 * KEY_BYTES)
                if start + len(text) <= 2 * KEY_BYTES:
                    found[first + k] = True
                    place = digits.find(text, 2 * KEY_BYTES * (k + 1))
                else:  # it begins in one key and ends in the next
                    place = digits.find(text, place + 1)
        return found

    @property
    def distinct(self) -> bool:
        """Whether no key occurs twice."""
        prefixes = np.sort(first_bytes(self.rows))
        return bool((prefixes[1:] != prefixes[:-1]).all()) or len(np.unique(self.rows, axis=0)) == len(self)


def first_bytes(rows: KeyRows) -> npt.NDArray[np.uint64]:
    """Return the first eight bytes of each key as a number."""
    return np.ascontiguousarray(rows[:, :8]).view("<u8")[:, 0]
