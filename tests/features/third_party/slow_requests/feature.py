"""The feature: a hook of requests, a consumer of events, a metric, and a route for its card on the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, Metric

from knapcache.proxy.admin_routes import AdminServices, ResponseModel, Route
from knapcache.proxy.events.events import Event
from knapcache.proxy.events.pipeline import EventPipeline
from knapcache.proxy.features import Feature
from knapcache.proxy.hooks import CallContext, CallHooks


class SlowHooks(CallHooks):
    """Names the limit in the response."""

    name = "slow_requests"

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def response_headers(self) -> list[tuple[str, str]]:
        return [("x-slow-after", str(self._seconds))]


class SlowCount(ResponseModel):
    """Response of GET /slow."""

    slow: int


class SlowRequests(Feature):
    """Counts slow requests."""

    name = "slow_requests"
    slow = 0

    def begin(self, call: CallContext) -> CallHooks | None:  # noqa: ARG002
        return SlowHooks(self._seconds)

    @property
    def _seconds(self) -> float:
        settings: Any = self.context.settings
        return float(settings.slow_after)

    def become_owner(self, pipeline: EventPipeline) -> None:
        pipeline.add_consumer(self)

    def consume(self, events: Sequence[Event]) -> None:
        """Count a batch."""
        self.slow += sum(event.seconds >= self._seconds for event in events)

    def metrics(self) -> Iterable[Metric]:
        yield CounterMetricFamily("slow_requests", "Requests that took long.", value=self.slow)

    def admin_routes(self, admin: AdminServices) -> Sequence[Route]:
        async def serve(_: Any) -> SlowCount:
            admin.flush_events()
            return SlowCount(slow=self.slow)

        return [Route(method="GET", path="/slow", name="slow", summary="Slow", response=SlowCount, serve=serve)]
