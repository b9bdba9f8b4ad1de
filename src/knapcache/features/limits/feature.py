"""Limits as a feature of the proxy: hooks of a request, admin API and metrics."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from prometheus_client.core import GaugeMetricFamily, Metric
from pydantic import Field

from knapcache.features.limits.core import ALL, Counts
from knapcache.features.limits.fallback_counts import FallbackCounts
from knapcache.features.limits.limits import Limits, LimitUse, LimitWarning, Reservation, ReservedCall
from knapcache.features.limits.redis_counts import RedisCounts
from knapcache.features.limits.refusal import REASON
from knapcache.features.limits.sqlite_counts import SqliteCounts
from knapcache.price.estimate import CostEstimator, max_output
from knapcache.price.meter import Bill, Meter
from knapcache.proxy.admin.admin_request import AdminRequest
from knapcache.proxy.admin.models import ResponseModel
from knapcache.proxy.admin_routes import AdminServices, Route
from knapcache.proxy.events.events import Event
from knapcache.proxy.events.labels import MAX_LABELS
from knapcache.proxy.events.metrics import counters
from knapcache.proxy.events.pipeline import EventPipeline
from knapcache.proxy.features import Feature, ProxyContext
from knapcache.proxy.hooks import CallContext, CallHooks, PaidCall
from knapcache.proxy.settings import Settings
from knapcache.store.redis.store import RedisStore

FILE = "limits.sqlite"


class LimitPage(ResponseModel):
    """Every limit of the settings: of all callers together first, then of the tenants in their order."""

    rows: list[LimitUse]
    alone: Annotated[
        str, Field(description="Why this process counts for itself, without the others; empty: it does not.")
    ]


class LimitedCall(CallHooks):
    """Reserves the estimated cost of the first call of a request, and replaces it by what its calls have cost.

    If the upstream has answered with success and the cost is not known, an estimate counts: that of the call, and at
    least the length of what has arrived. Nothing is learned from it. If the upstream has not answered, nothing counts.
    """

    __slots__ = ("_call", "_limits", "_reservation")
    name = "limits"

    def __init__(self, limits: Limits, call: CallContext) -> None:
        self._limits, self._call = limits, call
        self._reservation: Reservation | None = None

    async def before_call(self, size: int) -> None:
        """Reserve the estimated cost of a call. Raises LimitReached."""
        if self._reservation is not None:
            return
        exchange, tenant = self._call.exchange, self._call.tenant
        if exchange is None:
            self._reservation = await self._limits.begin(tenant)
            return
        call = ReservedCall(tenant, exchange.endpoint, self._call.model, size)
        self._reservation = await self._limits.begin(tenant, call, max_output(exchange.body))

    def charge(self, paid: PaidCall) -> float:
        reservation = self._reservation
        if reservation is None:
            return 0.0
        if paid.known:
            reservation.charge(paid.usd, paid.tokens, learn=paid.answered)
        elif paid.answered:
            return reservation.keep(paid.output, paid.bill)
        else:
            reservation.release()
        return 0.0

    def end(self) -> None:
        if self._reservation is not None:
            self._reservation.release()


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
        self._rows: Sequence[LimitUse] = ()
        """Every limit and its use, as `before_metrics` has found them."""

    @property
    def needs_model(self) -> bool:
        return bool(self.limits.whole or self.limits.tenants)

    def start(self) -> None:
        self.run(self.limits.beat_periodically())

    def become_owner(self, pipeline: EventPipeline) -> None:
        pipeline.add_consumer(self)

    def consume(self, events: Sequence[Event]) -> None:
        """Count the requests that limits have refused."""
        for event in events:
            if event.outcome == "rejected" and (found := REASON.fullmatch(event.reason)):
                key = found["scope"], found["limit"]
                if key in self._refused or len(self._refused) < MAX_LABELS:
                    self._refused[key] = self._refused.get(key, 0) + 1

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
        summary = "Limits of tenants and of all callers, and their use"
        return [
            Route(method="GET", path="/limits", name="limits", summary=summary, response=LimitPage, serve=self._page)
        ]

    async def _page(self, _: AdminRequest) -> LimitPage:
        return LimitPage(rows=await self.limits.report(), alone=self.limits.fallback_reason)

    def paid(self, tenant: str, bill: Bill) -> None:
        self.limits.count_paid(tenant, bill.usd or 0.0, bill.tokens)

    def _report(self, warning: LimitWarning) -> None:
        self.context.notify("limit_reached" if warning.percent >= 100 else "limit_warning", **warning._asdict())


def open_limits(
    settings: Settings, meter: Meter, *, folder: Path | None, secret: bytes, shared_store: RedisStore | None
) -> Limits:
    """Return the limits. Nothing is read or written before the first call that has limits.

    folder         of the file with the counters; None: they are in memory
    shared_store   has the counters, if it is given
    """
    process = f"{os.getpid()}-{secrets.token_hex(8)}"
    counts: Counts
    if shared_store is not None:
        counts = RedisCounts(shared_store.call_counts, process, secret)
    else:
        counts = SqliteCounts(None if folder is None else folder / FILE, process)
    return Limits(settings, FallbackCounts(counts), CostEstimator(meter))


def collect_limits(refused: Mapping[tuple[str, str], int], rows: Sequence[LimitUse]) -> Iterator[Metric]:
    """Yield the metrics: requests that limits have refused, by scope and limit, and the use of limits."""
    text = "Requests that a limit has refused, by the tenant with the limit; *: all callers together."
    yield counters("knapcache_limited", text, ("tenant", "limit"), refused)
    used = GaugeMetricFamily(
        "knapcache_limit_used_ratio",
        "Used share of a limit, from 0 to 1 or a little more; tenant *: all callers together.",
        labels=["tenant", "limit"],
    )
    for row in rows[: 5 * MAX_LABELS]:
        used.add_metric([row.name or ALL, row.limit], row.ratio)
    yield used
