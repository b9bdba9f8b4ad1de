"""What a cost is made of: w_usd · dollars + w_seconds · seconds, as in `usd`, `seconds`, `usd + 0.01*seconds`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from knapcache.errors import InvalidInput

ALLOWED = 'a cost is "usd", "seconds", a sum such as "usd + 0.01*seconds", or {"usd": 1, "seconds": 0.01}'
LARGEST = 1e12
"""Of weights, prices, seconds and dollars: no sum of their products overflows."""
TERM = re.compile(r"(?:(?P<weight>[0-9.eE+-]+)\s*\*\s*)?(?P<unit>usd|seconds)")


@dataclass(frozen=True, slots=True)
class Weights:
    """The two weights; None where dollars are not asked for, so that nothing is needed to count them."""

    usd: float | None
    seconds: float

    @classmethod
    def of(cls, cost: str | Mapping[str, float] | Weights) -> Weights:
        """Weights as a user gives them."""
        if isinstance(cost, Weights):
            return cost
        given = parse(cost) if isinstance(cost, str) else cost
        if not isinstance(given, Mapping) or not given or not set(given) <= {"usd", "seconds"}:
            raise InvalidInput(f"{ALLOWED}, not {cost!r}")
        weights = {unit: amount(f"the weight of {unit}", weight) for unit, weight in given.items()}
        if not any(weights.values()):
            raise InvalidInput(f"a cost of nothing: all weights of {cost!r} are 0")
        return cls(weights.get("usd"), weights.get("seconds", 0.0))


def parse(cost: str) -> dict[str, float]:
    """A sum of terms, each unit at most once."""
    found: dict[str, float] = {}
    for text in re.split(r"(?<![eE])\+", cost):  # the + of 1e+3 adds nothing
        term = TERM.fullmatch(text.strip())
        if term is None or term["unit"] in found:
            raise InvalidInput(f"{ALLOWED}, not {cost!r}")
        try:
            found[term["unit"]] = float(term["weight"] or 1)
        except ValueError:
            raise InvalidInput(f"{ALLOWED}, not {cost!r}") from None
    return found


def amount(what: str, given: float) -> float:
    """A number from 0 to LARGEST."""
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= LARGEST:
        raise InvalidInput(f"{what} must be a number from 0 to {LARGEST:g}, not {given!r}")
    return float(given)
