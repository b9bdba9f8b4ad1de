"""Responses of the admin API about one request: its details, and why it was a hit or a miss."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from knapcache.proxy.admin.models import MAX_SERIAL, Count, QueryInt, RequestModel, RequestRow, ResponseModel

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
    """What an answer was worth to the policy."""

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
