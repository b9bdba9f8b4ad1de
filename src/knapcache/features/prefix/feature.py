"""Prompt caches of providers as a feature of the proxy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import Metric

from knapcache.features.prefix.event import PrefixEvent
from knapcache.features.prefix.hooks import PrefixHooks
from knapcache.features.prefix.log import PrefixLog
from knapcache.features.prefix.metrics import collect_prefix
from knapcache.features.prefix.models import PrefixSummary, prefix_summary
from knapcache.features.prefix.settings import PrefixSettings
from knapcache.features.prefix.tier import PrefixTier
from knapcache.features.prefix.totals import PrefixTotals
from knapcache.proxy.admin_routes import AdminServices, SummaryField
from knapcache.proxy.events.events import Event
from knapcache.proxy.events.pipeline import EventPipeline
from knapcache.proxy.features import Feature, ProxyContext
from knapcache.proxy.hooks import CallContext, CallHooks

PREFIX_LOG = "prefixes"
"""The folder of the prefix log, in the data directory."""


class PrefixFeature(Feature):
    """Marks requests for the prompt caches of providers, or observes what marks would save."""

    name = "prefix"
    part = PrefixEvent
    totals = PrefixTotals

    def __init__(self, context: ProxyContext) -> None:
        super().__init__(context)
        settings = context.settings
        assert isinstance(settings, PrefixSettings)
        self.tiers = {
            each.name: PrefixTier(
                each.name,
                each.prompt_cache,
                settings.prefix,
                context.secret,
                input_price=context.meter.input_price,
            )
            for each in settings.upstreams
            if each.prompt_cache != "off" and not each.local
        }
        """By name of the upstream, of those with a prompt cache."""
        self._has_log = settings.prefix != "off"
        self._counted = PrefixTotals()
        """Since this process became the owner."""

    def become_owner(self, pipeline: EventPipeline) -> None:
        pipeline.add_consumer(self)
        if self._has_log:
            pipeline.open_log(PREFIX_LOG, PrefixLog)

    def consume(self, events: Sequence[Event]) -> None:
        """Count a batch."""
        for event in events:
            if "prefix" in event.parts:
                self._counted.count(event)

    def metrics(self) -> Iterator[Metric]:
        return collect_prefix(self._counted)

    def summary_fields(self, admin: AdminServices) -> Sequence[SummaryField]:
        def value() -> PrefixSummary:
            settings = self.context.settings
            assert isinstance(settings, PrefixSettings)
            return prefix_summary(settings.prefix, *admin.totals.sums("prefix"))

        return [SummaryField("prefix", PrefixSummary, "Prompt caching at providers.", value)]

    def begin(self, call: CallContext) -> CallHooks | None:
        return None if call.exchange is None else PrefixHooks(call, self.tiers, self.context.body_pool)
