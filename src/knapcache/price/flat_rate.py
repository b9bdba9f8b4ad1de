"""Flat rates: prices that are a fixed amount per token, learned once and then computed as a sum of products.

    usd(usage) = Σ_k c_k · usage_k        for usages of one shape: the same fields, with the same ones of them zero

genai-prices takes half a millisecond to price a usage, a quarter of what a miss costs a proxy. For a price without
tiers and conditions the result is linear in the numbers of the usage, so each coefficient is the difference between its
prices of two usages. The coefficients are used only if they reproduce its price of the first usage. genai-prices is
called every time where a price is not flat, or where it might reject a usage (details that exceed their total).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

STEP = 10**6
"""Difference between two usages: large, so that differences of doubles are exact enough."""
MAX_FIELDS = 64
MAX_TEXT = 100
"""Characters of a name or a text in a usage. Rates are kept by shape, and shapes come from upstreams."""
DETAILS = "_details"
"""Suffix of a field that details another: prompt_tokens_details details prompt_tokens."""
TOTALS = {"cache_creation": "cache_creation_input_tokens"}
"""Fields without that suffix that detail another: Anthropic's."""

Path = tuple[str, ...]
Shape = tuple[tuple[Path, Any], ...]
Price = Callable[[Mapping[str, Any]], float]
"""Returns the dollars of a usage, or raises ValueError."""


def shape_of(usage: Mapping[str, Any]) -> tuple[Shape, list[int]] | None:
    """Return the shape of a usage, which decides its rates, and its numbers; None for an unusual usage."""
    shape: list[tuple[Path, Any]] = []
    numbers: list[int] = []
    pending: list[tuple[Path, Mapping[str, Any]]] = [((), usage)]
    while pending:
        parent, fields = pending.pop()
        if len(fields) > MAX_FIELDS:
            return None
        for name, value in fields.items():
            if len(name) > MAX_TEXT:
                return None
            if type(value) is int and value > 0:
                numbers.append(value)
                shape.append(((*parent, name), None))
            elif isinstance(value, dict):
                pending.append(((*parent, name), value))
            elif value is None or (type(value) is str and len(value) <= MAX_TEXT) or (type(value) is int and not value):
                shape.append(((*parent, name), value if value is not None else ""))
            else:
                return None
    return (tuple(shape), numbers) if len(shape) <= MAX_FIELDS else None


class FlatRate(NamedTuple):
    """The rates of usages of one shape."""

    rates: tuple[float, ...]
    """Dollars per unit of each number, in the order of `shape_of`."""
    totals: tuple[tuple[int, tuple[int, ...]], ...]
    """Positions of totals, each with the positions of its details."""

    def usd(self, numbers: list[int]) -> float | None:
        """Return dollars, or None where genai-prices must be called."""
        for total, details in self.totals:
            if sum(numbers[k] for k in details) > numbers[total]:
                return None
        try:
            return float(sum(map(operator.mul, self.rates, numbers)))
        except OverflowError:  # a count of more than 300 digits
            return None


def learn(usage: Mapping[str, Any], shape: Shape, price: Price) -> FlatRate | None:
    """Return the rates of usages like this one, or None when the price is not flat."""
    counted = [path for path, value in shape if value is None]
    try:
        totals = totals_of(counted)
        scale = dict.fromkeys(counted, STEP)
        base = price(varied(usage, scale, {}))
        rates = [rate_of(usage, scale, path, price, base) for path in counted]
    except (ValueError, ArithmeticError):
        return None
    computed = sum(rate * number_at(usage, path) for rate, path in zip(rates, counted, strict=True))
    if not math.isclose(computed, price(usage), rel_tol=1e-9, abs_tol=1e-15):
        return None
    return FlatRate(tuple(rates), totals)


def totals_of(counted: list[Path]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return which numbers are details of which total; ValueError if a total is missing."""
    found: dict[int, list[int]] = {}
    for k, path in enumerate(counted):
        if len(path) > 1:
            total = TOTALS.get(path[0]) or path[0].removesuffix(DETAILS)
            found.setdefault(counted.index((total,)), []).append(k)
    return tuple((total, tuple(details)) for total, details in found.items())


def rate_of(usage: Mapping[str, Any], scale: Mapping[Path, int], path: Path, price: Price, base: float) -> float:
    """Return the price of one unit: of one more, or of one less where more is invalid (more details than the total)."""
    try:
        return (price(varied(usage, scale, {path: STEP})) - base) / STEP
    except ValueError:
        return (base - price(varied(usage, scale, {path: -STEP}))) / STEP


def varied(
    usage: Mapping[str, Any], scale: Mapping[Path, int], added: Mapping[Path, int], parent: Path = ()
) -> dict[str, Any]:
    """Return a usage with its numbers multiplied, and some of them increased."""
    return {
        name: varied(value, scale, added, (*parent, name))
        if isinstance(value, dict)
        else value * scale.get((*parent, name), 1) + added.get((*parent, name), 0)
        if type(value) is int
        else value
        for name, value in usage.items()
    }


def number_at(usage: Mapping[str, Any], path: Path) -> int:
    """Return a number of a usage."""
    found: Any = usage
    for name in path:
        found = found[name]
    return int(found)
