"""CSV with a header, by default `time,key,size,cost`. Polars reads the clean beginning, the csv module the rest.

A last line without a newline and with too few fields is still being written, or its writer died. It is ignored: neither
a request nor a broken line. A truncated line that has all fields cannot be recognised, so a log that is read while it
grows should end with a column that is not used.

The clean beginning is read in blocks of whole lines, if Polars is installed. A block is accepted only if it contains no
quotes and every line has as many fields as the header, all of them filled, with numbers where numbers are needed. From
the first other block on, the csv module reads the file: it can tell which line is broken and why. It would read every
accepted block with the same result; tests check this. Rejected: Polars alone. It cannot name a broken line and continue
after it, and it keeps a whole compressed file in memory. `bench/readers.py` measures both.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import IO, Any, cast

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.lab.trace import USD
from knapcache.lab.traces.base import ColumnRules, TraceBuilder
from knapcache.lab.traces.source import TraceSource
from knapcache.lab.traces.table import Columns, add_chunk

BLOCK = 1 << 21
MAX_HEADER = 1 << 16
ROWS = 512
"""Rows per chunk. Larger chunks are slower: they do not fit into the processor's cache."""

SAMPLE = 1 << 15
"""Bytes of a request log that show the unit of its costs."""

Rows = list[list[str]]
Chunk = tuple[dict[str, Sequence[Any]], Callable[[int], str]]
"""The values of each column, and a function that returns the place of the k-th row in the file."""


def read(source: TraceSource, rules: ColumnRules, builder: TraceBuilder) -> None:
    """Add the rows of a file to `builder`."""
    with source.open() as file:
        header = file.readline(MAX_HEADER)
        names = header_names(header)
        columns = Columns.of(rules, names)
        builder.units.add(rules.unit if not rules.no_cost else unit_of_request_log(names, file))
        rest, done = read_clean_blocks(header, file, columns, builder)
        buffered, find = io.BufferedReader(rest, 1 << 18), partial(columns.find, source.path)
        for values, place in chunks(buffered, builder, find, done, lambda: rest.cut):
            add_chunk(builder, columns, values, place)


def header_names(header: bytes) -> list[str]:
    """Return the names in the first line of a file; none if it cannot be read as a header."""
    try:
        return next(csv.reader([header.decode("utf-8-sig")], strict=True), [])
    except (UnicodeDecodeError, csv.Error):
        return []


def unit_of_request_log(names: list[str], file: IO[bytes]) -> str:
    """Return the unit of the costs in the proxy's request log, from the first rows; "" for another file.

    The log has the columns `cost`, `usd` (or `unknown`) and `seconds`. The proxy's settings decide which of them, or
    which sum of both, is the cost.
    """
    if not {"cost", "usd", "seconds"} <= set(names):
        return ""
    start = cast(Any, file).peek(SAMPLE)[:SAMPLE].decode("utf-8", "replace")
    rows = [row for line in start[: start.rfind("\n") + 1].splitlines() if len(row := line.split(",")) == len(names)]
    cost, usd, seconds = ([row[names.index(name)] for row in rows] for name in ("cost", "usd", "seconds"))
    known = [k for k, value in enumerate(usd) if value != "unknown"]
    if known and all(usd[k] == cost[k] for k in known):
        return USD
    return "seconds" if rows and cost == seconds else ""


def chunks(
    file: IO[bytes],
    builder: TraceBuilder,
    find: Callable[[list[str]], dict[str, int]],
    done: int = 0,
    cut: Callable[[], bool] = lambda: False,
) -> Iterator[Chunk]:
    """Yield the columns that `find` selects from the header, in chunks of rows. Rows of another length are broken
    lines.

    `done` is the number of lines after the header that are already read and not in the file. `cut` returns whether the
    last row read has no newline. It is called in time, because the csv module returns such a row only at the end.
    """
    # Invalid UTF-8 becomes surrogates, which are not allowed in numbers and keys, so only their line is broken.
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
        before, rows, problem = reader.line_num + done, Rows(), ""
        try:
            rows.extend(islice(reader, ROWS))
            more = bool(rows)
        except csv.Error as error:  # the rows before the error are already in `rows`
            problem = str(error)
        lines = [*starts(rows, before)] if problem or set(map(len, rows)) - {len(header)} else []
        if lines:  # rare: report the broken rows
            good = [k for k, row in enumerate(rows) if len(row) == len(header)]
            unfinished = len(rows) - 1 if cut() and not problem and len(rows[-1]) < len(header) else None
            for k, row in enumerate(rows):
                if row and len(row) != len(header) and k != unfinished:
                    builder.broken(f"line {lines[k]}", f"{len(row)} fields where the header has {len(header)}")
            if problem and not cut():  # otherwise a quoted field of the last line is still being written
                builder.broken(f"line {lines[-1]}", problem)
            rows, lines = [rows[k] for k in good], [lines[k] for k in good]
        if rows:
            by_column = list(zip(*rows, strict=True))
            yield {name: by_column[k] for name, k in wanted.items()}, row_places(rows, lines, before)


