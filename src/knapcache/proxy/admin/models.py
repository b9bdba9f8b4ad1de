"""Requests and responses of the admin API as pydantic models. The OpenAPI document is generated from them (openapi.py).

Requests are strict: unknown names, wrong types and values out of range are errors. `parse` turns the first error into
one line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.json_schema import SkipJsonSchema

from knapcache.proxy.admin_routes import RequestModel as RequestModel
from knapcache.proxy.admin_routes import ResponseModel as ResponseModel
from knapcache.proxy.http.asgi_request import RequestRejected
from knapcache.tags import MAX_TAGS, TAG


def _from_query(text: Any) -> Any:
    """Convert a query parameter to an integer or a boolean. Other text is left to the strict model, which rejects
    it.
    """
    if isinstance(text, str):
        if re.fullmatch(r"-?[0-9]{1,16}", text):
            return int(text)
        return {"true": True, "false": False}.get(text, text)
    return text


Key = Annotated[str, Field(pattern=r"\A[0-9a-f]{64}\z", json_schema_extra={"pattern": "^[0-9a-f]{64}$"})]
Name = Annotated[str, Field(max_length=200)]
Tag = Annotated[str, Field(pattern=rf"\A{TAG.pattern}\z", json_schema_extra={"pattern": f"^{TAG.pattern}$"})]
DigestPrefix = Annotated[str, Field(pattern=r"\A[0-9a-f]{1,16}\z", json_schema_extra={"pattern": "^[0-9a-f]{1,16}$"})]
QueryInt = Annotated[int, BeforeValidator(_from_query)]
QueryBool = Annotated[bool, BeforeValidator(_from_query)]
Count = Annotated[int, Field(ge=0)]
MAX_SERIAL = 2**53 - 1
"""The largest whole number of JavaScript."""


class HistoryQuery(RequestModel):
    """Parameters of GET /history."""

    span: Literal["hour", "day", "month", "all"] = "day"


class EntriesQuery(RequestModel):
    """Parameters of GET /entries."""

    search: Annotated[
        Name,
        Field(
            description="Text in key, model, tenant or tags; for operators, with show_content also in the first words."
        ),
    ] = ""
    model: Annotated[Name, Field(description="Entries of this model only. Empty: all.")] = ""
    tenant: Annotated[Name, Field(description="Entries of this tenant or namespace only. Empty: all.")] = ""
    tag: Annotated[Name, Field(description="Entries with this tag only. Empty: all.")] = ""
    sort: Literal["value", "size", "cost", "requests", "per_day", "age"] = "value"
    descending: QueryBool = True
    offset: Annotated[QueryInt, Field(ge=0, le=10**9)] = 0
    limit: Annotated[QueryInt, Field(ge=1, le=500)] = 50


class KeyPath(RequestModel):
    """Path parameter of /entries/{key}."""

    key: Annotated[Key, Field(description="The digest of a request, as in x-knapcache-key.")]


class RequestsQuery(RequestModel):
    """Parameters of GET /requests."""

    after: Annotated[QueryInt, Field(ge=0, le=MAX_SERIAL, description="A serial number.")] = 0
    limit: Annotated[QueryInt, Field(ge=1, le=1000)] = 200


def check_conditions(data: Any, allowed: str) -> None:
    """Check the fields of a purge: conditions, or `all`. Raises ValueError."""
    if not isinstance(data, dict):
        return
    given = [name for name in data if name != "dry_run"]
    if not given or ("all" in given and len(given) > 1):
        raise ValueError(f"give {allowed}, or all by itself")
    if None in data.values() or data.get("all") is False:  # both would read as "no condition"
        raise ValueError("null and false are not conditions")


PURGE_CONDITIONS = ("key", "model", "tenant", "older_than", "tags", "system")


class Purge(RequestModel):
    """Conditions of a purge. Entries that meet all of them are removed. `all` stands without other conditions."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["all"], "not": {"anyOf": [{"required": [name]} for name in PURGE_CONDITIONS]}},
                {"not": {"required": ["all"]}, "anyOf": [{"required": [name]} for name in PURGE_CONDITIONS]},
            ]
        }
    )

    key: Key | SkipJsonSchema[None] = None
    model: Name | SkipJsonSchema[None] = None
    tenant: Annotated[Name | SkipJsonSchema[None], Field(description="A tenant's name, or a namespace.")] = None
    older_than: Annotated[float | SkipJsonSchema[None], Field(ge=0, le=1e12, description="Seconds.")] = None
    tags: Annotated[
        list[Tag] | SkipJsonSchema[None],
        Field(min_length=1, max_length=MAX_TAGS, description="Entries that have at least one of these tags."),
    ] = None
    system: Annotated[
        DigestPrefix | SkipJsonSchema[None], Field(description="The first digits of the system prompt's digest.")
    ] = None
    all: Annotated[bool | SkipJsonSchema[None], Field(json_schema_extra={"const": True})] = None
    dry_run: Annotated[bool, Field(description="Remove nothing; return what would be removed.")] = False

    @model_validator(mode="before")
    @classmethod
    def _one_condition(cls, data: Any) -> Any:
        check_conditions(data, f"at least one of {', '.join(PURGE_CONDITIONS)}")
        return data


