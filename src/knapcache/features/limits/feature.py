"""Limits as a feature of the proxy."""

from __future__ import annotations

from knapcache.features.limits.limited_call import LimitedCall
from knapcache.features.limits.limits import LimitWarning
from knapcache.features.limits.opening import open_limits
from knapcache.price.meter import Bill
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

    @property
    def needs_model(self) -> bool:
        return bool(self.limits.whole or self.limits.tenants)

    def start(self) -> None:
        self.limits.start()

    def configure(self, settings: Settings) -> None:
        self.limits.configure(settings)

    async def close(self) -> None:
        await self.limits.close()

    def begin(self, call: CallContext) -> CallHooks | None:
        return LimitedCall(self.limits, call) if self.limits.has_limits(call.tenant) else None

    def paid(self, tenant: str, bill: Bill) -> None:
        self.limits.count_paid(tenant, bill.usd or 0.0, bill.tokens)

    def _report(self, warning: LimitWarning) -> None:
        self.context.notify("limit_reached" if warning.percent >= 100 else "limit_warning", **warning._asdict())
