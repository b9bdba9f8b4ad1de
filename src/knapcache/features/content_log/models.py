"""Requests and responses of the admin API about the content log."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from knapcache.proxy.admin.models import MAX_SERIAL, Count, Name, QueryInt, RequestModel, ResponseModel


def _time_from_query(text: Any) -> Any:
    """Convert a query parameter to a Unix time. Other text is left to the strict model, which rejects it."""
    try:
        return float(text) if isinstance(text, str) else text
    except ValueError:
        return text


Time = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False, description="Unix time.")]
QueryTime = Annotated[Time, BeforeValidator(_time_from_query)]
Words = Annotated[
    str, Field(max_length=500, description='Words that must all occur; "a phrase" in quotes; word* by its beginning.')
]


class LogQuery(RequestModel):
    """Parameters of GET /log."""

    text: Words = ""
    model: Annotated[Name, Field(description="A pattern such as gpt-4o*. Empty: all.")] = ""
    tenant: Annotated[Name, Field(description="Empty: all.")] = ""
    outcome: Annotated[Name, Field(description="Such as hit or miss. Empty: all.")] = ""
    since: QueryTime | SkipJsonSchema[None] = None
    until: QueryTime | SkipJsonSchema[None] = None
    before: Annotated[QueryInt | SkipJsonSchema[None], Field(ge=1, le=MAX_SERIAL, description="Older than line N.")] = (
        None
    )
    limit: Annotated[QueryInt, Field(ge=1, le=200)] = 50


class LogPath(RequestModel):
    """Path parameter of /log/lines/{line}."""

    line: Annotated[QueryInt, Field(ge=1, le=MAX_SERIAL, description="Number of a line, as in GET /log.")]


class LogPurge(RequestModel):
    """Conditions of a purge of lines. Lines that meet all of them are deleted. `all` is given without others."""

    text: Annotated[Words | SkipJsonSchema[None], Field(exclude=True)] = None  # not in the audit log
    model: Name | SkipJsonSchema[None] = None
    tenant: Name | SkipJsonSchema[None] = None
    before: Time | SkipJsonSchema[None] = None
    all: Annotated[bool | SkipJsonSchema[None], Field(json_schema_extra={"const": True})] = None
    dry_run: Annotated[bool, Field(description="Delete nothing; return how many lines would be deleted.")] = False

    @model_validator(mode="before")
    @classmethod
    def _one_condition(cls, data: Any) -> Any:
        if isinstance(data, dict):
            given = [name for name in data if name != "dry_run"]
            if not given or ("all" in given and len(given) > 1):
                raise ValueError("give text, model, tenant or before, or all by itself")
            if None in data.values() or data.get("all") is False or data.get("text") == "" or data.get("model") == "":
                raise ValueError("null, false and empty texts are not conditions")
        return data


class LogRow(ResponseModel):
    """A line of the content log."""

    id: int
    time: float
    tenant: str
    model: str
    endpoint: str
    route: Annotated[str, Field(description="Name of the route that applied; empty: none.")]
    outcome: str
    status: int
    stream: bool
    key: str
    upstream: str
    usd: float | None
    cost: float
    tokens: Count
    size: Count
    seconds: float
    upstream_seconds: float
    cut: Annotated[bool, Field(description="Whether a part of request or answer was left out.")]


class LogExcerpt(LogRow):
    """A line that was found."""

    excerpt: Annotated[str, Field(description="Found words are between U+0002 and U+0003.")]


class LogPage(ResponseModel):
    """Lines, newest first."""

    rows: list[LogExcerpt]


class LogLine(LogRow):
    """A line with its content, after redaction."""

    prompt: Annotated[str, Field(description="System prompt and last user text.")]
    answer: Annotated[str, Field(description="Text of the answer.")]
    request: dict[str, Any]
    response: dict[str, Any]


class PurgedLines(ResponseModel):
    """Result of a purge."""

    recorded: ClassVar[frozenset[str]] = frozenset({"deleted"})

    deleted: Count
    dry_run: bool
