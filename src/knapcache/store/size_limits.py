"""Find the size limit that a store was opened with, from the capacity that it has.

A layout divides a size limit, which users give as "2GB", and the capacity for entries is what remains. Snapshots and
the limits of shards have the capacity only. Several size limits give one capacity; users write the roundest of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

MAX_SIZE_LIMIT = 1 << 60
_STEPS: list[int] = sorted({base**k for base in (2, 10) for k in range(40)}, reverse=True)


def size_limit_of(capacity: int, capacity_of: Callable[[int], int], minimum: int) -> int:
    """Return the roundest size limit with this capacity; the nearest one if none has exactly this capacity.

    `capacity_of(size_limit)` rises with the size limit, but for some bytes. `minimum`: the smallest size limit.
    """
    near = bisect_left(range(MAX_SIZE_LIMIT), capacity, lo=minimum, key=capacity_of)
    for step in _STEPS:
        for candidate in (near // step * step, -(-near // step) * step):
            if minimum <= candidate < MAX_SIZE_LIMIT and capacity_of(candidate) == capacity:
                return candidate
    return near
