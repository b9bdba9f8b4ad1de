"""Sizes, ages and amounts, parsed from text and formatted for people."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from knapcache.units import (
    counted,
    dollars,
    format_age,
    format_size,
    number,
    parse_age,
    parse_amount,
    parse_bytes,
    percent,
)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("256mb", 256 * 10**6),
        ("256Mb", 256 * 10**6),
        ("256M", 256 * 10**6),
        ("256m", 256 * 10**6),
        (" 2 GB ", 2 * 10**9),
        ("1e9", 10**9),
        ("1E9B", 10**9),
        ("1.5gib", 3 * 2**29),
        ("1.5GIB", 3 * 2**29),
        ("64ki", 65_536),
        (4096, 4096),
        (1e9, 10**9),
    ],
)
def test_bytes_in_any_case(value: Any, size: int) -> None:
    assert parse_bytes(value) == size


@pytest.mark.parametrize(
    "value",
    ["", "0", "0.5", "1.3kB5", "10%", "-1", "1e", "e9", "1e-3", "4 G B", "4PB", "1e999", True, None, 1.5, 0, -3],
)
def test_what_is_no_number_of_bytes(value: Any) -> None:
    assert parse_bytes(value) is None


def test_shares_keep_their_unit() -> None:
    assert parse_amount("12.5 %") == (Fraction(25, 2), "%")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("12H", 43_200), ("7d", 604_800), ("1.5 w", 907_200)]
)
def test_ages(text: str, seconds: float) -> None:
    assert parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1", "1y", "1mb", "5%"])
def test_what_is_no_age(text: str) -> None:
    assert parse_age(text) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59, "59 s"), (60, "1 min"), (3600, "1 h"), (86_399, "23 h"), (86_400, "1 d"), (1e6, "11 d")],
)
def test_ages_are_readable(seconds: float, text: str) -> None:
    assert format_age(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "$0"),
        (1234.5, "$1,234"),
        (12.345, "$12.35"),
        (1, "$1.00"),
        (0.5, "$0.500"),
        (0.0012345, "$0.00123"),
        (1e-7, "$0.000000100"),
        (-0.25, "-$0.250"),
    ],
)
def test_dollars_have_no_exponent(value: float, text: str) -> None:
    assert dollars(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0 %"), (0.12345, "12.3 %"), (9.99, "999 %"), (9.996, "1,000 %"), (-0.5, "-50 %"), (-123.4, "-12,340 %")],
)
def test_shares_have_three_digits(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (1.23456, "1.235"), (999.9, "999.9"), (1000, "1,000"), (-1234.5, "-1,234")]
)
def test_numbers_have_four_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_numbers_have_their_noun() -> None:
    assert [counted(n, "miss", "misses") for n in (0, 1, 1234)] == ["0 misses", "1 miss", "1,234 misses"]
    assert [counted(n, "hit") for n in (1, 2)] == ["1 hit", "2 hits"]


def test_sizes_have_three_digits() -> None:
    assert [format_size(x) for x in (1, 1500, 64e6, 999.7e6, 7e12)] == [
        "1 B",
        "1.5 kB",
        "64 MB",
        "1,000 MB",
        "7 TB",
    ]