class ErrorDetail(ResponseModel):
    """Message and type of an error."""

    message: str
    type: str


class Error(ResponseModel):
    """Every error response."""

    error: ErrorDetail


class EntryRow(ResponseModel):
    """A cached entry without its content."""

    key: Key
    endpoint: Annotated[str, Field(description="Empty: not known, because the store does not answer.")]
    words: Annotated[
        str | SkipJsonSchema[None], Field(description="First words of the prompt, if content is shown.")
    ] = None
    model: str
    tenant: Annotated[str, Field(description="The tenant's name.")]
    tags: Annotated[list[str], Field(description="Tags of the request that fetched the answer, sorted.")]
    system: Annotated[
        str, Field(description="Digest of the system prompt, 16 hex digits; empty: it has none, or it is not known.")
    ]
    size: Count
    cost: float
    usd: float | None
    seconds: float
    requests: float
    per_day: Annotated[float | None, Field(description="Requests per day; none below a day of age or ten requests.")]
    value: Annotated[float, Field(description="requests · cost")]
    density: Annotated[float, Field(description="value / size")]
    age: float
    expires_in: float | None


class EntryWithContent(EntryRow):
    """A cached entry, with its content if the setting show_content is on."""

    request: str | SkipJsonSchema[None] = None
    answer: str | SkipJsonSchema[None] = None


class EntryPage(ResponseModel):
    """A page of entries; `total` counts all that match."""

    total: Count
    entries: Annotated[Count, Field(description="All entries in the cache.")]
    content: Annotated[bool, Field(description="Whether the first words of prompts are shown and searched.")]
    searched: Annotated[Count, Field(description="Entries whose first words were searched, the newest first.")]
    rows: list[EntryRow]
    least_value_per_mb: Annotated[
        float, Field(description="Value per megabyte of the least valuable tenth of all entries: evicted first.")
    ]


class PurgePreview(ResponseModel):
    """What a purge would remove."""

    entries: Count
    bytes: Count
    value: Annotated[float, Field(description="Sum of requests · cost.")]
    rows: Annotated[list[EntryRow], Field(description="The most valuable of them, at most five.")]


class Purged(ResponseModel):
    """Number of removed entries; 0 with `dry_run`, which has a preview."""

    recorded: ClassVar[frozenset[str]] = frozenset({"purged"})

    purged: Count
    preview: PurgePreview | SkipJsonSchema[None] = None


class LoggedRequest(ResponseModel):
    """A finished request. The fields that all lists of them have."""

    time: float
    endpoint: str
    model: str
    tenant: str
    outcome: str
    status: int
    seconds: float
    stream: bool
    key: str
    size: Count
    cost: float
    usd: float | None
    tokens: Count
    upstream_seconds: float
    upstream: str
    route: Annotated[str, Field(description="Name of the route that applies; empty: none does.")]


class RequestRow(LoggedRequest):
    """A finished request."""

    serial: Count
    ttfb: float
    error: str
    usd_estimated: Annotated[
        float, Field(description="Dollars that limits have counted because the cost is not known.")
    ]
    saved: Annotated[bool, Field(description="Whether `usd` and `cost` were saved. Otherwise they were spent.")]
    proxy: Annotated[str, Field(description="Host of the proxy that served it; empty without a shared store.")] = ""


class RequestPage(ResponseModel):
    """Recent requests, oldest first."""

    serial: Annotated[
        Count,
        Field(
            description="That of the newest request. With a shared store it is the time in µs until which the requests "
            "of all proxies are known, and a later page may have some of the rows again."
        ),
    ]
    rows: list[RequestRow]


