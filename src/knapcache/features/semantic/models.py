"""Requests and responses of the admin API about the semantic tier: GET /semantic and POST /semantic/feedback."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from knapcache.features.semantic.event import MatchKind, MatchVerdict
from knapcache.features.semantic.settings import SemanticMode
from knapcache.proxy.admin.models import Count, Name, QueryInt, RequestModel, ResponseModel

Marks = list[tuple[int, int]]


class SemanticQuery(RequestModel):
    """Parameters of GET /semantic."""

    scope: Annotated[Name | SkipJsonSchema[None], Field(description="Matches of this tenant only.")] = None
    limit: Annotated[QueryInt, Field(ge=1, le=500, description="The newest matches.")] = 50


class MatchFeedback(RequestModel):
    """Body of POST /semantic/feedback."""

    match: Annotated[str, Field(min_length=1, max_length=100, description="As in the header x-knapcache-match.")]
    verdict: Annotated[
        Literal["different"], Field(description="The stored answer was wrong for the question: the two differ.")
    ]


class MarkedMatch(ResponseModel):
    """A match that was marked as wrong."""

    match: str
    scope: str
    verdict: Literal["different"]


class LevelStatus(ResponseModel):
    """One level of risk: matches whose risk is at most its threshold."""

    threshold: float
    labels: Count
    wrong: Count
    e_value: Annotated[float, Field(description="Evidence that fewer are wrong than allowed.")]
    bound: Annotated[float, Field(description="The least error that the labels certify; 1: none.")]
    certified: Annotated[bool, Field(description="Whether the evidence is enough.")]
    serves: Annotated[
        bool,
        Field(description="Whether its matches are served while the mode is on."),
    ]


class OtherError(ResponseModel):
    """What would be served with another `semantic_error`."""

    error: float
    certified: Annotated[bool, Field(description="Whether the labels so far certify any level.")]
    share: Annotated[float, Field(description="Share of the recent questions that would be served.")]


class SemanticUsage(ResponseModel):
    """Sums of some time."""

    requests: Annotated[Count, Field(description="Requests that reached the tier: the sum of the next seven.")]
    served: Annotated[Count, Field(description="Answered by similarity.")]
    shadow: Annotated[Count, Field(description="There was a match, and it was not served.")]
    audit: Annotated[Count, Field(description="There was a match that could be served, and it was checked instead.")]
    none: Annotated[Count, Field(description="There was no match.")]
    excluded: Annotated[Count, Field(description="Requests of a form that is never matched.")]
    refused: Annotated[Count, Field(description="The client asked not to be served by similarity.")]
    failed: Annotated[Count, Field(description="The tier could not look them up; `reasons` says why.")]
    labels: Annotated[
        dict[str, Count],
        Field(description="Judged matches by source (shadow, audit, feedback) and verdict, as in `shadow same`."),
    ]
    reasons: Annotated[
        dict[str, Count], Field(description="Requests by the exclusion, veto or failure without a match.")
    ]
    seconds: Annotated[float, Field(description="Time that the tier took before the requests went on.")]
    usd_saved: Annotated[float, Field(description="What the served answers had cost, as far as prices are known.")]
    priced: Annotated[Count, Field(description="Served answers of known price.")]
    judge_usd: Annotated[float, Field(description="Paid for verdicts.")]


class ScopeStatus(ResponseModel):
    """The tier for one tenant."""

    scope: Annotated[str, Field(description="The tenant; empty without tenants.")]
    mode: SemanticMode
    state: Annotated[
        Literal["shadow", "serving"],
        Field(description="`serving`: the mode is on and a level is certified. `shadow`: nothing is served."),
    ]
    error: Annotated[float, Field(description="The allowed share of wrong answers: semantic_error.")]
    level: Annotated[int, Field(description="Index of the widest level that is certified; -1: none.")]
    bound: Annotated[float | None, Field(description="The certified share of wrong answers; null: none is.")]
    needed: Annotated[float, Field(description="The e-value that certifies a level.")]
    alarms: Annotated[Count, Field(description="How often wrong labels ended the certificate of a served level.")]
    labels: Annotated[dict[str, Count], Field(description="Labels that decide, by source.")]
    levels: list[LevelStatus]
    others: list[OtherError]
    today: SemanticUsage
    all: SemanticUsage


class MatchRow(ResponseModel):
    """A recent match."""

    id: str
    time: float
    scope: str
    kind: MatchKind
    key: Annotated[str, Field(description="Key of the request.")]
    matched_key: Annotated[str, Field(description="Key of the entry that matched.")]
    similarity: float
    risk: Annotated[float, Field(description="Estimated probability that the stored answer is wrong.")]
    level: int
    verdict: Annotated[MatchVerdict, Field(description="Empty: not judged, or not yet.")]
    rung: Annotated[str, Field(description="What decided the verdict; `feedback`: a person.")]
    question: Annotated[str | None, Field(description="Null: content is not shown.")]
    matched_question: str | None
    marks: Annotated[Marks, Field(description="Start and end of the words that are only in `question`.")]
    matched_marks: Annotated[Marks, Field(description="The same for `matched_question`.")]


class SemanticStatus(ResponseModel):
    """The semantic tier."""

    mode: Annotated[SemanticMode, Field(description="The setting `semantic`.")]
    error: Annotated[float, Field(description="The setting `semantic_error`.")]
    running: Annotated[bool, Field(description="Whether the tier runs: it is on for the proxy or for a tenant.")]
    problem: Annotated[str, Field(description="Why it cannot match now; empty if it can.")]
    embedding: Annotated[str, Field(description="Build of the embedding model; empty if it does not run.")]
    questions: Annotated[Count, Field(description="Questions in the index.")]
    limit: Annotated[Count, Field(description="The setting `semantic_questions`: the oldest are removed beyond it.")]
    judge: Annotated[str, Field(description="The model that judges what nothing simpler decides; empty: none.")]
    since: Annotated[float | None, Field(description="When the first request reached the tier; null: none has.")]
    content: Annotated[bool, Field(description="Whether questions are shown.")]
    today: Annotated[SemanticUsage, Field(description="All scopes together.")]
    all: SemanticUsage
    scopes: list[ScopeStatus]
    matches: Annotated[list[MatchRow], Field(description="Newest first.")]
