"""Read traces of prefixes. The format is detected by content.

sessions   CSV with the columns

    time            seconds, or a date and time
    session         name of the session
    request         number of the request in its session
    parent          number of the earlier request of the session with the longest common prefix; -1: none
    shared_tokens   length of that prefix
    input_tokens    length of the request
    output_tokens   length of the answer; not used
    system_tokens   length of tools and system prompt; 0: none, or unknown
    kind            `tool` if the last message is the result of a tool, else `text`
    model           decides below which length nothing is cached; may be empty

log        the proxy's prefix log: lines with a time, perhaps a model, and a field `prefix`. It is an object, in a CSV
           file as JSON text, and may be empty: an answer from the cache has none. Its fields are

    positions   [[id, tokens], …]: where prefixes end that can be marked, ascending; the last is the end of the
                request. Equal ids are equal prefixes
    tokens      all input tokens
    system      index of the position at the end of the system prompt; -1: none
    kind        as above

Files may be compressed with gzip or zstd. Several files form one trace, and a directory means its files. Requests are
replayed in the order of their times; requests of the same time stay in the order of the files.
"""

from __future__ import annotations

import csv
import io
import math
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn, cast

from knapcache.errors import InvalidInput
from knapcache.features.prefix.lab.chains import Place, SharingRequest, to_prefix_requests
from knapcache.features.prefix.request import Position, PrefixRequest
from knapcache.lab.traces import json_lines
from knapcache.lab.traces.base import (
    TIME_UNITS,
    BrokenLineError,
    Progress,
    TraceBuilder,
    find_time,
    seconds_of,
    short,
    whole,
)
from knapcache.lab.traces.csv_file import RemainingBytes, chunks
from knapcache.lab.traces.read import SNIFF, file_progress, files
from knapcache.lab.traces.source import TraceSource
from knapcache.lab.traces.table import field

COLUMNS = (
    "time", "session", "request", "parent", "shared_tokens", "input_tokens", "output_tokens", "system_tokens", "kind",
    "model",
)  # fmt: skip
FORMATS = {
    "sessions": f"CSV with the columns {', '.join(COLUMNS)}",
    "log": "the proxy's prefix log",
}
REQUEST_LOG = frozenset({"time", "key", "size", "cost", "outcome"})
"""Columns by which the proxy's request log is recognised."""
NO_PREFIXES = "contains no prefixes: the proxy logs them in the folder `prefixes`, unless its setting `prefix` is off"
"""The error for a request log, which has no prefixes."""
KINDS = ("tool", "text")
MAX_TOKENS = 2**53
"""Sums of tokens and prices are exact below it."""


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
    sharing: list[tuple[SharingRequest, Path, Place]] = []
    requests: list[PrefixRequest] = []
    for one, report in zip(paths, file_progress(paths, progress), strict=True):
        if (other := detect(one)) != chosen:
            raise InvalidInput(
                f"{paths[0]} is {chosen} and {one} is {other}: all files of a trace must have the same format"
            )
        source = TraceSource(one, report)
        if chosen == "log":
            requests += read_log(source, minimum_of)
        else:
            sharing += [(request, one, place) for place, request in read_sessions(source)]
    if chosen == "log":
        requests.sort(key=lambda request: request.time)
    else:
        sharing.sort(key=lambda found: found[0].time)

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
    with TraceSource(path).open() as file:
        start = file.read(SNIFF)
    lines = start.removeprefix(b"\xef\xbb\xbf").lstrip().splitlines()
    if not lines:
        raise InvalidInput(f"{path} is empty")
    names = object_fields(lines[0]) if lines[0].startswith(b"{") else header_fields(lines[0])
    if "prefix" in names:
        return "log"
    if len(names & {"session", "parent", "shared_tokens", "input_tokens"}) > 1:  # one may be missing: say so later
        return "sessions"
    if names >= REQUEST_LOG:
        raise InvalidInput(f"{path} {NO_PREFIXES}")
    found = f", but has the fields {', '.join(map(short, sorted(names)[:12]))}" if names else ""
    raise InvalidInput(f"{path} is not a trace of prefixes{found}; allowed are: {'; '.join(FORMATS.values())}")


def object_fields(line: bytes) -> set[str]:
    """Return the names of the fields of a JSON object; none if it is not valid."""
    try:
        return set(json_lines.parse(line) or ())
    except BrokenLineError:
        return set()


def header_fields(line: bytes) -> set[str]:
    """Return the names in the header of a CSV file; none if it is not valid."""
    try:
        return set(next(csv.reader([line.decode()], strict=True), ()))
    except (UnicodeDecodeError, csv.Error):
        return set()


def read_sessions(source: TraceSource) -> Iterator[tuple[Place, SharingRequest]]:
    """Yield the place and the request of each row; raises InvalidInput for a broken row."""
    builder = TraceBuilder(source.path, None)

    def find(header: list[str]) -> dict[str, int]:
        for name in COLUMNS:
            if header.count(name) != 1:
                wrong = "no column" if name not in header else "more than one column"
                raise InvalidInput(f"{source.path} has {wrong} {name!r}: needed are {','.join(COLUMNS)}")
        return {name: header.index(name) for name in COLUMNS}

    with source.open() as file:
        for values, place in chunks(file, builder, find):
            for k, row in enumerate(zip(*values.values(), strict=True)):
                try:
                    request = parse_session(row)
                except BrokenLineError as error:
                    builder.broken(place(k), str(error))
                else:
                    yield partial(place, k), request


def parse_session(row: Sequence[str]) -> SharingRequest:
    """Return the request of a row; raises BrokenLineError."""
    time, session, number, parent, shared, tokens, _, system, kind, model = row
    number_of_parent, common = whole("parent", parent), count("shared_tokens", shared)
    length = count("input_tokens", tokens, 1)
    if number_of_parent < -1:
        raise BrokenLineError(f"parent must be the number of a request, or -1, not {short(parent)}")
    if number_of_parent < 0 < common:
        raise BrokenLineError(f"shared_tokens must be 0 without a parent, not {common}")
    if common > length:
        raise BrokenLineError(f"shared_tokens is {common}, and the request has only {length} tokens")
    return SharingRequest(
        time=time_of("time", time),
        id=(session, count("request", number)),
        parent=(session, number_of_parent) if number_of_parent >= 0 else None,
        shared_tokens=common,
        input_tokens=length,
        system_tokens=count("system_tokens", system),
        kind=kind_of(kind),
        model=model,
    )


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


def count(name: str, value: Any, least: int = 0) -> int:
    """Convert a number of tokens, or of a request; raises BrokenLineError."""
    number = whole(name, value)
    if not least <= number < MAX_TOKENS:
        raise BrokenLineError(f"{name} must be at least {least} and below 2^53, not {short(number)}")
    return number


def time_of(name: str, value: Any) -> float:
    """Convert a time to seconds; raises BrokenLineError."""
    time = seconds_of(name, value)
    if not math.isfinite(time):
        raise BrokenLineError(f"{name} must be finite, not {time}")
    for limit, factor in TIME_UNITS:
        if time >= limit:
            return time * factor
    return time


def kind_of(value: Any) -> str:
    """Return the kind of a request; raises BrokenLineError."""
    if value not in KINDS:
        raise BrokenLineError(f"kind must be {' or '.join(KINDS)}, not {short(value)}")
    return str(value)
