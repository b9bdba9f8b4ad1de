"""Capacities as people write them: `4096`, `64k`, `4GB`, `1.5GiB`, `10%`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from knapcache.errors import InvalidInput

UNITS = {"": 1, "B": 1}
UNITS |= {letter + b: 1000**k for k, letter in enumerate("kMGT", 1) for b in ("", "B")}
UNITS |= {f"{letter}i{b}": 1024**k for k, letter in enumerate("kMGT", 1) for b in ("", "B")}
LARGEST = 2**62
FORM = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*|%)")
ALLOWED = "a number, with k, M, G or T (kB, KiB, …) behind it for units, or % of the working set"


@dataclass(frozen=True)
class Capacity:
    """Units of a trace, or a share of its working set."""

    text: str
    amount: Fraction
    relative: bool

    @classmethod
    def parse(cls, text: str) -> Capacity:
        """Read what somebody wrote."""
        match = FORM.fullmatch(text.strip())
        unit = match[2] if match else ""
        factor = UNITS.get(unit.replace("K", "k", 1))
        if not match or (factor is None and unit != "%"):
            raise InvalidInput(f"capacity {text!r} cannot be read; allowed is {ALLOWED}")
        if factor is None:
            return cls(text, Fraction(match[1]) / 100, relative=True)
        units = Fraction(match[1]) * factor
        if units.denominator != 1:
            raise InvalidInput(f"capacity {text!r} is {float(units):g} units, and must be a whole number of them")
        return cls(text, units, relative=False)

    def units(self, working_set: int) -> int:
        """In units of a trace with this working set; a share is rounded down."""
        units = int(self.amount * working_set if self.relative else self.amount)
        if not 1 <= units <= LARGEST:
            of = f" of a working set of {working_set}" if self.relative else ""
            raise InvalidInput(f"capacity {self.text!r}{of} is {units}, and must be at least 1 and at most 2^62")
        return units
