"""PFOO-L: an upper bound on what any cache can save (Berger, Beckmann, Harchol-Balter, SIGMETRICS 2018: "Practical
Bounds on Optimal Caching with Variable Object Sizes"), generalised from hits to costs.

Between two requests for a query lies an *interval*. A cache that holds the answer throughout it saves the cost of the
second request, and uses space-time: size · length. A cache of capacity c over n requests has c · (n − 1) of it. Filling
that with the intervals of greatest cost per space-time, the last one in part, saves at least as much as any cache: a
cache must fit at every moment, PFOO only on average.

It is a bound, not a policy: the chosen intervals need not fit together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from knapcache.errors import InvalidInput
from knapcache.kernel import kernel


@kernel
def fill(
    keys: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    last: npt.NDArray[np.int64],
    least: npt.NDArray[np.int64],
    size: npt.NDArray[np.int64],
    length: npt.NDArray[np.int64],
) -> None:
    """Set size and length of the interval that ends at each request; length 0 if none does.

    If the answers of a query differ in size, a cache may keep the smallest so far, so that is the size.
    """
    for t in range(len(keys)):
        i = keys[t]
        if last[i] >= 0:
            length[t] = t - last[i]
            size[t] = least[i]
            least[i] = min(least[i], sizes[t])
        else:
            least[i] = sizes[t]
        last[i] = t


def pfoo_bound(keys: npt.NDArray[Any], sizes: npt.NDArray[Any], costs: npt.NDArray[Any], capacity: int) -> float:
    """Return a lower bound on the total miss cost of any cache of this capacity."""
    if not len(keys) == len(sizes) == len(costs):
        raise InvalidInput(f"keys, sizes and costs differ in length: {len(keys)}, {len(sizes)}, {len(costs)}")
    if not capacity >= 1:
        raise InvalidInput(f"capacity must be at least 1, not {capacity}")
    if not len(keys):
        return 0.0
    ids = int(np.max(keys)) + 1
    size, length = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
    last, least = np.full(ids, -1), np.zeros(ids, np.int64)
    fill(np.asarray(keys, np.int64), np.asarray(sizes, np.int64), last, least, size, length)
    held = (length > 0) & (size <= capacity)
    # Floats: the space-time of a long trace may not fit 63 bits.
    spacetime, saved = size[held] * length[held].astype(np.float64), np.asarray(costs, np.float64)[held]
    best = np.argsort(-saved / spacetime, kind="stable")
    filled = np.cumsum(spacetime[best])
    available = float(capacity) * (len(keys) - 1)
    whole = int(np.searchsorted(filled, available, side="right"))
    savings = float(saved[best[:whole]].sum())
    if whole < len(best):
        left = available - (filled[whole - 1] if whole else 0.0)
        savings += float(saved[best[whole]] * left / spacetime[best[whole]])
    return float(np.sum(costs)) - savings
