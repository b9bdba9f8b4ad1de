"""Parsing of sizes and capacities such as `4096`, `64k`, `4GB`, `1.5GiB`, `10%`."""

from __future__ import annotations

import re
from fractions import Fraction

UNITS = {"": 1, "B": 1}
UNITS |= {letter + b: 1000**k for k, letter in enumerate("kMGT", 1) for b in ("", "B")}
UNITS |= {f"{letter}i{b}": 1024**k for k, letter in enumerate("kMGT", 1) for b in ("", "B")}
PATTERN = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*|%)")
ALLOWED_AMOUNTS = "a number with an optional unit (k, M, G, T, kB, KiB, …)"


def parse_amount(text: str) -> tuple[Fraction, str] | None:
    """Return the amount in single units and "", or a percentage and "%"; None if the text is not valid."""
    match = PATTERN.fullmatch(text.strip())
    if not match:
        return None
    if match[2] == "%":
        return Fraction(match[1]), "%"
    factor = UNITS.get(match[2].replace("K", "k", 1))
    return None if factor is None else (Fraction(match[1]) * factor, "")
