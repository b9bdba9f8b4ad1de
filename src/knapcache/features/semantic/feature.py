"""The semantic tier as a feature of the proxy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client.core import Metric

from knapcache.errors import StoreError
from knapcache.features.semantic.admin import SemanticAdmin, TierReports
from knapcache.features.semantic.event import SemanticEvent, VerdictEvent
from knapcache.features.semantic.explanation import explained
from knapcache.features.semantic.metrics import ScopeReports, collect_semantic
from knapcache.features.semantic.opening import open_semantic
from knapcache.features.semantic.recent_matches import RecentMatches
from knapcache.features.semantic.totals import SemanticTotals
from knapcache.proxy.admin_routes import AdminServices, FeatureExplanation, Route, SummaryField
from knapcache.proxy.events.events import Event
from knapcache.proxy.events.pipeline import EventPipeline
from knapcache.proxy.features import Feature, ProxyContext
from knapcache.proxy.hooks import CallContext, CallHooks
from knapcache.proxy.settings import Settings

CHECK_INTERVAL = 5.0
"""Seconds between two looks at the certificates."""


class SemanticFeature(Feature):
    """Answers questions in another wording."""

    name = "semantic"
    part = SemanticEvent
    note = VerdictEvent
    totals = SemanticTotals
    explains = "What the semantic tier did with it; empty: it answered, or was not asked."

    def __init__(self, context: ProxyContext) -> None:
        super().__init__(context)
        self.calls = open_semantic(context)
        self.reports = TierReports(self.calls.tier)
        self._serving: set[str] = set()
        """Tenants for which the tier could serve at the last look."""
        self.matches = RecentMatches()
        """Those of all processes, in the owner process."""
        self._counted = SemanticTotals()
        """Since this process became the owner."""
        self._reports: ScopeReports = ()
        """The state of each scope, as `before_metrics` has found it."""

    def start(self) -> None:
        self.calls.tier.start()

    def become_owner(self, pipeline: EventPipeline) -> None:
        pipeline.add_consumer(self)
        pipeline.add_note_consumer(self.name, self.consume_verdicts)
        self.calls.tier.sweeps = True
        self.run(self._watch_certificates())

    def consume(self, events: Sequence[Event]) -> None:
        """Count a batch, and keep its matches."""
        if found := [event for event in events if "semantic" in event.parts]:
            for event in found:
                self._counted.count(event)
            self.matches.consume(found)

    def consume_verdicts(self, verdicts: Sequence[VerdictEvent]) -> None:
        """Count verdicts, and keep them with their matches."""
        for verdict in verdicts:
            self._counted.count_note(verdict)
        self.matches.consume_verdicts(verdicts)

    async def before_metrics(self) -> None:
        self._reports = await self.reports.read()

    def metrics(self) -> Iterator[Metric]:
        return collect_semantic(self._counted, self._reports)

    def span_attributes(self, part: SemanticEvent) -> dict[str, Any]:
        if part.kind != "served":
            return {}
        return {
            "knapcache.match": part.match_id,
            "knapcache.matched_key": part.matched_key,
            "knapcache.similarity": part.similarity,
        }

    def configure(self, settings: Settings) -> None:
        self.calls.tier.configure(settings)

    def begin(self, call: CallContext) -> CallHooks | None:
        if call.exchange is None:
            return None
        return self.calls.begin(call.exchange, call.tenant, "" if call.route is None else call.route.name)

    def admin_routes(self, admin: AdminServices) -> Sequence[Route]:
        return SemanticAdmin(
            self.context.settings,
            admin,
            self.calls.tier,
            self.reports,
            self.matches,
            lambda verdict: self.context.events.append_note(self.name, verdict),
        ).routes()

    def summary_fields(self, admin: AdminServices) -> Sequence[SummaryField]:  # noqa: ARG002
        return [SummaryField("semantic", bool, "Whether the semantic tier runs: see GET /semantic.", lambda: True)]

    def explain(self, event: Event, *, content: bool) -> FeatureExplanation:
        return explained(event, self.matches, self.context.cache, content=content)

    async def after_purge(self) -> None:
        with contextlib.suppress(StoreError):  # a later sweep removes the questions of purged entries
            await self.calls.tier.sweep()

    def not_ready(self) -> str:
        return "the semantic tier is loading its model and labels" if self.calls.tier.starting else ""

    async def close(self) -> None:
        await self.calls.close()

    async def _watch_certificates(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            self.report_lost_certificates()

    def report_lost_certificates(self) -> None:
        """Report each tenant for which the tier has stopped to serve."""
        names = ["", *(tenant.name for tenant in self.context.settings.tenants)]
        serving = {name for name in names if self.calls.tier.may_serve(name)}
        for tenant in sorted(self._serving - serving):
            self.context.notify("semantic_shadow", tenant=tenant)
        self._serving = serving
