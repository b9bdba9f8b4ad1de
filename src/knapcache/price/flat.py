"""Prices that are so much a token, however many there are: learned once, then a sum of products.

    usd(usage) = Σ_k c_k · usage_k        for usages of one shape: the same fields, and the same ones of them zero

genai-prices takes usages apart with care, half a millisecond each time: a quarter of what an answer that is not in the
cache costs a proxy. Where a price has no tiers and no conditions that is a linear map, whatever else it does, so its
coefficients are differences between what genai-prices itself says of two usages. They are used only if they give back
what it said of the first; where it has no flat price, or might object to a usage (details that are more than the
whole), it is asked every time.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

STEP = 10**6
"""Usages are compared in this unit: large, so that differences of doubles are exact enough."""
MOST_FIELDS = 64
DETAILS = "_details"
"""How fields end that say more about another one: prompt_tokens_details about prompt_tokens."""

Path = tuple[str, ...]
Shape = tuple[tuple[Path, Any], ...]
Usd = Callable[[Mapping[str, Any]], float]


def shape_of(usage: Mapping[str, Any]) -> tuple[Shape, list[int]] | None:
    """What usages that are priced alike share, and the numbers in which they differ; None for odd ones."""
    shape: list[tuple[Path, Any]] = []
    numbers: list[int] = []
    waiting: list[tuple[Path, Mapping[str, Any]]] = [((), usage)]
    while waiting:
        above, fields = waiting.pop()
        for name, value in fields.items():
            if type(value) is int and value > 0:
                numbers.append(value)
                shape.append(((*above, name), None))
            elif isinstance(value, dict):
                waiting.append(((*above, name), value))
            elif value is None or type(value) is str or (type(value) is int and value == 0):
                shape.append(((*above, name), value if value is not None else ""))
            else:
                return None
    return (tuple(shape), numbers) if len(shape) <= MOST_FIELDS else None


class Flat(NamedTuple):
    """A price that is a sum of products."""

    prices: tuple[float, ...]
    """Dollars for one of each number, in the order of `shape_of`."""
    wholes: tuple[tuple[int, tuple[int, ...]], ...]
    """Of which number which others are details."""

    def usd(self, numbers: list[int]) -> float | None:
        """Dollars; None where genai-prices has to be asked."""
        for whole, details in self.wholes:
            if sum(numbers[k] for k in details) > numbers[whole]:
                return None
        return float(sum(map(operator.mul, self.prices, numbers)))


def wholes_of(counted: list[Path]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Whose details numbers are, or ValueError where that cannot be told."""
    found: dict[int, list[int]] = {}
    for k, path in enumerate(counted):
        if len(path) > 1:
            found.setdefault(counted.index((path[0].removesuffix(DETAILS),)), []).append(k)
    return tuple((whole, tuple(details)) for whole, details in found.items())


def learned(usage: Mapping[str, Any], shape: Shape, usd: Usd) -> Flat | None:
    """The price of usages like this one; None where it is no sum of products."""
    counted = [path for path, value in shape if value is None]
    try:
        wholes = wholes_of(counted)
        scaled = dict.fromkeys(counted, STEP)
        base = usd(moved(usage, scaled, {}))
        found = [one_more(usage, scaled, path, usd, base) for path in counted]
    except (ValueError, ArithmeticError):
        return None
    first = sum(c * at(usage, path) for c, path in zip(found, counted, strict=True))
    return Flat(tuple(found), wholes) if math.isclose(first, usd(usage), rel_tol=1e-9, abs_tol=1e-15) else None


def one_more(usage: Mapping[str, Any], scaled: Mapping[Path, int], path: Path, usd: Usd, base: float) -> float:
    """What one more costs: up, or down where up is no usage (more cached tokens than there are tokens)."""
    try:
        return (usd(moved(usage, scaled, {path: STEP})) - base) / STEP
    except ValueError:
        return (base - usd(moved(usage, scaled, {path: -STEP}))) / STEP


def moved(
    usage: Mapping[str, Any], scaled: Mapping[Path, int], more: Mapping[Path, int], above: Path = ()
) -> dict[str, Any]:
    """A usage with its numbers multiplied, and some of them moved."""
    return {
        name: moved(value, scaled, more, (*above, name))
        if isinstance(value, dict)
        else value * scaled.get((*above, name), 1) + more.get((*above, name), 0)
        if type(value) is int
        else value
        for name, value in usage.items()
    }


def at(usage: Mapping[str, Any], path: Path) -> int:
    """A number of a usage."""
    found: Any = usage
    for name in path:
        found = found[name]
    return int(found)
