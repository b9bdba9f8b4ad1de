"""CSV of sessions, with the columns

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

from collections.abc import Iterator, Sequence
from functools import partial

from knapcache.errors import InvalidInput
from knapcache.features.prefix.lab.chains import Place, SharingRequest
from knapcache.features.prefix.lab.fields import count, kind_of, time_of
from knapcache.lab.traces.base import BrokenLineError, TraceBuilder, short, whole
from knapcache.lab.traces.csv_file import chunks
from knapcache.lab.traces.source import TraceSource

COLUMNS = (
    "time", "session", "request", "parent", "shared_tokens", "input_tokens", "output_tokens", "system_tokens", "kind",
    "model",
)  # fmt: skip


def read(source: TraceSource) -> Iterator[tuple[Place, SharingRequest]]:
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
                    request = parse(row)
                except BrokenLineError as error:
                    builder.broken(place(k), str(error))
                else:
                    yield partial(place, k), request


def parse(row: Sequence[str]) -> SharingRequest:
    """Return the request of a row; raises BrokenLineError."""
    time, session, number, parent, shared, tokens, _, system, kind, model = row
    number_of_parent, common, length = (
        whole("parent", parent),
        count("shared_tokens", shared),
        count("input_tokens", tokens, 1),
    )
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
