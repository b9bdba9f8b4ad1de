"""Values of the fields of prefix traces."""

from __future__ import annotations

import math
from typing import Any

from knapcache.lab.traces.base import TIME_UNITS, BrokenLineError, seconds_of, short, whole

KINDS = ("tool", "text")
MAX_TOKENS = 2**53
"""Sums of tokens and prices are exact below it."""


def count(name: str, value: Any, least: int = 0) -> int:
    """Convert a number of tokens, or of a request; raises BrokenLineError."""
    number = whole(name, value)
    if not least <= number < MAX_TOKENS:
        raise BrokenLineError(f"{name} must be at least {least} and below 2^53, not {short(number)}")
    return number


def time_of(name: str, value: Any) -> float:
    """Convert a time to seconds; raises BrokenLineError."""
    time = finite(name, seconds_of(name, value))
    for limit, factor in TIME_UNITS:
        if time >= limit:
            return time * factor
    return time


def finite(name: str, value: float) -> float:
    """Return a number; raises BrokenLineError if it is not finite."""
    if not math.isfinite(value):
        raise BrokenLineError(f"{name} must be finite, not {value}")
    return value


def kind_of(value: Any) -> str:
    """Return the kind of a request; raises BrokenLineError."""
    if value not in KINDS:
        raise BrokenLineError(f"kind must be {' or '.join(KINDS)}, not {short(value)}")
    return str(value)
