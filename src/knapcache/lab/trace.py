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


def _within(what: str, array: Ints | Floats, minimum: float, maximum: float, allowed: str) -> None:
    # First min and max, which need no temporary array (NaN fails both); then element by element to find the bad one.
    if len(array) and not (array.min() >= minimum and array.max() <= maximum):
        k = int(np.argmin((array >= minimum) & (array <= maximum)))
        raise InvalidInput(f"request {k}: {what} must be {allowed}, not {array[k]}")
