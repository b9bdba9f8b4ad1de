"""The semantic tier in the admin API: its state, its recent matches, and feedback on one of them.

Live state comes from the tier in this process (`SemanticControl`), sums from the history, matches from the recent
events of all processes of this proxy.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Any

from knapcache.errors import InvalidInput
from knapcache.features.semantic import models as models
from knapcache.features.semantic.certificate import ALPHA, LEVELS
from knapcache.features.semantic.control import SemanticControl
from knapcache.features.semantic.event import MATCH_KINDS, SemanticEvent, VerdictEvent
from knapcache.features.semantic.recent_matches import MAX_MATCHES, RecentMatch, RecentMatches
from knapcache.features.semantic.settings import SemanticSettings
from knapcache.features.semantic.totals import FEEDBACK, ScopeTotals, SemanticTotals
from knapcache.proxy.admin.admin_request import AdminRequest
from knapcache.proxy.admin_routes import AdminServices, Route
from knapcache.proxy.http.asgi_request import RequestRejected
from knapcache.proxy.settings import Settings

REPORT_SECONDS = 2.0
"""How long the tier may take for a report: the numbers of the proxy do not wait for it."""
WRONG = ("different", "undecided")
"""Verdicts that count as wrong."""
NOT_STARTED: dict[str, Any] = {
    "level": -1, "bound": None, "needed": len(LEVELS) / ALPHA, "alarms": 0, "labels": {},
    "levels": [], "others": [],
}  # fmt: skip
"""The report of a learner that has not started."""
WORD = re.compile(r"\S+")
EDGES = ".,;:!?\"'()[]"
"""Characters at the edges of a word that do not make it another word."""


class TierReports:
    """Reads the state of the tier, which may be too busy to answer."""

    def __init__(self, tier: SemanticControl) -> None:
        self._tier = tier
        self._last: list[dict[str, Any]] = []

    async def read(self) -> list[dict[str, Any]]:
        """Return the state of each scope. Of a tier that does not answer, the last one."""
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                self._last = await self._tier.report()
        except TimeoutError:
            return [one | {"failure": one.get("failure") or "it is too busy to answer"} for one in self._last]
        return self._last


class SemanticAdmin:
    """Serves the routes."""

    def __init__(
        self,
        settings: Settings,
        admin: AdminServices,
        tier: SemanticControl,
        reports: TierReports,
        matches: RecentMatches,
        append_verdict: Callable[[VerdictEvent], object],
    ) -> None:
        self._settings, self._admin, self._tier, self._reports = settings, admin, tier, reports
        self._matches, self._append_verdict = matches, append_verdict
        self._marking: set[str] = set()
        """Matches that a request is marking."""

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(method="GET", path="/semantic", name="semantic", alias="/admin/api/semantic",
                  summary="State of the semantic tier, its certificates and its recent matches",
                  response=models.SemanticStatus, parameters=models.SemanticQuery, errors=(503,),
                  serve=self.get_status),
            Route(method="POST", path="/semantic/feedback", name="mark_match", alias="/admin/api/semantic/feedback",
                  summary="Mark a match of the semantic tier as wrong", response=models.MarkedMatch,
                  body=models.MatchFeedback, errors=(404, 409, 503), serve=self.post_feedback),
        ]  # fmt: skip

    async def get_status(self, request: AdminRequest) -> models.SemanticStatus:
        content = await self._admin.listed_content(request, "semantic")
        self._admin.flush_events()
        matches = self._matches.newest(request.parameters.limit, request.parameters.scope)
        reports = await self._reports.read()
        return await self._admin.in_thread(lambda: self.status(reports, matches, content=content))

    async def post_feedback(self, request: AdminRequest) -> models.MarkedMatch:
        self._admin.flush_events()
        scope = await self.mark(request.body.match)
        return models.MarkedMatch(match=request.body.match, scope=scope, verdict="different")

    def status(
        self, reports: Sequence[dict[str, Any]], matches: Sequence[RecentMatch], *, content: bool
    ) -> models.SemanticStatus:
        """Return the response of GET /semantic. content: with questions. May wait for a shared store."""
        settings = self._settings
        assert isinstance(settings, SemanticSettings)
        self._admin.read_shared()
        today, total = self._admin.totals.sums("semantic")
        known = next((one for one in reports if "model" in one), {})
        return models.SemanticStatus(
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
        match, verdict = marked_as_wrong(self._matches, match_id)
        if match_id in self._marking:
            raise RequestRejected(409, "This match is being marked by another request.", "already_marked")
        self._marking.add(match_id)
        try:
            try:
                await self._tier.feedback(match)
            except InvalidInput as error:
                raise RequestRejected(409, f"{error}.", "tier_off") from None
            self._append_verdict(verdict)
            self._admin.flush_events()
        finally:
            self._marking.discard(match_id)
        return match.scope


def scope_status(report: dict[str, Any], today: SemanticTotals, total: SemanticTotals) -> models.ScopeStatus:
    """Return the state of a scope and its sums."""
    name = report["scope"]
    fields = {field: report[field] for field in models.ScopeStatus.model_fields if field in report}
    serves = report["mode"] == "on" and report.get("bound") is not None
    return models.ScopeStatus(
        **NOT_STARTED | fields,
        state="serving" if serves else "shadow",
        today=usage(today.scopes.get(name)),
        all=usage(total.scopes.get(name)),
    )


def usage(totals: ScopeTotals | None) -> models.SemanticUsage:
    """Return sums for the API; None: of no request."""
    one = totals or ScopeTotals()
    return models.SemanticUsage(
        requests=one.requests,
        **{kind: one.kinds.get(kind, 0) for kind in MATCH_KINDS},
        labels=one.labels,
        reasons=one.reasons,
        seconds=one.seconds,
        usd_saved=one.usd_saved,
        priced=one.priced,
        judge_usd=one.judge_usd,
    )


def match_row(recent: RecentMatch, *, content: bool) -> models.MatchRow:
    """Return a match as it is listed."""
    match = recent.match
    shown = content and bool(match.question)
    here, there = differing_words(match.question, match.matched_question) if shown else ([], [])
    return models.MatchRow(
        id=match.match_id,
        time=recent.time,
        scope=match.scope,
        kind=match.kind,
        key=match.key,
        matched_key=match.matched_key,
        similarity=match.similarity,
        risk=match.risk,
        level=match.level,
        verdict=match.verdict,
        rung=match.rung,
        question=match.question if shown else None,
        matched_question=match.matched_question if shown else None,
        marks=here,
        matched_marks=there,
    )


def differing_words(one: str, other: str) -> tuple[models.Marks, models.Marks]:
    """Return where the words of each text are that the other does not have at that place: start and end."""
    ours, theirs = list(WORD.finditer(one)), list(WORD.finditer(other))
    plain, other_plain = ([word[0].strip(EDGES).lower() or word[0] for word in words] for words in (ours, theirs))
    here: models.Marks = []
    there: models.Marks = []
    for tag, i, j, k, m in SequenceMatcher(None, plain, other_plain, autojunk=False).get_opcodes():
        if tag != "equal":
            here += [(ours[i].start(), ours[j - 1].end())] if j > i else []
            there += [(theirs[k].start(), theirs[m - 1].end())] if m > k else []
    return here, there


def marked_as_wrong(matches: RecentMatches, match_id: str) -> tuple[SemanticEvent, VerdictEvent]:
    """Return a match and the verdict that marks it as wrong. Raises RequestRejected (404, 409)."""
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
    verdict = VerdictEvent(
        match_id=match_id,
        scope=match.scope,
        kind=match.kind,
        verdict="different",
        rung=FEEDBACK,
        judge_usd=0.0,
        time=time.time(),
    )
    return match, verdict
