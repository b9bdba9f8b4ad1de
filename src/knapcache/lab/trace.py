"""Traces: the key, answer size and miss cost of each request."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from knapcache.errors import InvalidInput

USD = "usd"
"""The unit of costs in US dollars."""
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Trace:
    """A sequence of requests, as arrays of equal length. They are validated here, so compiled loops need no checks."""

    keys: Ints
    """Small integers, 0 … ids − 1."""
    sizes: Ints
    costs: Floats
    """The cost of each request if it misses."""
    ids: int
    """Number of ids; keys are below it."""
    times: Floats | None = None
    """Arrival times in seconds, if known. Requests are replayed in array order, not by time."""
    names: Sequence[object] | None = None
    """The original key of each id."""
    unit: str = ""
    """The unit of costs: USD, the name of the field that they come from, or "" if it is unknown."""

    def __post_init__(self) -> None:
        for name, kind in (("keys", np.int64), ("sizes", np.int64), ("costs", np.float64), ("times", np.float64)):
            if getattr(self, name) is None:
                continue
            array = np.asarray(getattr(self, name))
            if array.ndim != 1 or array.dtype.kind not in ("iu" if kind is np.int64 else "iuf"):
                numbers = "whole numbers" if kind is np.int64 else "numbers"
                raise InvalidInput(f"{name} must be a flat array of {numbers}, not {array.dtype} {array.shape}")
            object.__setattr__(self, name, np.ascontiguousarray(array, kind))
        if not len(self.keys) == len(self.sizes) == len(self.costs):
            raise InvalidInput(
                f"keys, sizes and costs differ in length: {len(self.keys)}, {len(self.sizes)}, {len(self.costs)}"
            )
        if self.times is not None and len(self.times) != len(self.keys):
            raise InvalidInput(f"times and keys differ in length: {len(self.times)}, {len(self.keys)}")
        if self.names is not None and len(self.names) != self.ids:
            raise InvalidInput(f"there must be one name for each of the {self.ids} ids, not {len(self.names)}")
        _within("key", self.keys, 0, self.ids - 1, f"in 0 … {self.ids - 1}")
        _within("size", self.sizes, 1, 2**63 - 1, "at least 1")
        _within("cost", self.costs, 0.0, sys.float_info.max, "finite and not negative")

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def total_cost(self) -> float:
        """The cost of all requests without a cache."""
        return float(self.costs.sum())

    @property
    def working_set(self) -> int:
        """The capacity that holds everything: the sum over all keys of the largest size of each."""
        largest = np.zeros(self.ids, np.int64)
        np.maximum.at(largest, self.keys, self.sizes)
        return sum(largest.tolist())  # Python integers do not overflow


@dataclass(frozen=True)
class TraceStats:
    """Totals of a log. With sampling, the number of keys and what depends on it are estimates (sampling.py)."""

    requests: int
    keys: int
    working_set: int
    total_cost: float
    largest_saving: float
    seconds: float | None
    """Time from the first request to the last; None if the log has no times."""
    unit: str
    """The unit of costs, as in `Trace.unit`."""


def trace_stats(trace: Trace) -> TraceStats:
    seconds = None
    if trace.times is not None and len(trace):
        span = float(trace.times.max() - trace.times.min())
        seconds = span if span < np.inf else None
    with np.errstate(over="ignore", invalid="ignore"):
        total = trace.total_cost
        largest = max(0.0, total - float(trace.costs[firsts(trace)].sum()))  # rounding could make it negative
    return TraceStats(
        requests=len(trace),
        keys=len(np.unique(trace.keys)),
        working_set=trace.working_set,
        total_cost=total,
        largest_saving=largest,
        seconds=seconds,
        unit=trace.unit,
    )


def firsts(trace: Trace) -> Ints:
    """Return the positions of the first request for each key. No cache can answer these."""
    return np.unique(trace.keys, return_index=True)[1]


def _within(what: str, array: Ints | Floats, minimum: float, maximum: float, allowed: str) -> None:
    # First min and max, which need no temporary array (NaN fails both); then element by element to find the bad one.
    if len(array) and not (array.min() >= minimum and array.max() <= maximum):
        k = int(np.argmin((array >= minimum) & (array <= maximum)))
        raise InvalidInput(f"request {k}: {what} must be {allowed}, not {array[k]}")
