"""Invalid input raises an error of one line that says what was given and what is allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from knapcache.errors import InvalidInput
from knapcache.oracle import solve
from knapcache.oracle.problem import read_problem

GOOD: dict[str, Any] = {"values": [1.0, 2.0], "sizes": [1, 2], "capacity": 2}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"values": [1.0, float("nan")]}, "values[1] is nan; it must be finite and at least 0"),
        ({"values": [float("inf"), 1.0]}, "values[0] is inf; it must be finite and at least 0"),
        ({"values": [1.0, -2.0]}, "values[1] is -2.0; it must be finite and at least 0"),
        ({"values": [1, -2]}, "values[1] is -2; it must be finite and at least 0"),
        ({"values": [True, False]}, "values holds bool; it must hold integers or floats that fit 64 bits"),
        ({"values": ["a", "b"]}, "values holds <U1; it must hold integers or floats that fit 64 bits"),
        ({"values": [1j, 2j]}, "values holds complex128; it must hold integers or floats that fit 64 bits"),
        ({"values": [1e289, 1e289]}, "values sum to 2e+289; they must sum to less than 2**960 (about 9.7e288)"),
        ({"values": [1e308, 1e308]}, "values sum to inf; they must sum to less than 2**960 (about 9.7e288)"),
        ({"values": [1.0]}, "values has 1 items and sizes has 2; they must have the same length"),
        ({"values": [[1.0, 2.0]]}, "values has 2 dimensions; it must have 1"),
        ({"values": 1.0}, "values has 0 dimensions; it must have 1"),
        (
            {"values": [[1.0], 2.0]},
            "values is not an array of numbers; it must be a one-dimensional list or array of numbers",
        ),
        ({"sizes": [1.5, 2]}, "sizes[0] is 1.5; it must be an integer, at least 1"),
        ({"sizes": [1, 0]}, "sizes[1] is 0; it must be an integer, at least 1"),
        ({"sizes": [-3, 1]}, "sizes[0] is -3; it must be an integer, at least 1"),
        ({"sizes": [1, float("nan")]}, "sizes[1] is nan; it must be an integer, at least 1"),
        ({"sizes": [1, float("inf")]}, "sizes[1] is inf; it must be an integer, at least 1"),
        ({"sizes": [True, True]}, "sizes holds bool; it must hold integers or floats that fit 64 bits"),
        ({"sizes": np.array([1, 2**63], np.uint64)}, "sizes[1] is 9223372036854775808; it must be less than 2**62"),
        ({"sizes": [1, 1e30]}, "sizes[1] is 1e+30; it must be less than 2**62"),
        ({"sizes": [1, 2**70]}, "sizes holds object; it must hold integers or floats that fit 64 bits"),
        ({"sizes": [2**61, 2**61]}, "sizes sum to 4611686018427387904; they must sum to less than 2**62"),
        ({"capacity": -1}, "capacity is -1; it must be an integer, at least 0"),
        ({"capacity": 2.5}, "capacity is 2.5; it must be an integer, at least 0"),
        ({"capacity": True}, "capacity is True; it must be an integer, at least 0"),
        ({"capacity": "2"}, "capacity is '2'; it must be an integer, at least 0"),
        ({"beta": -0.1}, "beta is -0.1; it must be a finite number, at least 0"),
        ({"beta": float("nan")}, "beta is nan; it must be a finite number, at least 0"),
        ({"beta": "0.1"}, "beta is '0.1'; it must be a finite number, at least 0"),
        ({"tol": -1e-9}, "tol is -1e-09; it must be a finite number, at least 0"),
        ({"tol": float("inf")}, "tol is inf; it must be a finite number, at least 0"),
        ({"work_limit": 0}, "work_limit is 0; it must be an integer, at least 1"),
        ({"work_limit": 1.0}, "work_limit is 1.0; it must be an integer, at least 1"),
    ],
)
def test_bad_input(change: dict[str, Any], line: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        solve(**(GOOD | change))
    assert str(raised.value) == line


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "g"])
def test_every_number_type_is_accepted(dtype: str) -> None:
    selection = solve(np.array([6, 10, 12], dtype), np.array([1, 2, 3], dtype), np.int32(5))
    assert selection.chosen.tolist() == [False, True, True]
    assert selection.value == 22.0


def test_views_are_accepted() -> None:
    values, sizes = np.arange(12.0)[::2], np.arange(1, 13).reshape(6, 2)[:, 1]
    problem = read_problem(values, sizes, 10)
    assert problem.values.flags.c_contiguous
    assert problem.sizes.flags.c_contiguous
    assert problem.sizes.tolist() == [2, 4, 6, 8, 10, 12]


def test_the_largest_sums_are_accepted() -> None:
    assert solve([1.0, 2.0], [2**61, 2**61 - 1], 2**62).value == 3.0
    assert solve([9e288, 1.0], [2, 1], 2).value == 9e288
