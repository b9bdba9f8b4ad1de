"""The proxy's request log, with the prefixes of requests that were sent to the provider.

Each line has a time and a field `prefix`. It is an object, in a CSV file as JSON text, and may be empty: an answer from
the cache has none.

    positions   [[id, tokens], …]: where prefixes end that can be marked, ascending; the last is the end of the request
    tokens      all input tokens
    system      index of the position at the end of the system prompt; -1: none
    kind        `tool` if the last message is the result of a tool, else `text`

Equal ids are equal prefixes. A line may have a `model`, which decides below which length nothing is cached.
"""

from __future__ import annotations

import io
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, Any, cast

from knapcache.errors import InvalidInput
from knapcache.features.prefix.lab.chains import Place
from knapcache.features.prefix.lab.fields import count, kind_of, time_of
from knapcache.features.prefix.request import Position, PrefixRequest
from knapcache.lab.traces import json_lines
from knapcache.lab.traces.base import BrokenLineError, TraceBuilder, find_time, short, whole
from knapcache.lab.traces.csv_fast import RemainingBytes
from knapcache.lab.traces.csv_file import chunks
from knapcache.lab.traces.source import TraceSource
from knapcache.lab.traces.table import field

EMPTY = "contains no prefixes: the proxy logs them in the folder `prefixes`, unless its setting `prefix` is off"
"""The error for a request log, which has no prefixes."""


def read(source: TraceSource, minimum_of: Callable[[str], int]) -> Iterator[PrefixRequest]:
    """Yield the requests that have prefixes; raises InvalidInput for a broken line."""
    builder = TraceBuilder(source.path, None)
    with source.open() as file:
        for place, row in rows(file, builder):
            try:
                request = parse(row, minimum_of)
            except BrokenLineError as error:
                builder.broken(place(), str(error))
            else:
                yield request


def rows(file: IO[bytes], builder: TraceBuilder) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield the place and the fields of each line that has a prefix, of JSON lines or of CSV."""
    if cast(Any, file).peek(4)[:4].removeprefix(BOM_UTF8).startswith(b"{"):
        for line, row in json_lines.objects(file, builder):
            if row.get("prefix") is not None:
                yield f"line {line}".__str__, row
        return

    def find(header: list[str]) -> dict[str, int]:
        time = find_time(header)
        if time is None or "prefix" not in header:
            raise InvalidInput(f"{builder.path} has no column {'time' if time is None else 'prefix'!r}")
        names = {"time": time, "prefix": "prefix"} | ({"model": "model"} if "model" in header else {})
        return {name: header.index(column) for name, column in names.items()}

    whole_file = RemainingBytes(b"", file)  # a last line that is still being written is not broken
    for values, place in chunks(io.BufferedReader(whole_file), builder, find, cut=lambda: whole_file.cut):
        for k, fields in enumerate(zip(*values.values(), strict=True)):
            row = dict(zip(values, fields, strict=True))
            if not row["prefix"]:
                continue
            try:
                row["prefix"] = json_lines.parse(row["prefix"].encode("utf-8", "surrogateescape"))
            except BrokenLineError as error:
                builder.broken(place(k), f"prefix is {error}")
            yield partial(place, k), row


def parse(row: dict[str, Any], minimum_of: Callable[[str], int]) -> PrefixRequest:
    """Return the request of a line; raises BrokenLineError."""
    prefix = row["prefix"]
    if not isinstance(prefix, dict):
        raise BrokenLineError(f"prefix must be an object, not {short(prefix)}")
    tokens, positions = count("tokens", field(prefix, "tokens")), positions_of(field(prefix, "positions"))
    if positions[-1].tokens > tokens:
        raise BrokenLineError(f"the last position is {positions[-1].tokens} tokens, and the request has only {tokens}")
    system = whole("system", prefix.get("system", -1))
    if not -1 <= system < len(positions):
        raise BrokenLineError(f"system must be an index of the {len(positions)} positions, or -1, not {short(system)}")
    return PrefixRequest(
        time=time_of("time", field(row, "time")),
        positions=positions,
        tokens=tokens,
        system=system,
        kind=kind_of(field(prefix, "kind")),
        minimum=minimum_of(str(row.get("model") or "")),
    )


def positions_of(value: Any) -> list[Position]:
    """Return positions; raises BrokenLineError."""
    if not isinstance(value, list) or not value:
        raise BrokenLineError(f"positions must be a list of [id, tokens], not {short(value)}")
    found: list[Position] = []
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) not in (str, int):
            raise BrokenLineError(f"a position must be [id, tokens], not {short(pair)}")
        tokens = count("tokens of a position", pair[1])
        if found and tokens < found[-1].tokens:
            raise BrokenLineError(f"positions must ascend, and {tokens} tokens come after {found[-1].tokens}")
        found.append(Position(pair[0], tokens))
    return found
