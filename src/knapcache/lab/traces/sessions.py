"""Traces of sessions: CSV with the columns

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
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from knapcache.errors import InvalidInput
from knapcache.lab.traces.base import TIME_UNITS, BrokenLineError, TraceBuilder, seconds_of, short, whole
from knapcache.lab.traces.csv_file import chunks
from knapcache.lab.traces.source import TraceSource

COLUMNS = (
    "time", "session", "request", "parent", "shared_tokens", "input_tokens", "output_tokens", "system_tokens", "kind",
    "model",
)  # fmt: skip
KINDS = ("tool", "text")
MAX_TOKENS = 2**53
"""Sums of tokens and prices are exact below it."""
Id = tuple[Hashable, ...]
Place = Callable[[], str]
"""Returns the place of a request in its file, such as `line 17`."""


class SharingRequest(NamedTuple):
    """A request of a trace, and the earlier request with which it shares the longest prefix."""

    time: float
    id: Id
    parent: Id | None
    shared_tokens: int
    input_tokens: int
    system_tokens: int
    """0: none, or unknown."""
    kind: str
    model: str


def is_sessions(names: set[str]) -> bool:
    """Return whether a header is that of sessions. One column may be missing: the reader says so."""
    return len(names & {"session", "parent", "shared_tokens", "input_tokens"}) > 1


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


def sessions_by_time(sources: Iterable[TraceSource]) -> list[tuple[SharingRequest, Path, Place]]:
    """Return the requests of files in the order of time, with the place of each. Raises InvalidInput."""
    found = [(request, source.path, place) for source in sources for place, request in read_sessions(source)]
    return sorted(found, key=lambda one: one[0].time)


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


def check_parent(request: SharingRequest, earlier: Mapping[Id, int]) -> None:
    """Raise BrokenLineError unless the parent is an earlier request that is long enough. earlier: tokens by request."""
    if request.id in earlier:
        raise BrokenLineError(f"request {shown(request.id)} occurs twice")
    if request.parent is None:
        return
    tokens = earlier.get(request.parent)
    if tokens is None:
        raise BrokenLineError(f"parent {shown(request.parent)} is not an earlier request")
    if request.shared_tokens > tokens:
        raise BrokenLineError(f"shared_tokens is {request.shared_tokens}, and the parent has only {tokens} tokens")


def shown(name: Id) -> str:
    return " of session ".join(str(part) for part in reversed(name))


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
