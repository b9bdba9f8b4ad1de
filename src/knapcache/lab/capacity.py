"""Capacities as command-line texts: `4096`, `64k`, `4GB`, `1.5GiB`, `10%`, and ranges of them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from knapcache.errors import InvalidInput
from knapcache.units import ALLOWED_AMOUNTS, parse_amount

MAX_CAPACITY = 2**62
STEPS = 10
"""Capacities in a range without a count."""
MAX_STEPS = 100
ALLOWED = f"{ALLOWED_AMOUNTS}, or % of the working set"


@dataclass(frozen=True)
class Capacity:
    """An amount in units of a trace, or a share of its working set."""

    text: str
    amount: Fraction
    relative: bool

    @classmethod
    def parse(cls, text: str) -> Capacity:
        """Parse a text; raises InvalidInput."""
        found = parse_amount(text)
        if found is None:
            raise InvalidInput(f"capacity {text!r} cannot be read; it must be {ALLOWED}")
        units, share = found
        if share:
            return cls(text, units / 100, relative=True)
        if units.denominator != 1:
            raise InvalidInput(f"capacity {text!r} is {float(units):g} units; it must be a whole number of units")
        return cls(text, units, relative=False)

    def units(self, working_set: int) -> int:
        """Return the capacity in units of a trace with this working set. A share is rounded down."""
        units = int(self.amount * working_set if self.relative else self.amount)
        if not 1 <= units <= MAX_CAPACITY:
            of = f" of a working set of {working_set}" if self.relative else ""
            raise InvalidInput(f"capacity {self.text!r}{of} is {units}; it must be at least 1 and at most 2^62")
        return units


@dataclass(frozen=True)
class CapacityRange:
    """Capacities to compare: `0.5%..100%` (ten at equal ratios), `1MB..1GB:7` (seven), or a list with commas."""

    capacities: tuple[Capacity, ...]
    steps: int | None
    """Number of capacities in the range, including both ends; None for a list."""

    @classmethod
    def parse(cls, text: str) -> CapacityRange:
        """Parse a text; raises InvalidInput."""
        if ".." not in text:
            return cls(tuple(map(Capacity.parse, text.split(","))), None)
        ends, colon, count = text.partition(":")
        low, _, high = ends.partition("..")
        steps = int(count) if count.strip().isdecimal() else STEPS if not colon else 0
        if not 2 <= steps <= MAX_STEPS:
            raise InvalidInput(f"range {text!r} must have 2 to {MAX_STEPS} capacities, as in {low}..{high}:{STEPS}")
        found = cls((Capacity.parse(low), Capacity.parse(high)), steps)
        if (
            found.capacities[0].relative == found.capacities[1].relative
            and found.capacities[0].amount >= found.capacities[1].amount
        ):
            raise InvalidInput(f"range {text!r} must be increasing")
        return found

    def units(self, working_set: int) -> list[int]:
        """Return the distinct capacities in units of a trace with this working set, in increasing order."""
        if self.steps is None:
            return sorted({capacity.units(working_set) for capacity in self.capacities})
        low, high = self.capacities
        # A small share of a small working set can be less than one unit; the range then starts at 1.
        first = max(1, int(low.amount * working_set)) if low.relative else low.units(working_set)
        last = high.units(working_set)
        if first > last:
            raise InvalidInput(
                f"range {low.text}..{high.text} is {first} to {last} for this trace; it must be increasing"
            )
        between = (round(first * (last / first) ** (k / (self.steps - 1))) for k in range(1, self.steps - 1))
        return sorted({first, last, *(min(max(units, first), last) for units in between)})
