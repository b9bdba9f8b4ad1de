"""The weights of a cost: w_usd · dollars + w_seconds · seconds, as in `usd`, `seconds`, `usd + 0.01*seconds`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from knapcache.errors import InvalidInput

ALLOWED = 'a cost is "usd", "seconds", a sum such as "usd + 0.01*seconds", or {"usd": 1, "seconds": 0.01}'
MAX_AMOUNT = 1e12
"""Limit of weights, prices, seconds and dollars: no sum of their products overflows."""
TERM = re.compile(r"(?:(?P<weight>[0-9.eE+-]+)\s*\*\s*)?(?P<unit>usd|seconds)")


@dataclass(frozen=True, slots=True)
class Weights:
    """The two weights. None: dollars are not computed at all, so genai-prices is not needed."""

    usd: float | None
    seconds: float

    @classmethod
    def of(cls, cost: str | Mapping[str, float] | Weights) -> Weights:
        """Return the weights that a user gave."""
        if isinstance(cost, Weights):
            return cost
        terms = parse(cost) if isinstance(cost, str) else cost
        if not isinstance(terms, Mapping) or not terms or not set(terms) <= {"usd", "seconds"}:
            raise InvalidInput(f"{ALLOWED}, not {cost!r}")
        weights = {unit: amount(f"the weight of {unit}", weight) for unit, weight in terms.items()}
        if not any(weights.values()):
            raise InvalidInput(f"cost must have a weight above 0, not {cost!r}")
        return cls(weights.get("usd"), weights.get("seconds", 0.0))


def parse(cost: str) -> dict[str, float]:
    """Parse a sum of terms, each unit at most once."""
    found: dict[str, float] = {}
    for text in re.split(r"(?<![eE])\+", cost):  # not at the + of 1e+3
        term = TERM.fullmatch(text.strip())
        if term is None or term["unit"] in found:
            raise InvalidInput(f"{ALLOWED}, not {cost!r}")
        try:
            found[term["unit"]] = float(term["weight"] or 1)
        except ValueError:
            raise InvalidInput(f"{ALLOWED}, not {cost!r}") from None
    return found


def amount(what: str, value: Any) -> float:
    """Return a number from 0 to MAX_AMOUNT, or raise InvalidInput."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MAX_AMOUNT:
        raise InvalidInput(f"{what} must be a number from 0 to {MAX_AMOUNT:g}, not {value!r}")
    return float(value)
