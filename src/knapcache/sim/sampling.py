"""A small log that stands for a large one: keep some keys with all of their requests, and shrink the cache alike.

SHARDS (Waldspurger, Park, Garthwaite, Ahmad, FAST 2015). A key is kept when its hash falls below a rate R, so of each
key all requests are kept or none, and the distances between the requests for one key shrink by R on average. A cache of
R·capacity on the sample then behaves as one of `capacity` on the whole. Requests drawn at random would not do: they
would thin out every key's repeats, which are what a cache lives on.

The sample comes in several slices of the hash's range that share no key. Each is replayed alone, and their spread says
how far chance, by which a key is in or out, may have moved the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from knapcache.errors import InvalidInput
from knapcache.sim.trace import Ints, Trace

AUTO = 0
"""In place of a number of requests: as many as are quick to replay and enough to trust."""
SLICES = 4
REQUESTS = 200_000
"""Requests that remain, about, where nothing else is asked for."""
LEAST_KEYS = 1000
"""Keys a slice shall have, about: with fewer, one popular key more or less changes the answer."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Traces to replay in place of one."""

    slices: tuple[Trace, ...]
    rate: float
    """Share of all keys that each slice has, about."""

    @property
    def whole(self) -> bool:
        """Nothing was left out."""
        return self.rate == 1.0

    def room(self, capacity: int) -> int:
        """The capacity for a slice that stands for `capacity` on the whole log."""
        room = capacity if self.whole else int(capacity * self.rate)
        if room < 1:
            raise InvalidInput(
                f"a capacity of {capacity} is less than one unit in a sample of one key in {1 / self.rate:,.0f}: "
                "sample more, or not at all"
            )
        return room


def read_amount(text: str) -> int | None:
    """`auto` (AUTO), `off` (None) or a number of requests."""
    if text == "auto":
        return AUTO
    if text == "off":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InvalidInput(f"sample must be auto, off or a number of requests from 1, not {text!r}")
    return int(text)


def take(trace: Trace, amount: int | None, *, seed: int = 0) -> Sample:
    """About `amount` requests in slices; None keeps all.

    A log that is no larger than that is kept whole, in one piece.
    """
    if amount is None:
        return Sample((trace,), 1.0)
    if amount == AUTO:
        distinct = len(np.unique(trace.keys))
        share = max(REQUESTS / len(trace), SLICES * LEAST_KEYS / distinct)
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
            raise InvalidInput(f"a sample of {amount} requests leaves a slice without any: sample more, or not at all")
        slices.append(narrowed(trace, kept))
    return Sample(tuple(slices), rate)


def hashes(ids: Ints, seed: int) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each id: the finisher of splitmix64, which scatters neighbours, over 53 bits."""
    golden, first, second = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
    with np.errstate(over="ignore"):  # arithmetic is modulo 2^64
        x = (ids.astype(np.uint64) + np.uint64(1)) * golden + np.array([seed], np.uint64) * second
        x = (x ^ (x >> np.uint64(30))) * first
        x = (x ^ (x >> np.uint64(27))) * second
        x = x ^ (x >> np.uint64(31))
    return np.asarray((x >> np.uint64(11)) * 2.0**-53, np.float64)


def narrowed(trace: Trace, kept: npt.NDArray[np.bool_]) -> Trace:
    """Some requests of a trace, its keys numbered anew without gaps, so that a policy has no rows that nobody needs."""
    found, keys = np.unique(trace.keys[kept], return_inverse=True)
    return Trace(keys, trace.sizes[kept], trace.costs[kept], len(found))
