"""Tables of requests with columns for time, key, size and cost: what CSV, JSON lines and Parquet share, and Parquet.

Rows come in chunks. A valid chunk is added as a whole. Otherwise its rows are added one by one, so that each broken row
is reported. The result is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from knapcache.errors import InvalidInput, MissingExtra, install_command
from knapcache.lab.traces.base import (
    BrokenLineError,
    ColumnRules,
    TraceBuilder,
    find_time,
    key_of,
    number,
    seconds_of,
    short,
    whole,
)
from knapcache.lab.traces.source import TraceSource

RULES = frozenset({"time", "no-time", "key", "size", "cost", "cost-each"})
PARQUET_ROWS = 1 << 16


@dataclass(frozen=True)
class Columns:
    """The columns to read."""

    time: str | None
    key: tuple[str, ...]
    size: str
    cost: str | None
    cost_each: float

    @classmethod
    def of(cls, rules: ColumnRules, names: Iterable[str]) -> Columns:
        """Apply the rules to the default columns: `key,size,cost`, and the one of these names that is a time."""
        return cls(
            time=None if rules.no_time else rules.time or find_time(names) or "time",
            key=rules.key or ("key",),
            size=rules.size or "size",
            cost=None if rules.cost_each is not None else rules.cost or "cost",
            cost_each=rules.cost_each or 0.0,
        )

    @property
    def names(self) -> list[str]:
        """All column names, without duplicates."""
        return list(dict.fromkeys(n for n in (self.time, *self.key, self.size, self.cost) if n is not None))

    def find(self, path: object, present: Sequence[str]) -> dict[str, int]:
        """Return the position of each column; raises InvalidInput if one is missing or ambiguous."""
        for name in self.names:
            if present.count(name) != 1:
                option = {self.time: "--time", self.size: "--size", self.cost: "--cost"}.get(name, "--key-fields")
                wrong = "no column" if name not in present else "more than one column"
                also = {"--time": " (or --no-time)", "--cost": " (or --cost-each)"}
                shown = ", ".join(map(short, present[:12]))
                raise InvalidInput(
                    f"{path} has {wrong} {name!r} among {shown}: name another with {option}{also.get(option, '')}"
                )
        return {name: present.index(name) for name in self.names}


def add_chunk(
    builder: TraceBuilder, columns: Columns, values: Mapping[str, Sequence[Any]], place: Callable[[int], str]
) -> None:
    """Add rows, given as the values of each column. `place` returns the place of the k-th row in the file."""
    if add_whole(builder, columns, values):
        return
    for k, row in enumerate(zip(*values.values(), strict=True)):
        try:
            add_row(builder, columns, dict(zip(values, row, strict=True)))
        except BrokenLineError as error:
            builder.broken(place(k), str(error))


def add_row(builder: TraceBuilder, columns: Columns, row: dict[str, Any]) -> None:
    """Add one row; raises BrokenLineError."""
    builder.add(
        key_of([field(row, name) for name in columns.key]),
        whole(columns.size, field(row, columns.size)),
        number(columns.cost, field(row, columns.cost)) if columns.cost is not None else columns.cost_each,
        seconds_of(columns.time, field(row, columns.time)) if columns.time is not None else None,
    )


def field(row: dict[str, Any], name: str) -> Any:
    """Return a field; raises BrokenLineError if it is missing or empty."""
    value = row.get(name)
    if value is None or value == "":
        raise BrokenLineError(f"{name} is missing")
    return value


def add_whole(builder: TraceBuilder, columns: Columns, values: Mapping[str, Sequence[Any]]) -> bool:
    """Add all rows at once; returns False, and adds nothing, if one may be broken."""
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
    """Convert a column of numbers, or of texts of numbers; raises BrokenLineError for mixed or other types."""
    types = set(map(type, column))
    if types == {str}:
        joined = "".join(column)
        if "_" in joined or not joined.isascii():
            raise BrokenLineError  # int() accepts 1_000; `whole` and `number` do not
        return list(map(kind, column))
    if not types <= {kind, *more}:
        raise BrokenLineError
    return column


def keys(column: Sequence[Any]) -> Sequence[Any]:
    """Return a column of keys; raises BrokenLineError for other types and UnicodeEncodeError for invalid UTF-8."""
    if not set(map(type, column)) <= {str, int} or "" in column:
        raise BrokenLineError
    "".join([key for key in column if type(key) is str]).encode()  # raises for bytes that were not UTF-8
    return column


def read_parquet(source: TraceSource, rules: ColumnRules, builder: TraceBuilder) -> None:
    """Add the rows of a Parquet file to `builder`, in slices. Polars reads it (`lab` extra)."""
    path = source.path
    try:
        import polars
    except ImportError:
        raise MissingExtra(f"{path} is Parquet, which needs Polars: {install_command('lab')}") from None
    builder.units.add(rules.unit)
    try:
        table = polars.scan_parquet(path, glob=False)
        names = table.collect_schema().names()
        columns = Columns.of(rules, names)
        columns.find(path, names)
        total = int(table.select(polars.len()).collect().item())
        for start in range(0, total, PARQUET_ROWS):
            rows = table.select(columns.names).slice(start, PARQUET_ROWS).collect()
            values = {name: rows[name].to_list() for name in columns.names}
            add_chunk(builder, columns, values, lambda k, start=start: f"row {start + k + 1}")  # type: ignore[misc]
            if source.progress:
                source.progress(min(start + PARQUET_ROWS, total), total)
    except polars.exceptions.PolarsError as error:
        raise InvalidInput(f"{path} is damaged: {' '.join(str(error).split())}") from None
