"""Exports of other programs: records as JSON lines, as a JSON array, or as CSV with a header.

The array is read object by object. Commas between objects may be missing or too many: Helicone's exporter writes one
after the last object.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import IO, Any

from knapcache.lab.traces.base import TraceBuilder
from knapcache.lab.traces.csv_file import chunks
from knapcache.lab.traces.json_lines import DECODER, objects
from knapcache.lab.traces.source import TraceSource

MAX_FIELD = 1 << 30
"""Characters of a CSV field, which may be a whole prompt. Python's own limit is 131,072."""
BLOCK = 1 << 20
BETWEEN = " \t\r\n,"

Record = tuple[str, dict[str, Any]]
"""The place of a record in its file, and its fields. In CSV all values are texts."""


def records(source: TraceSource, builder: TraceBuilder) -> Iterator[Record]:
    """Yield the records of a file."""
    with TraceSource(source.path).open() as file:
        start = file.read(BLOCK).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    with source.open(lines=start != b"[") as file:
        if start == b"[":
            yield from array(file, builder)
        elif start == b"{":
            yield from ((f"line {line}", row) for line, row in objects(file, builder))
        else:
            yield from rows(file, builder)


def rows(file: IO[bytes], builder: TraceBuilder) -> Iterator[Record]:
    """Yield the rows of a CSV file. Empty fields are left out."""
    csv.field_size_limit(MAX_FIELD)

    def find(header: list[str]) -> dict[str, int]:
        return {name: k for k, name in enumerate(header)}

    for values, place in chunks(file, builder, find):
        for k, row in enumerate(zip(*values.values(), strict=True)):
            yield place(k), {name: value for name, value in zip(values, row, strict=True) if value != ""}


def array(file: IO[bytes], builder: TraceBuilder) -> Iterator[Record]:
    """Yield the objects of a JSON array. What cannot be parsed ends the file: the next object cannot be found."""
    reader = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape")
    text, where, number = reader.read(BLOCK), 0, 1
    where = text.find("[") + 1
    while True:
        while where < len(text) and text[where] in BETWEEN:
            where += 1
        try:
            value, where = DECODER.raw_decode(text, where)
        except ValueError as error:
            if text[where : where + 1] == "]":
                return
            # Doubling the text makes the total time linear, however long an object is.
            more = reader.read(max(BLOCK, len(text) - where))
            if not more:
                problem = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
                builder.broken(f"record {number}", f"not JSON: {problem}")
                return
            text, where = text[where:] + more, 0
            continue
        if isinstance(value, dict):
            yield f"record {number}", value
        else:
            builder.broken(f"record {number}", "must be an object")
        number += 1
