"""Common parts of all readers: the user's column rules, the trace builder, and the parsing of values.

Nothing is guessed. A line is broken if a field is missing, a size is below 1, or a cost is negative or not a number. A
cost that the file does not contain must come from a rule. A line that is valid but no request for a replay (a failed
call, a model without a known price) is left out and counted.
"""

from __future__ import annotations

import hashlib
import math
import re
from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.lab.numbering import Keys, Numbering
from knapcache.lab.sampling import Sampler
from knapcache.lab.trace import USD, Floats, Ints, Trace

MAX_SIZE = 2**62 - 1
"""A policy can add this to the size of a full cache without overflow."""
CHUNK = 1 << 16
"""Requests that are collected before they are sampled."""

Progress = Callable[[int, int], None]
"""Called with the bytes read so far and the size of the file."""

AUTO: Literal["auto"] = "auto"
"""Prices of each line's own model, by genai-prices."""
TIME_FIELDS = (
    "time", "timestamp", "ts", "datetime", "created", "createdat", "starttime", "requesttime", "requestcreatedat",
    "eventtime",
)  # fmt: skip
"""Names of time fields, without case, `_` and `@`, in the order of preference."""
USD_FIELDS = frozenset(("usd", "costusd", "usdcost", "totalcostusd", "spend", "responsecost", "dollars"))
"""Names of fields that hold dollars, written as in TIME_FIELDS."""
TIME_UNITS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))
"""Numbers from this limit on are nanoseconds, microseconds or milliseconds since 1970, and become seconds by this
factor. As seconds, 1e11 would be the year 5138; as milliseconds, it is 1973."""


@dataclass(frozen=True)
class Prices:
    """Prices in dollars, or any other unit of cost, per million tokens."""

    input: float
    output: float

    def __post_init__(self) -> None:
        if not all(math.isfinite(price) and price >= 0.0 for price in (self.input, self.output)):
            raise InvalidInput(f"prices must be finite and not negative, not {self.input}, {self.output}")

    def cost(self, input_tokens: int, output_tokens: int) -> float:
        return (input_tokens * self.input + output_tokens * self.output) / 1e6


@dataclass(frozen=True)
class ColumnRules:
    """How a line becomes a request. None means the format's default."""

    time: str | None = None
    """Name of the time field."""
    no_time: bool = False
    """The file has no times."""
    key: tuple[str, ...] | None = None
    """Names of the fields that together identify a request."""
    size: str | None = None
    cost: str | None = None
    cost_each: float | None = None
    """The cost of every request."""
    prices: Prices | Literal["auto"] | None = None

    def __post_init__(self) -> None:
        if sum(rule is not None for rule in (self.cost, self.cost_each, self.prices)) > 1:
            raise InvalidInput("only one of cost, cost-each and prices is allowed")
        if self.no_time and self.time is not None:
            raise InvalidInput("only one of time and no-time is allowed")
        if self.cost_each is not None and not (math.isfinite(self.cost_each) and self.cost_each >= 0.0):
            raise InvalidInput(f"cost-each must be finite and not negative, not {self.cost_each}")
        if self.key is not None and not all(self.key or ("",)):
            raise InvalidInput("key must name at least one field, and no name may be empty")

    @property
    def no_cost(self) -> bool:
        """True if no rule gives the cost of a request."""
        return self.cost is None and self.cost_each is None and self.prices is None

    @property
    def unit(self) -> str:
        """The unit of costs under these rules: USD, the name of the field, or "" if no rule tells it."""
        if self.prices is not None or (self.cost is not None and plain_name(self.cost) in USD_FIELDS):
            return USD
        return self.cost or ""

    @property
    def options(self) -> set[str]:
        """The command-line options of the rules that differ from their defaults."""
        changed = {f.name for f in fields(self) if getattr(self, f.name) != f.default}
        return {name.replace("_", "-") for name in changed}


class BrokenLine(NamedTuple):
    """A line that is not a valid request, and why."""

    place: str
    """Such as `line 17`, `record 3` or `row 5`."""
    reason: str


class BrokenLineError(Exception):
    """A line is not a valid request. Only used inside this package: the reader skips the line or stops."""


class LeftOutError(Exception):
    """A line is valid, but no request for a replay. Only used inside this package."""


