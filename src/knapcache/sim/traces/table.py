"""Tables: requests in rows, with a column each for time, key, size and cost. What CSV, JSON lines and Parquet share.

Rows come in chunks, and a chunk is taken whole where all of it is sound; where it is not, it is gone through row by
row, so that each broken one is named. Slow and careful is for the exception, the result is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.sim.traces.shape import BrokenLineError, ColumnRules, TraceBuilder, moment, name_of, number, short, whole

RULES = frozenset({"time", "no-time", "key", "size", "cost", "cost-each"})


@dataclass(frozen=True)
class Columns:
    """Which columns to read."""

    time: str | None
    key: tuple[str, ...]
    size: str
    cost: str | None
    cost_each: float

    @classmethod
    def of(cls, rules: ColumnRules) -> Columns:
        """`time,key,size,cost`, unless told otherwise."""
        return cls(
            time=None if rules.no_time else rules.time or "time",
            key=rules.key or ("key",),
            size=rules.size or "size",
            cost=None if rules.cost_each is not None else rules.cost or "cost",
            cost_each=rules.cost_each or 0.0,
        )

    @property
    def names(self) -> list[str]:
        """All of them, each once."""
        return list(dict.fromkeys(n for n in (self.time, *self.key, self.size, self.cost) if n is not None))

    def find(self, path: object, present: Sequence[str]) -> dict[str, int]:
        """Where each column stands, or one clear error."""
        for name in self.names:
            if present.count(name) != 1:
                option = {self.time: "--time", self.size: "--size", self.cost: "--cost"}.get(name, "--key")
                wrong = "no column" if name not in present else "more than one column"
                also = {"--time": " (--no-time where there is none)", "--cost": " (or what each costs: --cost-each)"}
                shown = ", ".join(map(short, present[:12]))
                raise InvalidInput(
                    f"{path} has {wrong} {name!r} among {shown}: name the right one with {option}{also.get(option, '')}"
                )
        return {name: present.index(name) for name in self.names}


def add_chunk(
    builder: TraceBuilder, columns: Columns, values: Mapping[str, Sequence[Any]], place: Callable[[int], str]
) -> None:
    """Rows, given as the values of each column; `place` says where in the file the k-th of them is."""
    if add_whole(builder, columns, values):
        return
    for k, row in enumerate(zip(*values.values(), strict=True)):
        try:
            add_row(builder, columns, dict(zip(values, row, strict=True)))
        except BrokenLineError as error:
            builder.broken(place(k), str(error))


def add_row(builder: TraceBuilder, columns: Columns, row: dict[str, Any]) -> None:
    """One row; raises BrokenLineError."""
    builder.add(
        name_of([field(row, name) for name in columns.key]),
        whole(columns.size, field(row, columns.size)),
        number(columns.cost, field(row, columns.cost)) if columns.cost is not None else columns.cost_each,
        moment(columns.time, field(row, columns.time)) if columns.time is not None else None,
    )


def field(row: dict[str, Any], name: str) -> Any:
    """A field, which must be there and not be empty."""
    value = row.get(name)
    if value is None or value == "":
        raise BrokenLineError(f"{name} is missing")
    return value


def add_whole(builder: TraceBuilder, columns: Columns, values: Mapping[str, Sequence[Any]]) -> bool:
    """All rows at once; False, and nothing is taken, where one may be broken."""
    try:
        sizes = np.array(numbers(values[columns.size], int), np.int64)
        if columns.cost is not None:
            costs = np.array(numbers(values[columns.cost], float, int), np.float64)
        else:
            costs = np.full(len(sizes), columns.cost_each)
        times = np.array(numbers(values[columns.time], float, int), np.float64) if columns.time is not None else None
        parts = [keys(values[name]) for name in columns.key]
    except (ValueError, OverflowError, BrokenLineError):
        return False
    return builder.extend(parts[0] if len(parts) == 1 else zip(*parts, strict=True), sizes, costs, times)


def numbers(column: Sequence[Any], kind: Callable[[str], Any], *more: type) -> Iterable[Any]:
    """A column as numbers: all of them such, or all of them texts of such. bool is a type of its own."""
    types = set(map(type, column))
    if types == {str}:
        joined = "".join(column)
        if "_" in joined or not joined.isascii():
            raise BrokenLineError  # int() takes 1_000; `whole` and `number` do not
        return list(map(kind, column))
    if not types <= {kind, *more}:
        raise BrokenLineError
    return column


def keys(column: Sequence[Any]) -> Sequence[Any]:
    """A column as keys."""
    if not set(map(type, column)) <= {str, int} or "" in column:
        raise BrokenLineError
    "".join([key for key in column if type(key) is str]).encode()  # raises on bytes that were no UTF-8
    return column
