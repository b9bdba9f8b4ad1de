"""JSON lines: one object per line, by default with the fields `time`, `key`, `size` and `cost`.

Uses Python's json, which keeps integers of any length exactly. orjson would make different long keys equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any, NoReturn

from knapcache.lab.traces.base import BrokenLineError, ColumnRules, TraceBuilder, short
from knapcache.lab.traces.source import TraceSource
from knapcache.lab.traces.table import Columns, add_chunk

ROWS = 512


def read(source: TraceSource, rules: ColumnRules, builder: TraceBuilder) -> None:
    """Add the objects of a file to `builder`."""
    builder.units.add(rules.unit)
    columns: Columns | None = None
    lines: list[int] = []
    rows: list[dict[str, Any]] = []

    def flush() -> None:
        if rows and columns is not None:
            values = {name: [row.get(name) for row in rows] for name in columns.names}
            add_chunk(builder, columns, values, lambda k: f"line {lines[k]}")
        lines.clear()
        rows.clear()

    with source.open() as file:
        for line, row in objects(file, builder):
            columns = columns or Columns.of(rules, row)
            lines.append(line)
            rows.append(row)
            if len(rows) == ROWS:
                flush()
        flush()


def objects(file: IO[bytes], builder: TraceBuilder) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and object of each line. Blank lines are skipped; other lines without an object are broken."""
    for number, line in enumerate(file, 1):
        try:
            row = parse(line, first=number == 1)
        except BrokenLineError as error:
            builder.broken(f"line {number}", str(error))
        else:
            if row is not None:
                yield number, row


def parse(line: bytes, *, first: bool = False) -> dict[str, Any] | None:
    """Return the object of a line, or None for a blank line; raises BrokenLineError."""
    try:
        text = line.decode("utf-8-sig" if first else "utf-8").strip()
        row = DECODER.decode(text) if text else None
    except UnicodeDecodeError:
        raise BrokenLineError("not valid UTF-8") from None
    except json.JSONDecodeError as error:
        raise BrokenLineError(f"not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise BrokenLineError(f"not JSON: {error}") from None
    if row is not None and not isinstance(row, dict):
        raise BrokenLineError(f"must be an object, not {short(row)}")
    if text and row is None:
        raise BrokenLineError("must be an object, not null")
    return row


def _reject(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a valid number")


DECODER = json.JSONDecoder(parse_constant=_reject)
