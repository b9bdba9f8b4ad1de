"""A trace: who asked for what, how large the answer is, and what a miss costs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from knapcache.errors import InvalidInput

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Trace:
    """A sequence of requests. Arrays of one length, checked once, so that compiled loops need not."""

    keys: Ints
    """Small integers, 0 … ids − 1."""
    sizes: Ints
    costs: Floats
    """What each request costs if it misses."""
    ids: int
    """How many different keys there can be."""
    times: Floats | None = None
    """When each request came, in seconds, where that is known. Requests are replayed in their order, not by time."""
    names: Sequence[object] | None = None
    """What each key was called where it was read."""

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
        """What the requests cost without a cache."""
        return float(self.costs.sum())

    @property
    def working_set(self) -> int:
        """Room for everything at once: the sum, over all keys, of the largest size each was seen with."""
        room = np.zeros(self.ids, np.int64)
        np.maximum.at(room, self.keys, self.sizes)
        return sum(room.tolist())  # Python's integers do not overflow


def _within(what: str, array: Ints | Floats, least: float, most: float, allowed: str) -> None:
    # Least and most first, which need no array of their own; NaN is neither. Then, to name the culprit, one by one.
    if len(array) and not (array.min() >= least and array.max() <= most):
        k = int(np.argmin((array >= least) & (array <= most)))
        raise InvalidInput(f"request {k}: {what} must be {allowed}, not {array[k]}")
