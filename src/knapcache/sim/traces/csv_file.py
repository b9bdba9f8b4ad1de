"""CSV with a header: `time,key,size,cost` unless told otherwise. Read by the csv module, behind a fast beginning.

A last line without its end and with too few fields is one that is being written, or was when its writer died: it is
no request yet, and no broken line. A cut that leaves all fields cannot be seen, so the last column of a log that is
read while it grows had better be one that nobody counts.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import IO, Any

from knapcache.errors import InvalidInput
from knapcache.sim.traces import csv_fast
from knapcache.sim.traces.shape import ColumnRules, TraceBuilder
from knapcache.sim.traces.source import TraceSource
from knapcache.sim.traces.table import RULES, Columns, add_chunk

__all__ = ["RULES", "chunks", "read"]

ROWS = 512
"""Rows at a time. More is slower: they leave the processor's cache."""

Rows = list[list[str]]
Chunk = tuple[dict[str, Sequence[Any]], Callable[[int], str]]
"""The values of each column, and where in the file the k-th row is."""


def read(source: TraceSource, rules: ColumnRules, builder: TraceBuilder) -> None:
    """Rows into requests."""
    columns = Columns.of(rules)
    with source.open() as file:
        rest, done = csv_fast.take(file, columns, builder)
        buffered, find = io.BufferedReader(rest, 1 << 18), partial(columns.find, source.path)
        for values, place in chunks(buffered, builder, find, done, lambda: rest.cut):
            add_chunk(builder, columns, values, place)


def chunks(
    file: IO[bytes],
    builder: TraceBuilder,
    find: Callable[[list[str]], dict[str, int]],
    done: int = 0,
    cut: Callable[[], bool] = lambda: False,
) -> Iterator[Chunk]:
    """The columns that `find` picks from the header, some rows at a time. Rows of another length are broken lines.

    `done`: how many lines behind the header are already done, and not in the file. `cut`: whether the row read last has
    no end. That is known in time: to take such a row for one, the csv module has to see the end of the file.
    """
    # Bytes that are no UTF-8 become surrogates, which no number and no key may hold: only their line is broken.
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    reader = csv.reader(text, strict=True)
    try:
        header = next((row for row in reader if row), None)
    except csv.Error as error:
        raise InvalidInput(f"{builder.path}, line {reader.line_num}: {error}") from None
    if header is None:
        raise InvalidInput(f"{builder.path} is empty")
    wanted = find(header)
    more = True
    while more:
        before, rows, trouble = reader.line_num + done, Rows(), ""
        try:
            rows.extend(islice(reader, ROWS))
            more = bool(rows)
        except csv.Error as error:  # what came before it has been kept
            trouble = str(error)
        lines = [*starts(rows, before)] if trouble or set(map(len, rows)) - {len(header)} else []
        if lines:  # the rare case: sort out what is no row
            good = [k for k, row in enumerate(rows) if len(row) == len(header)]
            unfinished = len(rows) - 1 if cut() and not trouble and len(rows[-1]) < len(header) else None
            for k, row in enumerate(rows):
                if row and len(row) != len(header) and k != unfinished:
                    builder.broken(f"line {lines[k]}", f"{len(row)} fields where the header has {len(header)}")
            if trouble:
                builder.broken(f"line {lines[-1]}", trouble)
            rows, lines = [rows[k] for k in good], [lines[k] for k in good]
        if rows:
            by_column = list(zip(*rows, strict=True))
            yield {name: by_column[k] for name, k in wanted.items()}, placing(rows, lines, before)


def placing(rows: Rows, lines: list[int], before: int) -> Callable[[int], str]:
    """Where each row is; counted only when somebody asks."""
    return lambda k: f"line {lines[k] if lines else list(starts(rows, before))[k]}"


def starts(rows: Rows, before: int) -> Iterator[int]:
    """The line each row begins on, and the next one behind them: a row has as many lines as its fields have breaks."""
    line = before + 1
    for row in rows:
        yield line
        line += 1 + sum(len(BREAK.findall(field)) for field in row)
    yield line


BREAK = re.compile(r"\r\n|\r|\n")
