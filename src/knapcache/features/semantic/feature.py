"""The semantic tier as a feature of the proxy, and how it is built from the settings."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from prometheus_client.core import Metric

from knapcache.cache.options import seal_secret
from knapcache.errors import InvalidInput, StoreError, UpstreamFailed
from knapcache.features.semantic.admin import SemanticAdmin
from knapcache.features.semantic.call import SemanticCalls
from knapcache.features.semantic.embedding import Embedder, find_installed, local_embedder
from knapcache.features.semantic.embeddings_endpoint import EndpointEmbedder
from knapcache.features.semantic.event import RecentMatches, SemanticEvent, VerdictEvent
from knapcache.features.semantic.explanation import explained
from knapcache.features.semantic.judging import Judge
from knapcache.features.semantic.log import RedisLog, SemanticLog
from knapcache.features.semantic.matcher import Matcher
from knapcache.features.semantic.settings import SemanticSettings
from knapcache.features.semantic.shared_state import SharedState
from knapcache.features.semantic.sqlite_log import SqliteLog
from knapcache.features.semantic.tier import SemanticTier
from knapcache.features.semantic.totals import ScopeReports, SemanticTotals, collect_semantic
from knapcache.proxy.admin_routes import AdminServices, FeatureExplanation, Route, SummaryField
from knapcache.proxy.events.events import Event
from knapcache.proxy.events.pipeline import EventPipeline
from knapcache.proxy.features import Feature, ProxyContext
from knapcache.proxy.hooks import CallContext, CallHooks
from knapcache.proxy.settings import Settings
from knapcache.store.encryption import Encryption
from knapcache.store.sqlite.rows import Sealer

LOG_FILE, INDEX_FILE = "semantic.sqlite", "semantic.index"
CHECK_INTERVAL = 5.0
"""Seconds between two looks at the certificates."""


class SemanticFeature(Feature):
    """Answers questions in another wording."""

    name = "semantic"
    part = SemanticEvent
    note = VerdictEvent
    totals = SemanticTotals
    explains = "Why the semantic tier did not answer the request; empty: it answered, or was not asked."

    def __init__(self, context: ProxyContext) -> None:
        super().__init__(context)
        self.calls = open_semantic(context)
        self._serving: set[str] = set()
        """Tenants for which the tier could serve at the last look."""
        self.matches = RecentMatches()
        """Those of all processes, in the owner process."""
        self._counted = SemanticTotals()
        """Since this process became the owner."""
        self._reports: ScopeReports = ()
        """The state of each scope, as `before_metrics` has found it."""

    def start(self) -> None:
        self.run(self.calls.tier.run())

    def become_owner(self, pipeline: EventPipeline) -> None:
        pipeline.add_consumer(self)
        pipeline.add_note_consumer(self.name, self.consume_verdicts)
        self.calls.tier.sweeps = True
        self.run(self._watch_certificates())

    def consume(self, events: Sequence[Event]) -> None:
        if found := [event for event in events if "semantic" in event.parts]:
            for event in found:
                self._counted.count(event)
            self.matches.consume(found)

    def consume_verdicts(self, verdicts: Sequence[VerdictEvent]) -> None:
        for verdict in verdicts:
            self._counted.count_note(verdict)
        self.matches.consume_verdicts(verdicts)

    async def before_metrics(self) -> None:
        self._reports = await self.calls.tier.report()

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
            self.matches,
            lambda verdict: self.context.events.append_note(self.name, verdict),
        ).routes()

    def summary_fields(self, admin: AdminServices) -> Sequence[SummaryField]:  # noqa: ARG002
        return [SummaryField("semantic", bool, "Whether the semantic tier runs: see GET /semantic.", lambda: True)]

    def explain(self, event: Event, *, content: bool) -> FeatureExplanation:
        return explained(event, self.matches, self.context.cache, content=content)

    async def after_purge(self) -> None:
        with contextlib.suppress(StoreError):  # a later sweep removes the questions of purged entries
            await self.calls.tier.purged()

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


def open_semantic(context: ProxyContext) -> SemanticCalls:
    """Return the semantic tier. `SemanticTier.run` loads its model.

    Raises MissingExtra if the local model is to be used and is not installed.
    """
    settings, folder, shared_store = context.settings, context.folder, context.shared_store
    assert isinstance(settings, SemanticSettings)
    check_embedder(settings)  # a start without it would look like a tier that learns
    encryption = Encryption(context.encryption_keys) if context.encryption_keys else None

    def open_matcher(errors: Mapping[str, float]) -> Matcher:
        embedder = open_embedder(settings)
        file = None if folder is None else folder / INDEX_FILE
        state = SharedState(embedder, open_log(), errors, settings.semantic_questions, file, encryption)
        return Matcher(context.cache, embedder, state)

    def open_log() -> SemanticLog:
        if shared_store is not None:
            return RedisLog(shared_store.record_logs, settings.semantic_questions)
        sealer = Sealer(seal_secret(context.secret), encryption)
        return SqliteLog(None if folder is None else folder / LOG_FILE, sealer, settings.semantic_questions)

    tier = SemanticTier(settings, open_matcher)
    judge = Judge(
        tier.embed,
        upstreams=context.upstreams,
        model=settings.semantic_judge,
        meter=context.meter,
        spent=context.count_payment,
    )
    return SemanticCalls(tier, judge, partial(context.events.append_note, "semantic"))


def check_embedder(settings: Settings) -> None:
    """Raise MissingExtra or InvalidInput if the embedding model of the settings cannot be used. It takes no time."""
    assert isinstance(settings, SemanticSettings)
    if settings.semantic_embeddings is None:
        find_installed()
        return
    if not settings.semantic_embeddings_model:
        raise InvalidInput("semantic_embeddings needs semantic_embeddings_model, the name of a model of that API")
    variable = settings.semantic_embeddings_key_env
    if variable and not os.environ.get(variable):  # the message omits the value: it may be the key itself
        raise InvalidInput("semantic_embeddings_key_env must be the name of an environment variable that holds the key")


def open_embedder(settings: Settings) -> Embedder:
    """Return the embedding model of the settings. Raises InvalidInput, MissingExtra or UpstreamFailed."""
    assert isinstance(settings, SemanticSettings)
    if settings.semantic_embeddings is None:
        return local_embedder()
    key = os.environ.get(settings.semantic_embeddings_key_env or "", "")
    embedder = EndpointEmbedder(settings.semantic_embeddings, settings.semantic_embeddings_model or "", key)
    try:
        assert embedder.dimensions  # calls the API
    except UpstreamFailed:
        embedder.close()
        raise
    return embedder
