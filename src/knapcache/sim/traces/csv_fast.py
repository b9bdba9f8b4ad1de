"""The clean beginning of a CSV file, faster: blocks of whole lines, parsed by Polars if it is there.

A block is taken only if it holds no quotes and Polars finds in every line as many fields as the header has, all of
them filled, and numbers where numbers belong. At the first block that is not so the csv module takes over, for that
block and all behind it: it is the one that knows which line is broken and why. Whatever Polars takes, the csv module
would take as well and alike; tests hold the two together. Polars alone was rejected: it cannot name a broken line and
go on behind it, and holds a compressed file in memory whole. `bench/readers.py` measures both.
"""

from __future__ import annotations

import io
from typing import IO, Any

import numpy as np

from knapcache.sim.traces.shape import TraceBuilder
from knapcache.sim.traces.table import Columns

BLOCK = 1 << 21
MAX_HEADER = 1 << 16


class RemainingBytes(io.RawIOBase):
    """Bytes that were read too far, then the file they came from."""

    def __init__(self, ahead: bytes, file: IO[bytes]) -> None:
        self.ahead, self.file = memoryview(ahead), file
        self.last = b""
        self.cut = False
        """The end was reached, and the last line has none."""

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Bytes read ahead first."""
        data = self.ahead[: len(buffer)] if self.ahead else self.file.read(len(buffer))
        self.ahead = self.ahead[len(data) :]
        buffer[: len(data)] = data
        self.last = bytes(data[-1:]) or self.last
        self.cut = not data and self.last not in (b"\n", b"\r")
        return len(data)


def take(file: IO[bytes], columns: Columns, builder: TraceBuilder) -> tuple[RemainingBytes, int]:
    """Add the rows of the clean beginning; the header and all that is left, and how many lines are not in that."""
    header = file.readline(MAX_HEADER)
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
    """Rows by Polars, for one header."""

    def __init__(self, polars: Any, header: list[str], columns: Columns, builder: TraceBuilder) -> None:
        self.polars, self.columns, self.builder = polars, columns, builder
        self.where = columns.find(builder.path, header)
        kinds = {columns.time: polars.Float64, columns.cost: polars.Float64, columns.size: polars.Int64}
        self.schema = {str(k): kinds.get(name, polars.String) for k, name in enumerate(header)}

    @classmethod
    def of(cls, header: bytes, columns: Columns, builder: TraceBuilder) -> PolarsParser | None:
        """None without Polars, for a header that is not plain, or a column wanted both as number and as key."""
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
        """Whole lines; False, and nothing is taken, where they are not all clean."""
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