Kind = Literal[
    "hit", "similar", "stale", "coalesced", "bypass", "passthrough", "rejected", "failed", "asked", "too_old", "new",
    "different", "other_tenant", "evicted", "not_admitted", "not_stored", "expired", "lost", "purged", "unusable",
    "other_worker",
]  # fmt: skip


class RequestPath(RequestModel):
    """Path parameter of /requests/{serial}."""

    serial: Annotated[QueryInt, Field(ge=0, le=MAX_SERIAL, description="Serial number, as in GET /requests.")]


class FieldDifference(ResponseModel):
    """One field in which two requests differ."""

    field: str
    text: Annotated[str, Field(description="How it differs, without content.")]
    here: Annotated[str | None, Field(description="Value in this request; null: not set, or content is not shown.")]
    there: Annotated[str | None, Field(description="Value in the stored request.")]


class SimilarEntry(ResponseModel):
    """The entry whose request is most similar."""

    key: str
    endpoint: str
    model: str
    tenant: str
    created: Annotated[float, Field(description="When its answer was fetched.")]
    stored: Annotated[bool, Field(description="Whether its answer is still in the cache.")]
    words: Annotated[str | None, Field(description="First words of its prompt; null: content is not shown.")]
    differences: list[FieldDifference]


class Worth(ResponseModel):
    """Size, cost and request count of an answer, as the policy had them."""

    size: Annotated[float, Field(description="Bytes.")]
    cost: float
    requests: Annotated[float, Field(description="As the policy counts them.")]
    density: Annotated[float, Field(description="requests · cost / size")]


class Explanation(ResponseModel):
    """Why a request had its outcome."""

    kind: Kind
    title: str
    text: str
    at: Annotated[float | None, Field(description="Unix time of what is described, such as the eviction.")] = None
    own: Annotated[Worth | SkipJsonSchema[None], Field(description="The answer that was evicted or refused.")] = None
    rival: Annotated[Worth | SkipJsonSchema[None], Field(description="The answer that took its place.")] = None
    nearest: SimilarEntry | SkipJsonSchema[None] = None
    compared: Annotated[Count, Field(description="Entries that the request was compared with.")] = 0
    entries: Annotated[Count, Field(description="Entries in the cache.")] = 0


class RequestDetail(RequestRow):
    """A finished request, and why it had its outcome."""

    attempts: Annotated[list[int], Field(description="Status of each call to the upstream; 0: no response.")]
    tried: Annotated[list[str], Field(description="Upstreams that failed the request before, and why.")]
    reason: Annotated[str, Field(description="What in the request explains its outcome, such as its directives.")]
    words: Annotated[str | None, Field(description="First words of the prompt; null: unknown, or not shown.")]
    stored: Annotated[bool, Field(description="Whether its answer is in the cache now.")]
    answer: Annotated[str, Field(description="What became of its answer.")]
    why: Explanation


class Saved(ResponseModel):
    """Whether the state was written."""

    recorded: ClassVar[frozenset[str]] = frozenset({"saved"})

    saved: bool


M = TypeVar("M", bound=RequestModel)


def parse(model: type[M], values: Any) -> M:
    """Validate a request. Raises RequestRejected (400) with the first problem in one line."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise bad_request(_first_problem(model, error)) from None


def _first_problem(model: type[RequestModel], error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    # Fields are flat. Further texts in the location are pydantic's names of a union's members.
    name = ".".join(str(part) for k, part in enumerate(first["loc"]) if k == 0 or isinstance(part, int))
    if first["type"] == "extra_forbidden":
        return f"unknown name {name[:40]!r}; known names: {', '.join(model.model_fields) or 'none'}"
    message = first["msg"].removeprefix("Value error, ")
    return f"{name}: {message}" if name else message


def bad_request(message: str) -> RequestRejected:
    return RequestRejected(400, message, "invalid_request")


def parse_query(model: type[M], path: Mapping[str, str], query: list[tuple[str, str]]) -> M:
    """Validate path and query parameters. A parameter given twice, or also in the path, is an error."""
    values: dict[str, Any] = dict(path)
    for name, text in query:
        if name in path or name not in model.model_fields:
            known = [field for field in model.model_fields if field not in path]
            raise bad_request(f"unknown name {name[:40]!r}; known names: {', '.join(known) or 'none'}")
        if name in values:
            raise bad_request(f"{name} is given twice")
        values[name] = text
    return parse(model, values)
