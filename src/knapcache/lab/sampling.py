"""Sampling a large trace by key, with the cache scaled down by the same rate.

SHARDS (Waldspurger, Park, Garthwaite, Ahmad, FAST 2015). A key is kept if its hash is below a rate R. So each key keeps
all of its requests or none, and the distance between two requests for one key shrinks by R on average. A cache of
R·capacity on the sample behaves like one of `capacity` on the whole trace. Sampling single requests would not work: it
would thin out the repeats of every key.

The sample consists of several slices of the hash's range, which share no key. Each slice is replayed separately, and
the spread between slices gives the standard error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from knapcache.errors import InvalidInput
from knapcache.lab.trace import Ints, Trace

AUTO = 0
"""Sentinel for `take_sample`: about DEFAULT_REQUESTS requests, or more to have MIN_KEYS keys in a slice."""
SLICES = 4
DEFAULT_REQUESTS = 200_000
MIN_KEYS = 1000
"""Approximate number of keys in a slice. With fewer, a single popular key changes the result."""


@dataclass(frozen=True, eq=False)
class Sample:
    slices: tuple[Trace, ...]
    rate: float
    """Approximate share of all keys in each slice."""

    @property
    def whole(self) -> bool:
        return self.rate == 1.0

    def scaled_capacity(self, capacity: int) -> int:
        """Return the capacity for a slice that represents `capacity` on the whole trace."""
        scaled = capacity if self.whole else int(capacity * self.rate)
        if scaled < 1:
            raise InvalidInput(
                f"a capacity of {capacity} is less than one unit in a sample of one key in {1 / self.rate:,.0f}: "
                "use a larger sample, or none"
            )
        return scaled


def parse_sample(text: str) -> int | None:
    """Parse `auto` (AUTO), `off` (None) or a number of requests."""
    if text == "auto":
        return AUTO
    if text == "off":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InvalidInput(f"sample must be auto, off or a number of requests, at least 1, not {text!r}")
    return int(text)


def take_sample(trace: Trace, amount: int | None, *, seed: int = 0) -> Sample:
    """Return about `amount` requests in SLICES slices. With None, or a trace no larger than that, return it whole."""
    if amount is None:
        return Sample((trace,), 1.0)
    if amount == AUTO:
        distinct = len(np.unique(trace.keys))
        share = max(DEFAULT_REQUESTS / len(trace), SLICES * MIN_KEYS / distinct)
    else:
        share = amount / len(trace)
    if share >= 1.0:
        return Sample((trace,), 1.0)
    rate = share / SLICES
    where = hashes(np.arange(trace.ids), seed)[trace.keys]
    slices = []
    for k in range(SLICES):
        kept = (where >= k * rate) & (where < (k + 1) * rate)
        if not kept.any():
            raise InvalidInput(
                f"a sample of {amount} requests leaves a slice without any: use a larger sample, or none"
            )
        slices.append(subset(trace, kept))
    return Sample(tuple(slices), rate)


def hashes(ids: Ints, seed: int) -> npt.NDArray[np.float64]:
    """Return a hash in [0, 1) for each id: the finalizer of splitmix64, reduced to 53 bits."""
    golden, first, second = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
    with np.errstate(over="ignore"):  # arithmetic is modulo 2^64
        x = (ids.astype(np.uint64) + np.uint64(1)) * golden + np.array([seed], np.uint64) * second
        x = (x ^ (x >> np.uint64(30))) * first
        x = (x ^ (x >> np.uint64(27))) * second
        x = x ^ (x >> np.uint64(31))
    return np.asarray((x >> np.uint64(11)) * 2.0**-53, np.float64)


def subset(trace: Trace, kept: npt.NDArray[np.bool_]) -> Trace:
    """Return the requests where `kept` is True, with keys renumbered without gaps so that policies have no unused
    rows.
    """
    found, keys = np.unique(trace.keys[kept], return_inverse=True)
    return Trace(keys, trace.sizes[kept], trace.costs[kept], len(found))
