"""Sampling a log by key while it is read, with the cache scaled down by the same rate.

SHARDS (Waldspurger, Park, Garthwaite, Ahmad, FAST 2015). A key is kept if its hash is below a threshold T. So each key
keeps all of its requests or none, and the distance between two requests for one key shrinks by T on average. A cache of
T·capacity on the sample behaves like one of `capacity` on the whole log. Sampling single requests would not work: it
would thin out the repeats of every key.

The length of the log is not known in advance. So T begins at 1 and falls whenever the sample has twice the requests
that it may have; keys above the new T are dropped. Memory depends on the size of the sample, not on the log's.

The sample consists of several slices of the hash's range, which share no key. Each slice is replayed separately, and
the spread between slices gives the standard error.

Of the whole log, the number of requests, their cost and their span are exact. The number of keys, the working set and
the cost of first requests need a set of all keys, which has no bound. They are estimated with a bitmap: a key sets the
bit that its hash selects. A new key finds its bit unset with probability (unset bits) / (all bits), so a request that
sets a bit counts for (all bits) / (unset bits) keys: an unbiased estimate (Cohen, HIP estimators, PODS 2014). With 2^27
bits its standard error is below 0.01 % for 10^7 keys and 0.05 % for 10^9.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from knapcache.errors import InvalidInput
from knapcache.kernel import kernel
from knapcache.lab.numbering import Keys, Numbering
from knapcache.lab.trace import Floats, Ints, Trace, TraceStats, firsts, trace_stats

AUTO = 0
"""Sentinel for a sample of about DEFAULT_REQUESTS requests, or up to MAX_REQUESTS to have MIN_KEYS keys in a slice."""
SLICES = 4
DEFAULT_REQUESTS = 200_000
MAX_REQUESTS = 2_000_000
MIN_KEYS = 1000
"""Number of keys in a slice. With fewer, a single popular key changes the result."""
BITS = 27
"""The bitmap of keys has 2^27 bits: 16 MiB."""
MAX_CHUNKS = 4096
"""Chunks that are held apart. A small sample of a long log has few requests in each."""

Columns: TypeAlias = tuple[Keys, Ints, Floats, Floats]
"""Keys, sizes, costs and times of requests."""


@dataclass(frozen=True, eq=False)
class Sample:
    trace: Trace
    """The sampled requests, or all."""
    slices: tuple[Trace, ...]
    """The same requests by slice."""
    rate: float
    """The share of all keys that the sample has: T."""
    stats: TraceStats
    """Totals of the whole log."""

    @classmethod
    def of(cls, trace: Trace) -> Sample:
        """Return a whole trace as a sample of itself."""
        return cls(trace, (trace,), 1.0, trace_stats(trace))

    @property
    def whole(self) -> bool:
        return self.rate == 1.0

    @property
    def slice_rate(self) -> float:
        """The share of all keys that each slice has."""
        return self.rate / len(self.slices)

    def scaled_capacity(self, capacity: int) -> int:
        """Return the capacity for a slice that represents `capacity` on the whole log."""
        scaled = capacity if self.whole else int(capacity * self.slice_rate)
        if scaled < 1:
            raise InvalidInput(
                f"a capacity of {capacity} is less than one unit in a sample of one key in {1 / self.slice_rate:,.0f}: "
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


def take_sample(chunks: Iterable[Trace], amount: int | None, *, seed: int = 0) -> Sample:
    """Return a sample of the requests of all chunks. Equal keys of two chunks are the same key."""
    sampler = Sampler(amount, seed=seed)
    for chunk in chunks:
        sampler.extend(chunk.keys.view(np.uint64), chunk.sizes, chunk.costs, chunk.times)
    return sampler.sample(sampler.trace())


@kernel
def count_firsts(seen: npt.NDArray[np.uint8], bits: Ints, sizes: Ints, costs: Floats, counts: Floats) -> None:
    """Set the bits of requests in `seen`. Adds to `counts` (unset bits, keys, their sizes, their costs)."""
    for k in range(len(bits)):
        byte, mask = bits[k] >> 3, 1 << (bits[k] & 7)
        if not seen[byte] & mask:
            weight = 8.0 * len(seen) / counts[0]
            seen[byte] |= mask
            counts[0] -= 1.0
            counts[1] += weight
            counts[2] += weight * sizes[k]
            counts[3] += weight * costs[k]


class Sampler:
    """Takes the requests of a log in order, and keeps a sample of at most about `amount` requests.

    amount   a number of requests; AUTO; None: keep all
    """

    def __init__(self, amount: int | None, *, seed: int = 0) -> None:
        self.requests = 0
        self._amount, self._seed, self._threshold = amount, seed, 1.0
        self._chunks: list[Columns] = [(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0))]
        self._held = 0
        self._wanted = math.inf if amount is None else amount or DEFAULT_REQUESTS
        """Requests after the last reduction. Twice as many cause the next one."""
        self._total_cost = 0.0
        self._span = (math.inf, -math.inf)
        self._timed = True
        self._seen = np.zeros(1 << (BITS - 3), np.uint8)
        self._counts = np.array([2.0**BITS, 0.0, 0.0, 0.0])
        self._names: Keys = np.zeros(0, np.uint64)

    def extend(self, keys: Keys, sizes: Ints, costs: Floats, times: Floats | None) -> None:
        """Add requests. A chunk without times makes the whole log one without times."""
        hashed = hashes(keys, self._seed)
        self.requests += len(keys)
        with np.errstate(over="ignore"):
            self._total_cost += float(costs.sum())
        self._timed = self._timed and times is not None
        if times is None or not self._timed:
            times = np.zeros(len(keys))
        elif len(times):
            self._span = min(self._span[0], float(times.min())), max(self._span[1], float(times.max()))
        if self._amount is not None:
            count_firsts(self._seen, (hashed * 2.0**BITS).astype(np.int64), sizes, costs, self._counts)
        kept = np.flatnonzero(hashed < self._threshold)
        self._chunks.append((keys[kept], sizes[kept], costs[kept], times[kept]))
        self._held += len(kept)
        if self._held > 2 * self._wanted or len(self._chunks) > MAX_CHUNKS:
            self._reduce()
            self._wanted = max(self._wanted, self._held)

    def _reduce(self) -> None:
        """Lower the threshold until the sample is as small as wanted."""
        keys, sizes, costs, times = map(np.concatenate, zip(*self._chunks, strict=True))
        if self._amount is not None:
            hashed = hashes(keys, self._seed)
            self._threshold = self._lower_threshold(hashed, self._amount)
            keys, sizes, costs, times = (column[hashed < self._threshold] for column in (keys, sizes, costs, times))
        self._chunks, self._held = [(keys, sizes, costs, times)], len(keys)

    def _lower_threshold(self, hashed: Floats, amount: int) -> float:
        """Return a threshold below which there are at most `amount` requests."""

        def below(requests: int) -> float:
            return float(np.partition(hashed, requests)[requests]) if requests < len(hashed) else self._threshold

        if amount != AUTO:
            return below(amount)
        distinct, keys = np.unique(hashed), SLICES * MIN_KEYS
        enough = float(distinct[keys]) if keys < len(distinct) else self._threshold
        return min(max(below(DEFAULT_REQUESTS), enough), below(MAX_REQUESTS))

    def trace(self, unit: str = "") -> Trace:
        """Return the sampled requests as one trace. Keys are numbered by first appearance and have no names."""
        self._reduce()
        ((keys, sizes, costs, times),) = self._chunks
        numbering = Numbering()
        ids = numbering.number(keys)
        self._names = numbering.names
        return Trace(ids, sizes, costs, len(numbering), times if self._timed else None, unit=unit)

    def sample(self, trace: Trace) -> Sample:
        """Return the slices of `trace()`, which may have been sorted, and the totals of the whole log."""
        if self._threshold == 1.0:
            return Sample.of(trace)
        slice_of = (hashes(self._names, self._seed) / self._threshold * SLICES).astype(np.int64)[trace.keys]
        slices = tuple(subset(trace, slice_of == k) for k in range(SLICES))
        if not all(map(len, slices)):
            raise InvalidInput("the sample has a slice without requests: use a larger sample, or none")
        _, keys, first_sizes, first_costs = self._counts.tolist()
        growth = trace.working_set / int(trace.sizes[firsts(trace)].sum())  # from the first to the largest size of keys
        span = self._span[1] - self._span[0]
        stats = TraceStats(
            requests=self.requests,
            keys=min(round(keys), self.requests),
            working_set=round(first_sizes * growth),
            total_cost=self._total_cost,
            largest_saving=max(0.0, self._total_cost - first_costs),
            seconds=span if trace.times is not None and span < math.inf else None,
            unit=trace.unit,
        )
        return Sample(trace, slices, self._threshold, stats)


def hashes(keys: Ints | Keys, seed: int) -> Floats:
    """Return a hash in [0, 1) for each key: the finalizer of splitmix64, reduced to 53 bits."""
    golden, first, second = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
    with np.errstate(over="ignore"):  # arithmetic is modulo 2^64
        x = (keys.astype(np.uint64) + np.uint64(1)) * golden + np.array([seed], np.uint64) * second
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
