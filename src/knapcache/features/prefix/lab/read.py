"""Read traces of prefixes. The format is detected by content.

    sessions   CSV: time,session,request,parent,shared_tokens,input_tokens,output_tokens,system_tokens,kind,model
    log        the proxy's request log, with a `prefix` field

Files may be compressed with gzip or zstd. Several files form one trace, and a directory means its files. Requests are
replayed in the order of their times; requests of the same time stay in the order of the files.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from knapcache.errors import InvalidInput
from knapcache.features.prefix.lab import log, sessions
from knapcache.features.prefix.lab.chains import Place, SharingRequest, to_prefix_requests
from knapcache.features.prefix.request import PrefixRequest
from knapcache.lab.traces import json_lines
from knapcache.lab.traces.base import BrokenLineError, Progress, short
from knapcache.lab.traces.read import SNIFF, file_progress, files
from knapcache.lab.traces.source import TraceSource

FORMATS = {
    "sessions": f"CSV with the columns {', '.join(sessions.COLUMNS)}",
    "log": "the proxy's prefix log",
}
REQUEST_LOG = frozenset({"time", "key", "size", "cost", "outcome"})
"""Columns by which the proxy's request log is recognised."""


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
            requests += log.read(source, minimum_of)
        else:
            sharing += [(request, one, place) for place, request in sessions.read(source)]
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
        raise InvalidInput(f"{name} {log.EMPTY if chosen == 'log' else 'contains no requests'}")
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
        raise InvalidInput(f"{path} {log.EMPTY}")
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
