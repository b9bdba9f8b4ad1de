"""The result of simulating one design, and the shares of a divided capacity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from knapcache.errors import InvalidInput


@dataclass(frozen=True, eq=False)
class SharingOutcome:
    hits: npt.NDArray[np.bool_]
    """Whether each request was answered from a cache."""
    peak: int
    """A bound on the total size ever stored: the largest total, or the sum of the largest totals of the parts."""


def shares(capacity: int, count: int) -> list[int]:
    """Divide a capacity into equal whole numbers; the first ones get what is left over."""
    if capacity < count:
        raise InvalidInput(f"a capacity of {capacity} cannot be divided among {count} proxies")
    return [capacity // count + (part < capacity % count) for part in range(count)]
