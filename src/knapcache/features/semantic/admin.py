"""The semantic tier in the admin API: its state, its recent matches, and feedback on one of them.

Live state comes from the tier in this process (`SemanticControl`), sums from the history, matches from the recent
events of all processes of this proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

from knapcache.errors import InvalidInput, StoreError
from knapcache.features.semantic import models as models
from knapcache.features.semantic.certificate import ALPHA, LEVELS
from knapcache.features.semantic.event import MATCH_KINDS, SemanticEvent, VerdictEvent
from knapcache.features.semantic.recent_matches import MAX_MATCHES, RecentMatch, RecentMatches
from knapcache.features.semantic.settings import SemanticSettings
from knapcache.features.semantic.totals import FEEDBACK, ScopeTotals, SemanticTotals
from knapcache.proxy.admin.context import AdminContext
from knapcache.proxy.http.asgi_request import RequestRejected

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


class SemanticAdmin:
    """Reads the state of the tier, and marks matches as wrong."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._marking: set[str] = set()
        """Matches that a request is marking."""
        self._last: list[dict[str, Any]] = []
        """The last report."""

    async def report(self) -> list[dict[str, Any]]:
        """Return the state of each scope; none if the tier is off. Of a tier that does not answer, the last one."""
        if self._context.semantic is None:
            return []
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                self._last = await self._context.semantic.report()
        except TimeoutError:
            return [one | {"failure": one["failure"] or "it is too busy to answer"} for one in self._last]
        return self._last

    async def after_purge(self) -> None:
        """Remove the questions of purged entries. What fails now is removed by a later sweep."""
        if self._context.semantic is not None:
            with contextlib.suppress(StoreError):
                await self._context.semantic.sweep()

    def status(
        self, reports: Sequence[dict[str, Any]], matches: Sequence[RecentMatch], *, content: bool
    ) -> models.SemanticStatus:
        """Return the response of GET /semantic. content: with questions. May wait for a shared store."""
        context, settings = self._context, self._context.settings
        assert isinstance(settings, SemanticSettings)
        context.refresh()
        on = "semantic" in context.history.totals
        today, total = context.history.sums("semantic") if on else (SemanticTotals(), SemanticTotals())
        known = next((one for one in reports if "model" in one), {})
        return models.SemanticStatus(
            mode=settings.semantic,
            error=settings.semantic_error,
            running=context.semantic is not None,
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
        context = self._context
        match, verdict = marked_as_wrong(context.matches, match_id)
        if context.semantic is None:
            raise RequestRejected(409, "The semantic tier is off, so it takes no labels.", "tier_off")
        if match_id in self._marking:
            raise RequestRejected(409, "This match is being marked by another request.", "already_marked")
        self._marking.add(match_id)
        try:
            try:
                await context.semantic.feedback(match)
            except InvalidInput as error:
                raise RequestRejected(409, f"{error}.", "tier_off") from None
            context.append_note("semantic", verdict)
            context.flush_events()
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
