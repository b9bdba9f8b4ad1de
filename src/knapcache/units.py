"""Amounts of room as people write them: `4096`, `64k`, `4GB`, `1.5GiB`."""

from __future__ import annotations

import re
from fractions import Fraction

UNITS = {"": 1, "B": 1}
UNITS |= {letter + b: 1000**k for k, letter in enumerate("kMGT", 1) for b in ("", "B")}
UNITS |= {f"{letter}i{b}": 1024**k for k, letter in enumerate("kMGT", 1) for b in ("", "B")}
FORM = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*|%)")
FORMS = "a number, with k, M, G or T (kB, KiB, …) behind it for units"


def parse(text: str) -> tuple[Fraction, str] | None:
    """The amount in units of one, and "" or "%"; None for what cannot be read."""
    match = FORM.fullmatch(text.strip())
    if not match:
        return None
    if match[2] == "%":
        return Fraction(match[1]), "%"
    factor = UNITS.get(match[2].replace("K", "k", 1))
    return None if factor is None else (Fraction(match[1]) * factor, "")
