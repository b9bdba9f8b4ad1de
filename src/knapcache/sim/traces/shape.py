"""What every reader shares: the rules a user may give, the rows a trace is made of, and what a broken line is.

Nothing is guessed. A field that is missing, a size below 1, a cost that is negative or no number make a line broken;
a cost that the file does not hold must come from a rule.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.sim.numbering import Numbering
from knapcache.sim.trace import Floats, Ints, Trace

MAX_SIZE = 2**62 - 1
"""What a policy can add to a full cache without overflow."""

Progress = Callable[[int, int], None]
"""Called with the bytes of the file read so far, and its size."""


@dataclass(frozen=True)
class Prices:
    """Dollars, or any unit of cost, per million tokens."""

    input: float
    output: float

    def __post_init__(self) -> None:
        if not all(math.isfinite(price) and price >= 0.0 for price in (self.input, self.output)):
            raise InvalidInput(f"prices must be finite and not negative, not {self.input}, {self.output}")

    def cost(self, input_tokens: int, output_tokens: int) -> float:
        """What these tokens cost."""
        return (input_tokens * self.input + output_tokens * self.output) / 1e6


@dataclass(frozen=True)
class ColumnRules:
    """How a line becomes a request, where the format leaves a choice. None: as the format has it."""

    time: str | None = None
    """Name of the field with the time."""
    no_time: bool = False
    """The file has no times."""
    key: tuple[str, ...] | None = None
    """Names of the fields that together say which request this is."""
    size: str | None = None
    cost: str | None = None
    cost_each: float | None = None
    """What every request costs."""
    prices: Prices | None = None

    def __post_init__(self) -> None:
        if sum(rule is not None for rule in (self.cost, self.cost_each, self.prices)) > 1:
            raise InvalidInput("cost, cost-each and prices exclude each other: give one")
        if self.no_time and self.time is not None:
            raise InvalidInput("time and no-time exclude each other: give one")
        if self.cost_each is not None and not (math.isfinite(self.cost_each) and self.cost_each >= 0.0):
            raise InvalidInput(f"cost-each must be finite and not negative, not {self.cost_each}")
        if self.key is not None and not all(self.key or ("",)):
            raise InvalidInput("key must name at least one field, and none may be empty")

    @property
    def no_cost(self) -> bool:
        """Nothing says what a request costs."""
        return self.cost is None and self.cost_each is None and self.prices is None

    @property
    def given(self) -> set[str]:
        """The rules that were given, by the names of their options."""
        chosen = {f.name for f in fields(self) if getattr(self, f.name) != f.default}
        return {name.replace("_", "-") for name in chosen}


class BrokenLine(NamedTuple):
    """A line that is no request, and why."""

    place: str
    """line 17, record 3, row 5."""
    reason: str


class BrokenLineError(Exception):
    """Says why a line is no request."""


class TraceBuilder:
    """Collects requests and makes a trace of them. Arrays of machine numbers: 24 or 32 bytes a request."""

    def __init__(self, path: object, on_broken: Callable[[BrokenLine], None] | None) -> None:
        self.path = path
        self.on_broken = on_broken
        self.ids: dict[Hashable, int] = {}
        self.numbering = Numbering()
        self.keys, self.sizes, self.costs, self.times = array("q"), array("q"), array("d"), array("d")

    def broken(self, place: str, reason: str) -> None:
        """A line is no request: stop, or tell whoever asked to be told and go on."""
        if self.on_broken is None:
            raise InvalidInput(f"{self.path}, {place}: {reason}")
        self.on_broken(BrokenLine(place, reason))

    def add(self, key: Hashable, size: int, cost: float, time: float | None) -> None:
        """One request; raises BrokenLineError, and takes nothing, when it cannot be one."""
        if not 1 <= size <= MAX_SIZE:
            raise BrokenLineError(f"size must be at least 1 and below 2^62, not {short(size)}")
        if not (math.isfinite(cost) and cost >= 0.0):
            raise BrokenLineError(f"cost must be finite and not negative, not {cost}")
        if time is not None and not math.isfinite(time):
            raise BrokenLineError(f"time must be finite, not {time}")
        self.keys.append(self.ids.setdefault(key, len(self.ids)))
        self.sizes.append(size)
        self.costs.append(cost)
        if time is not None:
            self.times.append(time)

    def extend(self, keys: Iterable[Hashable], sizes: Ints, costs: Floats, times: Floats | None) -> bool:
        """Many requests at once; False, and takes nothing, when one is broken: `add` them to learn which.

        A reader all of whose keys are 64-bit numbers may give arrays of them (uint64), which are numbered much faster,
        and must then never `add`.
        """
        good = (sizes >= 1).all() and (sizes <= MAX_SIZE).all() and np.isfinite(costs).all() and (costs >= 0.0).all()
        if not good or not (times is None or np.isfinite(times).all()):
            return False
        if isinstance(keys, np.ndarray):
            self.keys.frombytes(self.numbering.number(keys).tobytes())
        else:
            ids = self.ids
            self.keys.extend([ids.setdefault(key, len(ids)) for key in keys])
        self.sizes.frombytes(np.ascontiguousarray(sizes, np.int64).tobytes())
        self.costs.frombytes(np.ascontiguousarray(costs, np.float64).tobytes())
        if times is not None:
            self.times.frombytes(np.ascontiguousarray(times, np.float64).tobytes())
        return True

    def trace(self) -> Trace:
        """The whole trace."""
        if not self.keys:
            raise InvalidInput(f"{self.path} holds no requests")
        whole = (np.frombuffer(self.keys, np.int64), np.frombuffer(self.sizes, np.int64), np.frombuffer(self.costs))
        times = np.frombuffer(self.times) if self.times else None
        names = self.numbering.names.tolist() or list(self.ids)
        return Trace(*whole, len(names), times, names)


# Values: texts of a CSV file, or what JSON and Parquet hold --------------------------------------------------------

# int() and float() also take 1_000 and the digits of other scripts, which in a trace are more likely a broken line.
_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*")
_NUMBER = re.compile(r"[ -^`-~]+")


def whole(name: str, value: Any) -> int:
    """A whole number, or the text of one."""
    if type(value) is str and _WHOLE.fullmatch(value) and len(value) < 100:
        return int(value)
    if type(value) is int:
        return value
    raise BrokenLineError(f"{name} must be a whole number, not {short(value)}")


def number(name: str, value: Any) -> float:
    """A number, or the text of one."""
    try:
        if type(value) in (int, float) or (type(value) is str and _NUMBER.fullmatch(value)):
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise BrokenLineError(f"{name} must be a number, not {short(value)}")


def moment(name: str, value: Any) -> float:
    """Seconds: a number, or a date and time in ISO 8601 (UTC where it names no zone)."""
    try:
        return number(name, value)  # first: 20240101 is a number, although it could be a date
    except BrokenLineError:
        pass
    try:
        when = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).strip())
    except ValueError:
        raise BrokenLineError(f"{name} must be a number or a date and time, not {short(value)}") from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def name_of(parts: Sequence[Any]) -> Hashable:
    """A key: its only part, or all of them. 7 and "7" are two keys; 1.0 and true, equal to 1 in Python, are refused."""
    for part in parts:
        if type(part) not in (str, int) or part == "":
            raise BrokenLineError(f"key must be a text or a whole number, not {short(part)}")
        if type(part) is str and not part.isascii():
            try:
                part.encode()
            except UnicodeEncodeError:
                raise BrokenLineError("key is not valid UTF-8") from None
    return parts[0] if len(parts) == 1 else tuple(parts)


def short(value: Any) -> str:
    """A value on one short line."""
    if type(value) is int and value.bit_length() > 400:
        return "a number of more than 100 digits"
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"
