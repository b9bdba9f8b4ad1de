"""The documents that each proxy of a shared store publishes for the others: its status, and its history in parts.

    status    host, version, role, health of upstreams, recent requests
    open      the totals, and all rows from the boundary on. It changes with every request, and has some 30 rows
    minutes, hours, days
              the rows before the boundary, which never change. A new part is made when its boundary moves: every ten
              minutes, hour and day. Minutes of a day are 1,560 rows, which take a thread 40 ms

A part is its boundary and a history document (history_file.py), a status is JSON; both are compressed. What is read is
validated as any other input: a wrong type, a text that is too long or another version raise InvalidInput. Names in a
status that this version does not know are ignored, so that proxies of different versions can run side by side.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from copy import deepcopy
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from knapcache.errors import InvalidInput
from knapcache.proxy.events.events import MAX_TEXT, Event
from knapcache.proxy.events.feature_sums import TotalsClasses
from knapcache.proxy.events.history_file import NO_TOTALS, HistoryTable, pack, unpack
from knapcache.proxy.events.upstream_health import Count, Time, UpstreamStatus
from knapcache.proxy.events.usage import UsageRow, sum_rows

BOUNDARY_STEP = 600
"""Seconds between boundaries, equal at all proxies. Readers recompute their sums once per step."""
CLOSED = ("minutes", "hours", "days")
MAX_ROWS = 1600
"""Rows of a closed part: all minutes and hours. Parts that are too large get fewer (publisher.py)."""
MAX_PLAIN = 4 << 20
"""Bytes of a part or a status before it is compressed."""
_LEVEL = 1
"""Of zlib. Numbers hardly compress: level 6 saves another 7 %, and takes three times as long."""
_BOUNDARY = re.compile(rb"([0-9]{1,10}) ([0-9]{1,10}) ([0-9]{1,10})\n")
VERSION = 1
MAX_EVENTS = 100
"""Recent requests in a status."""
MAX_UPSTREAMS = 1000
UNPUBLISHED = ("parts", "tried")
"""Fields of an event that are published as sums only, in the history and in the health of the upstreams."""


class Boundary(NamedTuple):
    """The first minute, hour and day of the part `open`, as history_file.py counts them."""

    minutes: int
    hours: int
    days: int


def open_part(table: HistoryTable, boundary: Boundary) -> HistoryTable:
    """Return a copy of the totals, and of the rows from the boundary on."""
    found = HistoryTable(since=table.since, total=sum_rows([table.total]))
    found.models = {name: sum_rows([row]) for name, row in table.models.items()}
    found.sums, found.unread = deepcopy(table.sums), table.unread
    found.tenants = {name: sum_rows([row]) for name, row in table.tenants.items()}
    for kind, first in zip(CLOSED, boundary, strict=True):
        rows: dict[int, UsageRow] = getattr(found, kind)
        rows.update({k: sum_rows([row]) for k, row in getattr(table, kind).items() if k >= first})
    return found


def closed_part(table: HistoryTable, boundary: Boundary, kind: str, limit: int) -> HistoryTable:
    """Return a copy of the newest rows of one kind before the boundary. Older days are added to the oldest one."""
    found = HistoryTable(since=table.since)
    end: int = getattr(boundary, kind)
    rows: dict[int, UsageRow] = getattr(found, kind)
    numbers = sorted(k for k in getattr(table, kind) if k < end)
    kept = numbers[-limit:]
    rows.update({k: sum_rows([getattr(table, kind)[k]]) for k in kept})
    if kind == "days":
        for k in numbers[: len(numbers) - len(kept)]:
            rows[kept[0]].add(getattr(table, kind)[k])
    return found


def encode_part(boundary: Boundary, table: HistoryTable) -> bytes:
    return compress(b"%d %d %d\n" % boundary + pack(table))


def decode_part(document: bytes, totals: TotalsClasses = NO_TOTALS) -> tuple[Boundary, HistoryTable]:
    """Return boundary and rows. Raises InvalidInput for anything but the result of `encode_part`.

    totals: classes for the sums of features.
    """
    plain = decompress(document)
    match = _BOUNDARY.match(plain)
    if match is None:
        raise InvalidInput("a part of a history must begin with its boundary")
    return Boundary(*map(int, match.groups())), unpack(plain[match.end() :], totals, whole=False)


def compress(plain: bytes) -> bytes:
    return zlib.compress(plain, _LEVEL)


def decompress(document: bytes) -> bytes:
    """Return a document of at most MAX_PLAIN bytes. Raises InvalidInput."""
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(document, MAX_PLAIN)
    except zlib.error as error:
        raise InvalidInput(f"not compressed: {error}") from None
    if not stream.eof:
        raise InvalidInput(f"a document must be complete, with at most {MAX_PLAIN} bytes")
    return plain


class _Document(BaseModel):
    """A part of a status."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="ignore", allow_inf_nan=False, str_max_length=4 * MAX_TEXT
    )


_fields: dict[str, Any] = {
    name: (annotation, Event._field_defaults.get(name, ...))
    for name, annotation in Event.__annotations__.items()
    if name not in UNPUBLISHED
}
_PublishedEvent = create_model("_PublishedEvent", __base__=_Document, serial=(Count, ...), **_fields)
"""An event and its serial."""


class PublishedStatus(_Document):
    """The status that a proxy publishes for the others."""

    version: Literal[1]
    id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    host: Annotated[str, Field(min_length=1, max_length=255)]
    release: Annotated[str, Field(max_length=64)]
    """Version of knapcache."""
    started: Time
    time: Time
    """When it was published: every earlier request is in it, unless there were too many."""
    workers: Annotated[int, Field(ge=1, le=1000)]
    owner: bool
    requests: Count
    """All requests in its history."""
    upstreams: Annotated[list[UpstreamStatus], Field(max_length=MAX_UPSTREAMS)]
    recent: Annotated[list[_PublishedEvent], Field(max_length=MAX_EVENTS)]  # type: ignore[valid-type]

    @cached_property
    def events(self) -> list[tuple[int, Event]]:
        """Return serial and event of the recent requests."""
        return [
            (row.serial, Event(**{name: getattr(row, name) for name in _fields}))  # type: ignore[attr-defined]
            for row in self.recent
        ]


def encode_status(status: dict[str, Any], recent: Sequence[tuple[int, Event]]) -> bytes:
    """Return the document of a status. status: the fields of PublishedStatus but version and recent."""
    events = [{"serial": serial} | event._replace(parts={}, tried=())._asdict() for serial, event in recent]
    return compress(orjson.dumps({"version": VERSION, **status, "recent": events}))


def decode_status(document: bytes) -> PublishedStatus:
    """Return the status. Raises InvalidInput."""
    try:
        return PublishedStatus.model_validate_json(decompress(document))
    except ValidationError as error:
        raise InvalidInput(f"not a status of version {VERSION}: {error.error_count()} problems") from None
