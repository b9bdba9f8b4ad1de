"""The semantic tier as a feature of the proxy."""

from __future__ import annotations

import asyncio
import contextlib

from knapcache.features.semantic.opening import open_semantic
from knapcache.proxy.events.pipeline import EventPipeline
from knapcache.proxy.features import Feature, ProxyContext
from knapcache.proxy.hooks import CallContext, CallHooks
from knapcache.proxy.settings import Settings

CHECK_INTERVAL = 5.0
"""Seconds between two looks at the certificates."""


class SemanticFeature(Feature):
    """Answers questions in another wording."""

    name = "semantic"

    def __init__(self, context: ProxyContext) -> None:
        super().__init__(context)
        self.calls = open_semantic(context)
        self._serving: set[str] = set()
        """Tenants for which the tier could serve at the last look."""
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.calls.tier.start()

    def become_owner(self, pipeline: EventPipeline) -> None:  # noqa: ARG002
        self.calls.tier.sweeps = True
        self._watch = asyncio.create_task(self._watch_certificates())

    def configure(self, settings: Settings) -> None:
        self.calls.tier.configure(settings)

    def begin(self, call: CallContext) -> CallHooks | None:
        if call.exchange is None:
            return None
        return self.calls.begin(call.exchange, call.tenant, "" if call.route is None else call.route.name)

    def not_ready(self) -> str:
        return "the semantic tier is loading its model and labels" if self.calls.tier.starting else ""

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
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
