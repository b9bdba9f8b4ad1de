"""A trace is validated at construction, and the error names the invalid request."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from knapcache.errors import InvalidInput
from knapcache.lab.trace import Trace


def test_lists_and_narrow_types_are_accepted() -> None:
    trace = Trace([0, 1, 0], np.array([3, 2, 3], np.uint8), [1, 2, 3], 2)  # type: ignore[arg-type]
    assert [str(x.dtype) for x in (trace.keys, trace.sizes, trace.costs)] == ["int64", "int64", "float64"]
    assert len(trace) == 3
    assert trace.total_cost == 6.0


@pytest.mark.parametrize(
    ("keys", "sizes", "costs", "ids", "message"),
    [
        ([0, 1], [1], [1.0, 1.0], 2, "differ in length: 2, 1, 2"),
        ([0, 2], [1, 1], [1.0, 1.0], 2, r"request 1: key must be in 0 … 1, not 2"),
        ([0, -1], [1, 1], [1.0, 1.0], 2, r"request 1: key must be in 0 … 1, not -1"),
        ([0, 1], [1, 0], [1.0, 1.0], 2, "request 1: size must be at least 1, not 0"),
        ([0, 1], [1, 1], [-1.0, 1.0], 2, "request 0: cost must be finite and not negative, not -1"),
        ([0, 1], [1, 1], [1.0, math.nan], 2, "request 1: cost must be finite and not negative, not nan"),
        ([0, 1], [1, 1], [1.0, math.inf], 2, "request 1: cost must be finite"),
        ([0.5, 1.0], [1, 1], [1.0, 1.0], 2, "keys must be a flat array of whole numbers"),
        ([0, 1], [1.0, 1.0], [1.0, 1.0], 2, "sizes must be a flat array of whole numbers"),
        ([[0, 1]], [1, 1], [1.0, 1.0], 2, "keys must be a flat array"),
        ([0, 1], [1, 1], ["a", "b"], 2, "costs must be a flat array of numbers"),
    ],
)
def test_bad_requests(keys: Any, sizes: Any, costs: Any, ids: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Trace(keys, sizes, costs, ids)
