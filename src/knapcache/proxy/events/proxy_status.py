"""The status that each proxy of a shared store publishes for the others, as a document of JSON that is compressed.

A status is read as any other input: a wrong type, a text that is too long or another version make it invalid. Names
that this version does not know are ignored, so that proxies of different versions can run side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from knapcache.errors import InvalidInput
from knapcache.proxy.events.events import MAX_TEXT, Event
from knapcache.proxy.events.history_parts import compress, decompress

VERSION = 1
MAX_EVENTS = 100
"""Recent requests in a status."""
MAX_UPSTREAMS = 1000
UNPUBLISHED = ("parts", "tried")
"""Fields of an event that are published as sums only, in the history and in the health of the upstreams."""
_LAST_TIME = 1e11
Count = Annotated[int, Field(ge=0, lt=1 << 62)]
Time = Annotated[float, Field(ge=0.0, lt=_LAST_TIME)]


class _Document(BaseModel):
    """A part of a status."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="ignore", allow_inf_nan=False, str_max_length=4 * MAX_TEXT
    )


class PublishedUpstream(_Document):
    """Health of an upstream, as one proxy sees it (upstream_health.py)."""

    name: str
    state: Literal["ok", "failing"]
    calls: Count
    errors: Count
    failing_since: Time | None
    reason: str
    failed: Count
    last_failure: Time | None = None
    health: Literal["healthy", "open", "half-open"] = "healthy"
    open_until: Time | None = None


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
    upstreams: Annotated[list[PublishedUpstream], Field(max_length=MAX_UPSTREAMS)]
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
