"""Limits as a feature of the proxy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import Metric

from knapcache.features.limits.admin import limit_routes
from knapcache.features.limits.limited_call import LimitedCall
from knapcache.features.limits.limits import LimitWarning
from knapcache.features.limits.metrics import LimitRows, collect_limits, count_limited
from knapcache.features.limits.opening import open_limits
from knapcache.price.meter import Bill
from knapcache.proxy.admin_routes import AdminServices, Route
from knapcache.proxy.events.events import Event
from knapcache.proxy.events.pipeline import EventPipeline
from knapcache.proxy.features import Feature, ProxyContext
from knapcache.proxy.hooks import CallContext, CallHooks
from knapcache.proxy.settings import Settings


class LimitsFeature(Feature):
    """Reserves, charges and refuses calls."""

    name = "limits"
    starts_on_reload = True

    def __init__(self, context: ProxyContext) -> None:
        super().__init__(context)
        self.limits = open_limits(
            context.settings,
            context.meter,
            folder=context.folder,
            secret=context.secret,
            shared_store=context.shared_store,
        )
        self.limits.on_warning(self._report)
        self._refused: dict[tuple[str, str], int] = {}
        """Requests that limits have refused, by scope and limit."""
        self._rows: LimitRows = ()
        """Every limit and its use, as `before_metrics` has found them."""

    @property
    def needs_model(self) -> bool:
        return bool(self.limits.whole or self.limits.tenants)

    def start(self) -> None:
        self.limits.start()

    def become_owner(self, pipeline: EventPipeline) -> None:
        pipeline.add_consumer(self)

    def consume(self, events: Sequence[Event]) -> None:
        """Count the requests that limits have refused."""
        for event in events:
            if event.outcome == "rejected" and event.reason:
                count_limited(self._refused, event.reason)

    async def before_metrics(self) -> None:
        self._rows = await self.limits.report()

    def metrics(self) -> Iterator[Metric]:
        return collect_limits(self._refused, self._rows)

    def configure(self, settings: Settings) -> None:
        self.limits.configure(settings)

    async def close(self) -> None:
        await self.limits.close()

    def begin(self, call: CallContext) -> CallHooks | None:
        return LimitedCall(self.limits, call) if self.limits.has_limits(call.tenant) else None

    def admin_routes(self, admin: AdminServices) -> Sequence[Route]:  # noqa: ARG002
        return limit_routes(self.limits)

    def paid(self, tenant: str, bill: Bill) -> None:
        self.limits.count_paid(tenant, bill.usd or 0.0, bill.tokens)

    def _report(self, warning: LimitWarning) -> None:
        self.context.notify("limit_reached" if warning.percent >= 100 else "limit_warning", **warning._asdict())
