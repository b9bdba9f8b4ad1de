"""Swap as a feature of the proxy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client.core import Metric

from knapcache.cache.options import seal_secret
from knapcache.features.swap.admin import SwapReport, report, routes
from knapcache.features.swap.call import SwapCall
from knapcache.features.swap.event import LabelNote, SwapEvent
from knapcache.features.swap.labelling import Labeller
from knapcache.features.swap.log import Labels, RedisLabels, SqliteLabels
from knapcache.features.swap.prices import MissPrices
from knapcache.features.swap.tier import SwapTier
from knapcache.features.swap.totals import SwapCounts, SwapTotals, collect_swap
from knapcache.proxy.admin_routes import AdminServices, Route, SummaryField
from knapcache.proxy.events.pipeline import EventPipeline
from knapcache.proxy.features import Feature, ProxyContext
from knapcache.proxy.hooks import CallContext, CallHooks
from knapcache.store.encryption import Encryption
from knapcache.store.sqlite.rows import Sealer

LOG_FILE = "swap.sqlite"


class SwapFeature(Feature):
    """Lets a cheaper model answer where its loss is certified."""

    name = "swap"
    part = SwapEvent
    note = LabelNote
    totals = SwapTotals

    def __init__(self, context: ProxyContext) -> None:
        super().__init__(context)
        self.tier = SwapTier(context, self._open_labels)
        self.labeller = Labeller(context, self.tier)
        self.prices = MissPrices(context.cache, self.tier)
        self._counts = SwapCounts()
        """Of all processes, in the owner process."""

    def _open_labels(self) -> Labels:
        context = self.context
        if context.shared_store is not None:
            return RedisLabels(context.shared_store.record_logs)
        encryption = Encryption(context.encryption_keys) if context.encryption_keys else None
        path = None if context.folder is None else context.folder / LOG_FILE
        return SqliteLabels(path, Sealer(seal_secret(context.secret), encryption))

    def start(self) -> None:
        self.run(self.tier.run())
        self.run(self.prices.run())

    def become_owner(self, pipeline: EventPipeline) -> None:
        pipeline.add_consumer(self._counts)
        pipeline.add_note_consumer(self.name, self._counts.consume_notes)
        self.tier.notifies = True

    def metrics(self) -> Iterable[Metric]:
        return collect_swap(self._counts.totals, self.tier)

    def span_attributes(self, part: SwapEvent) -> dict[str, Any]:
        return {"knapcache.swap": part.kind, "knapcache.swap_model": part.model} if part.kind == "swap" else {}

    def begin(self, call: CallContext) -> CallHooks | None:
        route = None if call.route is None else self.tier.routes.get(call.route.name)
        if route is None or call.exchange is None or call.exchange.bypass:
            return None
        return SwapCall(self.context, self.tier, self.labeller, route, call)

    def admin_routes(self, admin: AdminServices) -> Sequence[Route]:
        async def serve(_request: Any) -> SwapReport:
            await admin.refresh()
            return report(self.tier, self._counts.frames, *admin.totals.sums(self.name))

        return routes(serve)

    def summary_fields(self, admin: AdminServices) -> Sequence[SummaryField]:  # noqa: ARG002
        return [SummaryField("swap", bool, "Whether a route tries a cheaper model: see GET /swap.", lambda: True)]

    async def close(self) -> None:
        await self.prices.close()
        await self.labeller.close()
        await self.tier.close()
