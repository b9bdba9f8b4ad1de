"""Fast reading of the clean beginning of a CSV file: blocks of whole lines, parsed by Polars if it is installed.

A block is accepted only if it contains no quotes and every line has as many fields as the header, all of them filled,
with numbers where numbers are needed. From the first other block on, the csv module reads the file: it can tell which
line is broken and why. The csv module would read every accepted block with the same result; tests check this. Rejected:
Polars alone. It cannot name a broken line and continue after it, and it keeps a whole compressed file in memory.
`bench/readers.py` measures both.
"""

from __future__ import annotations

import io
from typing import IO, Any

import numpy as np

from knapcache.lab.traces.base import TraceBuilder
from knapcache.lab.traces.table import Columns

BLOCK = 1 << 21
MAX_HEADER = 1 << 16


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
