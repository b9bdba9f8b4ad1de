"""Parsing of capacities and ranges of capacities."""

from __future__ import annotations

import itertools

import pytest

from knapcache.errors import InvalidInput
from knapcache.lab.capacity import Capacity, CapacityRange


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("1", 1),
        (" 4096 ", 4096),
        ("64k", 64_000),
        ("64K", 64_000),
        ("64m", 64_000_000),
        ("256mb", 256_000_000),
        ("256Mb", 256_000_000),
        ("1e9", 10**9),
        ("1.5E3", 1500),
        ("2.5e-1k", 250),
        ("1.5gib", 3 * 2**29),
        (" 2 GB ", 2 * 10**9),
        ("1e1MiB", 10 * 2**20),
        ("64kB", 64_000),
        ("64 KiB", 65_536),
        ("1.5M", 1_500_000),
        ("4GB", 4 * 10**9),
        ("4GiB", 4 * 2**30),
        ("2T", 2 * 10**12),
        ("512B", 512),
        ("10%", 100),
        ("0.1%", 1),
        ("33.35%", 333),
        ("100%", 1000),
        ("150 %", 1500),
        (str(2**62), 2**62),
    ],
)
def test_valid_capacities(text: str, units: int) -> None:
    assert Capacity.parse(text).units(1000) == units


def test_shares_are_exact() -> None:
    assert Capacity.parse("100%").units(2**62 - 1) == 2**62 - 1  # a float would round up


@pytest.mark.parametrize(
    "text",
    ["", "%", "ten", "-5", "1e", "1e100", "10%%", "4XB", "4bB", "4MK", "4 G B", "nan", "1,5", "٣", "4mbit"],
)
def test_invalid_texts(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"cannot be read; it must be a number with an optional unit"):
        Capacity.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "must be at least 1"),
        ("0%", "must be at least 1"),
        ("0.01%", r"'0.01%' of a working set of 1000 is 0; it must be at least 1"),
        ("5T%", "cannot be read"),
        ("0.5", "is 0.5 units; it must be a whole number of units"),
        ("1.0005k", "is 1000.5 units"),
        (str(2**62 + 1), r"at most 2\^62"),
    ],
)
def test_invalid_amounts(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Capacity.parse(text).units(1000)


@pytest.mark.parametrize(
    ("text", "working_set", "units"),
    [
        ("1..16:5", 100, [1, 2, 4, 8, 16]),
        ("1%..100%:3", 10_000, [100, 1000, 10_000]),
        ("0.5%..100%", 3, [1, 2, 3]),
        ("0.5%..100%", 1, [1]),
        ("10..100%:2", 1000, [10, 1000]),
        ("40,10%,1k,10", 100, [10, 40, 1000]),
        ("50%", 100, [50]),
    ],
)
def test_ranges(text: str, working_set: int, units: list[int]) -> None:
    assert CapacityRange.parse(text).units(working_set) == units


def test_a_range_has_ten_capacities_at_equal_ratios() -> None:
    units = CapacityRange.parse("1%..100%").units(10**9)
    assert len(units) == 10
    assert [b / a for a, b in itertools.pairwise(units)] == pytest.approx([100 ** (1 / 9)] * 9)