def row_places(rows: Rows, lines: list[int], before: int) -> Callable[[int], str]:
    """Return a function that gives the place of each row. Lines are counted only when it is called."""
    return lambda k: f"line {lines[k] if lines else list(starts(rows, before))[k]}"


def starts(rows: Rows, before: int) -> Iterator[int]:
    """Yield the first line of each row, and of the row after them. Quoted fields may contain line breaks."""
    line = before + 1
    for row in rows:
        yield line
        line += 1 + sum(len(BREAK.findall(field)) for field in row)
    yield line


BREAK = re.compile(r"\r\n|\r|\n")


class RemainingBytes(io.RawIOBase):
    """Bytes that were read ahead, followed by the rest of the file."""

    def __init__(self, ahead: bytes, file: IO[bytes]) -> None:
        self.ahead, self.file = memoryview(ahead), file
        self.last = b""
        self.cut = False
        """True at the end of a file whose last line has no newline."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.ahead[: len(buffer)] if self.ahead else self.file.read(len(buffer))
        self.ahead = self.ahead[len(data) :]
        buffer[: len(data)] = data
        self.last = bytes(data[-1:]) or self.last
        self.cut = not data and self.last not in (b"\n", b"\r")
        return len(data)


def read_clean_blocks(
    header: bytes, file: IO[bytes], columns: Columns, builder: TraceBuilder
) -> tuple[RemainingBytes, int]:
    """Add the rows of the clean beginning; returns the header with the remaining bytes, and the number of lines
    added. `header`: the first line of the file, at most MAX_HEADER bytes, already read.
    """
    tail, lines = b"", 0
    if parser := PolarsParser.of(header, columns, builder):
        while block := file.read(BLOCK):
            whole, newline, tail = (tail + block).rpartition(b"\n")
            if not parser.add(whole + newline):
                tail = whole + newline + tail
                break
            lines += whole.count(b"\n") + len(newline)
    return RemainingBytes(header + tail, file), lines


class PolarsParser:
    """Parses blocks of rows under one header with Polars."""

    def __init__(self, polars: Any, header: list[str], columns: Columns, builder: TraceBuilder) -> None:
        self.polars, self.columns, self.builder = polars, columns, builder
        self.where = columns.find(builder.path, header)
        kinds = {columns.time: polars.Float64, columns.cost: polars.Float64, columns.size: polars.Int64}
        self.schema = {str(k): kinds.get(name, polars.String) for k, name in enumerate(header)}

    @classmethod
    def of(cls, header: bytes, columns: Columns, builder: TraceBuilder) -> PolarsParser | None:
        """Return a parser; None without Polars, for a quoted header, or for a column used both as number and as key."""
        try:
            import polars
        except ImportError:
            return None
        numeric = [name for name in (columns.time, columns.size, columns.cost) if name is not None]
        if b'"' in header or not header.endswith(b"\n"):
            return None
        if len({*numeric, *columns.key}) < len(numeric) + len(columns.key):
            return None
        try:
            names = header.decode("utf-8-sig").rstrip("\r\n").split(",")
        except UnicodeDecodeError:
            return None
        blank = names == [""] or "\r" in "".join(names)
        return None if blank else cls(polars, names, columns, builder)

    def add(self, block: bytes) -> bool:
        """Add whole lines; returns False, and adds nothing, if one is not clean."""
        block = block.replace(b"\r\n", b"\n")
        if b'"' in block or b"\r" in block or not block:
            return False
        try:
            rows = self.polars.read_csv(block, has_header=False, schema=self.schema, quote_char=None)
        except self.polars.exceptions.PolarsError:
            return False
        if rows.height != block.count(b"\n") or any(rows.null_count().row(0)):
            return False
        columns, where = self.columns, self.where
        keys = [rows.to_series(where[name]).to_list() for name in columns.key]
        sizes = rows.to_series(where[columns.size]).to_numpy()
        costs = (
            np.full(rows.height, columns.cost_each)
            if columns.cost is None
            else rows.to_series(where[columns.cost]).to_numpy()
        )
        times = None if columns.time is None else rows.to_series(where[columns.time]).to_numpy()
        return self.builder.extend(keys[0] if len(keys) == 1 else zip(*keys, strict=True), sizes, costs, times)
