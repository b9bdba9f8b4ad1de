"""Read traces of prefixes. The format is detected by content.

sessions   CSV with the columns of `lab/traces/sessions.py`

log        the proxy's prefix log: lines with a time, perhaps a model, and a field `prefix`. It is an object, in a CSV
           file as JSON text, and may be empty: an answer from the cache has none. Its fields are

    positions   [[id, tokens], …]: where prefixes end that can be marked, ascending; the last is the end of the
                request. Equal ids are equal prefixes
    tokens      all input tokens
    system      index of the position at the end of the system prompt; -1: none
    kind        `tool` if the last message is the result of a tool, else `text`

Files may be compressed with gzip or zstd. Several files form one trace, and a directory means its files. Requests are
replayed in the order of their times; requests of the same time stay in the order of the files.
"""

from __future__ import annotations

import io
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn, cast

from knapcache.errors import InvalidInput
from knapcache.features.prefix.lab.chains import to_prefix_requests
from knapcache.features.prefix.request import Position, PrefixRequest
from knapcache.lab.traces import json_lines
from knapcache.lab.traces.base import BrokenLineError, Progress, TraceBuilder, find_time, short, whole
from knapcache.lab.traces.csv_file import RemainingBytes, chunks
from knapcache.lab.traces.read import files, first_fields, not_a_trace, open_sources
from knapcache.lab.traces.sessions import (
    COLUMNS,
    Place,
    count,
    is_sessions,
    kind_of,
    sessions_by_time,
    time_of,
)
from knapcache.lab.traces.source import TraceSource
from knapcache.lab.traces.table import field

FORMATS = {
    "sessions": f"CSV with the columns {', '.join(COLUMNS)}",
    "log": "the proxy's prefix log",
}
REQUEST_LOG = frozenset({"time", "key", "size", "cost", "outcome"})
"""Columns by which the proxy's request log is recognised."""
NO_PREFIXES = "contains no prefixes: the proxy logs them in the folder `prefixes`, unless its setting `prefix` is off"
"""The error for a request log, which has no prefixes."""


@dataclass(frozen=True)
class PrefixTrace:
    """Requests with their prefixes, in the order of time."""

    requests: list[PrefixRequest]
    format: str

    @property
    def input_tokens(self) -> int:
        return sum(request.tokens for request in self.requests)


def read_prefix_trace(
    path: str | Path | Iterable[str | Path],
    minimum_of: Callable[[str], int],
    *,
    progress: Progress | None = None,
) -> PrefixTrace:
    """Read a file, several files, or the files of a directory; raises InvalidInput with the place of a broken line.

    minimum_of   returns the tokens below which a model's prefixes are not cached, as `Tariff.minimum_of`
    """
    paths = files(path)
    chosen = detect(paths[0])
    sources = open_sources(paths, chosen, detect, progress)
    if chosen == "log":
        logged = (request for source in sources for request in read_log(source, minimum_of))
        requests = sorted(logged, key=lambda request: request.time)
    else:
        sharing = sessions_by_time(sources)

        def broken(index: int, reason: str) -> NoReturn:
            _, file, place = sharing[index]
            raise InvalidInput(f"{file}, {place()}: {reason}")

        requests = to_prefix_requests([request for request, _, _ in sharing], minimum_of, broken)
    if not requests:
        name = paths[0] if len(paths) == 1 else f"the {len(paths)} files from {paths[0]} to {paths[-1]}"
        raise InvalidInput(f"{name} {NO_PREFIXES if chosen == 'log' else 'contains no requests'}")
    trace = PrefixTrace(requests, chosen)
    if not trace.input_tokens:
        raise InvalidInput(f"{paths[0]} contains no input tokens")
    return trace


def detect(path: Path) -> str:
    """Return the format of a file; raises InvalidInput if it is unknown."""
    names = first_fields(path)
    if "prefix" in names:
        return "log"
    if is_sessions(names):
        return "sessions"
    if names >= REQUEST_LOG:
        raise InvalidInput(f"{path} {NO_PREFIXES}")
    raise not_a_trace(path, "prefixes", names, FORMATS)


def read_log(source: TraceSource, minimum_of: Callable[[str], int]) -> Iterator[PrefixRequest]:
    """Yield the requests that have prefixes; raises InvalidInput for a broken line."""
    builder = TraceBuilder(source.path, None)
    with source.open() as file:
        for place, row in log_rows(file, builder):
            try:
                request = parse_prefix(row, minimum_of)
            except BrokenLineError as error:
                builder.broken(place(), str(error))
            else:
                yield request


def log_rows(file: IO[bytes], builder: TraceBuilder) -> Iterator[tuple[Place, dict[str, Any]]]:
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


def parse_prefix(row: dict[str, Any], minimum_of: Callable[[str], int]) -> PrefixRequest:
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