class TraceBuilder:
    """Collects requests and builds a trace of them. Typed arrays: 24 or 32 bytes per request.

    With a sampler, requests are passed on to it in chunks, and the trace is its sample.
    """

    def __init__(
        self,
        path: object,
        on_broken: Callable[[BrokenLine], None] | None,
        on_notice: Callable[[str], None] | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        self.path, self.sampler = path, sampler
        self.on_broken, self.on_notice = on_broken, on_notice
        self.first_left_out = ""
        """The reason for the first line that was left out."""
        self.units: set[str] = set()
        """The units of costs, one for each file that tells it."""
        self._clear()

    def _clear(self) -> None:
        self.ids: dict[Hashable, int] = {}
        self.numbering = Numbering()
        self.keys, self.sizes, self.costs, self.times = array("q"), array("q"), array("d"), array("d")

    def broken(self, place: str, reason: str) -> None:
        """Report a broken line to `on_broken`, or raise InvalidInput without it."""
        if self.on_broken is None:
            raise InvalidInput(f"{self.path}, {place}: {reason}")
        self.on_broken(BrokenLine(place, reason))

    def left_out(self, place: str, reason: str) -> None:
        """Report a line that is left out to `on_notice`, or raise InvalidInput without it."""
        if self.on_notice is None:
            raise InvalidInput(f"{self.path}, {place}: cannot be replayed ({reason})")
        self.first_left_out = self.first_left_out or reason
        self.on_notice(f"left out: {reason}")

    def notice(self, text: str) -> None:
        """Report what is remarkable about a line that is used."""
        if self.on_notice is not None:
            self.on_notice(text)

    def add(self, key: Hashable, size: int, cost: float, time: float | None) -> None:
        """Add one request; raises BrokenLineError, and adds nothing, if it is invalid."""
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
        self._pass_on(CHUNK)

    def extend(self, keys: Iterable[Hashable], sizes: Ints, costs: Floats, times: Floats | None) -> bool:
        """Add many requests; returns False, and adds nothing, if one is invalid. `add` then finds out which.

        A reader whose keys are all 64-bit numbers may pass uint64 arrays, which are numbered much faster. It must then
        never call `add`.
        """
        valid = (sizes >= 1).all() and (sizes <= MAX_SIZE).all() and np.isfinite(costs).all() and (costs >= 0.0).all()
        if not valid or not (times is None or np.isfinite(times).all()):
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
        self._pass_on(CHUNK)
        return True

    def _pass_on(self, minimum: int) -> None:
        """Pass the collected requests on to the sampler, if there are as many."""
        if self.sampler is None or len(self.keys) < minimum:
            return
        names = self.numbering.names if len(self.numbering) else digests(self.ids)
        keys, sizes, costs, times = self._columns()
        self._clear()
        self.sampler.extend(names[keys], sizes, costs, times)

    def _columns(self) -> tuple[Ints, Ints, Floats, Floats | None]:
        # Requests of which only some have a time are a trace without times.
        times = in_seconds(np.frombuffer(self.times)) if len(self.times) == len(self.keys) else None
        return np.frombuffer(self.keys, np.int64), np.frombuffer(self.sizes, np.int64), np.frombuffer(self.costs), times

    def trace(self) -> Trace:
        """Return the trace; raises InvalidInput if there are no requests."""
        self._pass_on(1)
        if not (self.keys if self.sampler is None else self.sampler.requests):
            why = f" to replay (first line left out: {self.first_left_out})" if self.first_left_out else ""
            raise InvalidInput(f"{self.path} contains no requests{why}")
        unit = self.units.pop() if len(self.units) == 1 else ""
        if self.sampler is not None:
            return self.sampler.trace(unit)
        names = self.numbering.names.tolist() or list(self.ids)
        keys, sizes, costs, times = self._columns()
        return Trace(keys, sizes, costs, len(names), times, names, unit)


def digests(keys: Iterable[Hashable]) -> Keys:
    """Return a 64-bit digest of each key, equal in every process."""
    found = b"".join([hashlib.blake2b(repr(key).encode(), digest_size=8).digest() for key in keys])
    return np.frombuffer(found, "<u8").astype(np.uint64)


def in_seconds(times: Floats) -> Floats:
    """Return times in seconds. Numbers too large for seconds since 1970 are milli-, micro- or nanoseconds."""
    for limit, factor in TIME_UNITS:
        times = np.where(np.abs(times) >= limit, times * factor, times)
    return times


def plain_name(name: str) -> str:
    """Return the name of a field without case, `_` and `@`, and without the objects that it is nested in."""
    return name.rpartition(".")[2].lower().replace("_", "").replace("@", "")


def find_time(names: Iterable[str]) -> str | None:
    """Return the name that is most likely the time of a request; None if there is none."""
    known = {plain_name(name): name for name in reversed(list(names))}
    return next((known[name] for name in TIME_FIELDS if name in known), None)


# Values: texts from CSV files, or values from JSON and Parquet --------------------------------------------------------

# int() and float() also accept 1_000 and digits of other scripts; in a trace these are more likely errors.
_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*")
_NUMBER = re.compile(r"[ -^`-~]+")


def whole(name: str, value: Any) -> int:
    """Convert an integer, or the text of one."""
    if type(value) is str and _WHOLE.fullmatch(value) and len(value) < 100:
        return int(value)
    if type(value) is int:
        return value
    raise BrokenLineError(f"{name} must be a whole number, not {short(value)}")


def number(name: str, value: Any) -> float:
    """Convert a number, or the text of one."""
    try:
        if type(value) in (int, float) or (type(value) is str and _NUMBER.fullmatch(value)):
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise BrokenLineError(f"{name} must be a number, not {short(value)}")


def seconds_of(name: str, value: Any) -> float:
    """Convert a time to seconds: a number, or a date and time in ISO 8601 (UTC if it has no zone)."""
    try:
        return number(name, value)  # tried first: 20240101 is read as a number, not as a date
    except BrokenLineError:
        pass
    try:
        when = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).strip())
    except ValueError:
        raise BrokenLineError(f"{name} must be a number or a date and time, not {short(value)}") from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def key_of(parts: Sequence[Any]) -> Hashable:
    """Return the key of a request: its single part, or a tuple of all parts.

    7 and "7" are two keys. 1.0 and true are invalid, because Python treats them as equal to 1.
    """
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
    """Format a value on one short line."""
    if type(value) is int and value.bit_length() > 400:
        return "a number of more than 100 digits"
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"
