"""The semantic tier in the admin API: its state, its recent matches, and feedback on one of them.

Live state comes from the tier in this process, sums from the history, matches from the recent events of all processes
of this proxy.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from difflib import SequenceMatcher
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from knapcache.errors import InvalidInput
from knapcache.features.semantic.certificate import ALPHA, LEVELS
from knapcache.features.semantic.event import (
    MATCH_KINDS,
    MAX_MATCHES,
    MatchKind,
    MatchVerdict,
    RecentMatch,
    RecentMatches,
    SemanticEvent,
    VerdictEvent,
)
from knapcache.features.semantic.settings import SemanticMode, SemanticSettings
from knapcache.features.semantic.tier import SemanticTier
from knapcache.features.semantic.totals import FEEDBACK, ScopeTotals, SemanticTotals
from knapcache.proxy.admin.admin_request import AdminRequest
from knapcache.proxy.admin.models import Count, Name, QueryInt, RequestModel, ResponseModel
from knapcache.proxy.admin_routes import AdminServices, Route
from knapcache.proxy.http.asgi_request import RequestRejected
from knapcache.proxy.settings import Settings

WRONG = ("different", "undecided")
"""Verdicts that count as wrong."""
NOT_STARTED: dict[str, Any] = {
    "level": -1, "bound": None, "needed": len(LEVELS) / ALPHA, "alarms": 0, "labels": {},
    "levels": [], "others": [], "next_step": "The tier is starting.", "obstacles": {},
}  # fmt: skip
"""The report of a learner that has not started."""
WORD = re.compile(r"\S+")
EDGES = ".,;:!?\"'()[]"
"""Characters at the edges of a word that do not make it another word."""
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


class ScopeReset(RequestModel):
    """Body of POST /semantic/reset."""

    scope: Annotated[str, Field(max_length=200, description="The tenant; empty without tenants.")] = ""


class ResetScope(ResponseModel):
    """A scope whose labels were forgotten."""

    scope: str


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
    """The share of questions that another value of `semantic_error` would serve."""

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
    next_step: Annotated[str, Field(description="What a match would need to be served, in one sentence.")]
    obstacles: Annotated[
        dict[str, Count],
        Field(description="Recent matches that could not be served whatever their risk: word, entry or principal."),
    ]
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


@dataclass
class SemanticAdmin:
    """Serves the routes."""

    settings: Settings
    admin: AdminServices
    tier: SemanticTier
    matches: RecentMatches
    append_verdict: Callable[[VerdictEvent], object]
    marking: set[str] = field(default_factory=set)
    """Matches that a request is marking."""

    def routes(self) -> list[Route]:
        return [
            Route(method="GET", path="/semantic", name="semantic", alias="/admin/api/semantic",
                  summary="State of the semantic tier, its certificates and its recent matches",
                  response=SemanticStatus, parameters=SemanticQuery, errors=(503,), serve=self.get_status),
            Route(method="POST", path="/semantic/feedback", name="mark_match", alias="/admin/api/semantic/feedback",
                  summary="Mark a match of the semantic tier as wrong", response=MarkedMatch,
                  body=MatchFeedback, errors=(404, 409, 503), serve=self.post_feedback),
            Route(method="POST", path="/semantic/reset", name="reset_semantic", response=ResetScope, body=ScopeReset,
                  summary="Forget all labels of a scope: it starts in shadow, as new", errors=(409, 503),
                  serve=self.post_reset),
        ]  # fmt: skip

    async def get_status(self, request: AdminRequest) -> SemanticStatus:
        content = await self.admin.listed_content(request, "semantic")
        self.admin.flush_events()
        matches = self.matches.newest(request.parameters.limit, request.parameters.scope)
        reports = await self.tier.report()
        return await self.admin.in_thread(lambda: self.status(reports, matches, content=content))

    async def post_feedback(self, request: AdminRequest) -> MarkedMatch:
        self.admin.flush_events()
        scope = await self.mark(request.body.match)
        return MarkedMatch(match=request.body.match, scope=scope, verdict="different")

    async def post_reset(self, request: AdminRequest) -> ResetScope:
        try:
            await self.tier.reset(request.body.scope)
        except InvalidInput as error:
            raise RequestRejected(409, f"{error}.", "tier_off") from None
        return ResetScope(scope=request.body.scope)

    def status(
        self, reports: Sequence[dict[str, Any]], matches: Sequence[RecentMatch], *, content: bool
    ) -> SemanticStatus:
        """Return the response of GET /semantic. content: with questions. May wait for a shared store."""
        settings = self.settings
        assert isinstance(settings, SemanticSettings)
        self.admin.read_shared()
        today, total = self.admin.totals.sums("semantic")
        known = next((one for one in reports if "model" in one), {})
        return SemanticStatus(
            mode=settings.semantic,
            error=settings.semantic_error,
            running=True,
            problem=next((one["failure"] for one in reports if one["failure"]), ""),
            embedding=known.get("model", ""),
            questions=known.get("questions", 0),
            limit=known.get("limit", settings.semantic_questions),
            judge=settings.semantic_judge or "",
            since=total.since or None,
            content=content,
            today=usage(today.total()),
            all=usage(total.total()),
            scopes=[scope_status(one, today, total) for one in reports],
            matches=[match_row(one, content=content) for one in matches],
        )

    async def mark(self, match_id: str) -> str:
        """Mark a match as wrong, and return its scope. Raises RequestRejected (404, 409)."""
        match = unmarked_match(self.matches, match_id)
        if match_id in self.marking:
            raise RequestRejected(409, "This match is being marked by another request.", "already_marked")
        self.marking.add(match_id)
        try:
            try:
                await self.tier.feedback(match)
            except InvalidInput as error:
                raise RequestRejected(409, f"{error}.", "tier_off") from None
            self.append_verdict(
                VerdictEvent(match_id, match.scope, match.kind, "different", FEEDBACK, judge_usd=0.0, time=time.time())
            )
            self.admin.flush_events()
        finally:
            self.marking.discard(match_id)
        return match.scope


def scope_status(report: dict[str, Any], today: SemanticTotals, total: SemanticTotals) -> ScopeStatus:
    name = report["scope"]
    fields = {field: report[field] for field in ScopeStatus.model_fields if field in report}
    serves = report["mode"] == "on" and report.get("bound") is not None
    return ScopeStatus(
        **NOT_STARTED | fields,
        state="serving" if serves else "shadow",
        today=usage(today.scopes.get(name)),
        all=usage(total.scopes.get(name)),
    )


def usage(totals: ScopeTotals | None) -> SemanticUsage:
    """Return sums for the API; None: of no request."""
    one = totals or ScopeTotals()
    fields = asdict(one)
    return SemanticUsage(requests=one.requests, **dict.fromkeys(MATCH_KINDS, 0) | fields.pop("kinds"), **fields)


def match_row(recent: RecentMatch, *, content: bool) -> MatchRow:
    match = recent.match
    shown = content and bool(match.question)
    here, there = differing_words(match.question, match.matched_question) if shown else ([], [])
    fields = {name: value for name, value in match._asdict().items() if name in MatchRow.model_fields}
    hidden = {} if shown else {"question": None, "matched_question": None}
    return MatchRow(**fields | hidden, id=match.match_id, time=recent.time, marks=here, matched_marks=there)


def differing_words(one: str, other: str) -> tuple[Marks, Marks]:
    """Return where the words of each text are that the other does not have at that place: start and end."""
    ours, theirs = list(WORD.finditer(one)), list(WORD.finditer(other))
    plain, other_plain = ([word[0].strip(EDGES).lower() or word[0] for word in words] for words in (ours, theirs))
    here: Marks = []
    there: Marks = []
    for tag, i, j, k, m in SequenceMatcher(None, plain, other_plain, autojunk=False).get_opcodes():
        if tag != "equal":
            here += [(ours[i].start(), ours[j - 1].end())] if j > i else []
            there += [(theirs[k].start(), theirs[m - 1].end())] if m > k else []
    return here, there


def unmarked_match(matches: RecentMatches, match_id: str) -> SemanticEvent:
    """Return a match that has no wrong label. Raises RequestRejected (404, 409)."""
    found = matches.find(match_id)
    if found is None:
        message = (
            f"No such match: {match_id[:40]!r}. This proxy knows its last {MAX_MATCHES:,} matches since it was started."
        )
        raise RequestRejected(404, message, "not_found")
    match = found.match
    if match.verdict in WRONG:
        by = "by feedback" if match.rung == FEEDBACK else f"by the judge ({match.verdict})"
        raise RequestRejected(409, f"This match has a wrong label already, {by}.", "already_marked")
    return match
