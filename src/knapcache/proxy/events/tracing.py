"""Tracing: one OpenTelemetry span for each request, made from its event and sent to a collector.

    start = event.time,  end = start + event.seconds,  parent = the span in the client's `traceparent`

Attributes follow the semantic conventions for generative AI (gen_ai.*) and HTTP; ours are knapcache.*. None contains a
prompt or an answer.

A thread makes and sends the spans in batches, so tracing adds nothing to a request. Rejected: the SDK's
BatchSpanProcessor, which needs every span made on the event loop. The SDK's sampler decides what is traced: by the
client's trace, else by OTEL_TRACES_SAMPLER, else everything.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from knapcache.errors import MissingExtra, install_command
from knapcache.proxy.events.events import Event
from knapcache.proxy.events.labels import MAX_LENGTH
from knapcache.threads import BatchWorker
from knapcache.wire import FORMATS

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

OPERATIONS: dict[str, str] = {each.endpoint: each.operation for each in FORMATS.values()}
BATCH = 512
"""Spans in one call of the collector."""
EXPORT_TIMEOUT = 10.0
"""Seconds for one call of the collector, retries included."""
NANOSECONDS = 1_000_000_000
PartAttributes = Callable[[Mapping[str, Any]], dict[str, Any]]

log = logging.getLogger(__name__)


class Tracing:
    """Sends spans to a collector.

    endpoint   its base address; it must accept OTLP over HTTP
    of_parts   returns the attributes of features for the parts of an event. Called in a thread
    """

    def __init__(self, endpoint: str, of_parts: PartAttributes = lambda _: {}) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
            from opentelemetry.sdk.trace.export import SpanExportResult
            from opentelemetry.trace import SpanKind, Status, StatusCode
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            raise MissingExtra(f"traces need OpenTelemetry: {install_command('telemetry')}") from None

        ended: list[ReadableSpan] = []

        class EndedSpans(SpanProcessor):
            """Collects spans that have ended."""

            def on_end(self, span: ReadableSpan) -> None:
                ended.append(span)

        self._ended = ended
        self._exporter = OTLPSpanExporter(traces_url(endpoint), timeout=EXPORT_TIMEOUT)
        self._provider = TracerProvider(resource=Resource.create(resource_attributes()), shutdown_on_exit=False)
        self._provider.add_span_processor(EndedSpans())
        self._tracer = self._provider.get_tracer("knapcache", version("knapcache"))
        self._context = TraceContextTextMapPropagator().extract
        self._server, self._success = SpanKind.SERVER, SpanExportResult.SUCCESS
        self._error = Status(StatusCode.ERROR)
        self._failing, self._of_parts = False, of_parts
        self._worker: BatchWorker[Event] = BatchWorker("tracing", self._send)

    def consume(self, events: Sequence[Event]) -> None:
        self._worker.offer(events)

    @property
    def dropped(self) -> int:
        """Requests whose spans did not reach the collector."""
        return self._worker.lost

    def close(self, seconds: float = 5.0) -> None:
        """Send queued spans; give up after this many seconds."""
        done = self._worker.close(seconds)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # also ends the wait between two retries
        if done:
            self._provider.shutdown()

    # In the thread.

    def _send(self, events: Sequence[Event]) -> None:
        for k in range(0, len(events), BATCH):
            for event in events[k : k + BATCH]:
                self._make_span(event)
            spans = self._ended[:]
            self._ended.clear()
            if not spans:  # none was sampled
                continue
            if self._exporter.export(spans) is self._success:
                self._failing = False
                continue
            self._worker.count_lost(len(spans))
            if not self._failing:  # once until it works again
                self._failing = True
                log.warning("Spans dropped: the collector cannot be reached or rejects them.")

    def _make_span(self, event: Event) -> None:
        start = int(event.time * NANOSECONDS)
        operation = OPERATIONS.get(event.endpoint, "")
        span = self._tracer.start_span(
            " ".join(filter(None, (operation or "passthrough", event.model[:MAX_LENGTH]))),
            context=self._context({"traceparent": event.trace}) if event.trace else None,
            kind=self._server,
            attributes=attributes(event, operation) | (self._of_parts(event.parts) if event.parts else {}),
            start_time=start,
        )
        if event.status >= 500:  # by the conventions, 4xx is not an error of the server
            span.set_status(self._error)
        span.end(start + int(event.seconds * NANOSECONDS))


def attributes(event: Event, operation: str) -> dict[str, Any]:
    """Return the attributes of a request's span, without those of features."""
    found: dict[str, Any] = {
        "http.response.status_code": event.status,
        "knapcache.outcome": event.outcome,
        "knapcache.tenant": event.tenant,
        "knapcache.saved": event.saved,
        "knapcache.upstream_seconds": event.upstream_seconds,
    }
    if operation:
        found |= {"gen_ai.operation.name": operation, "gen_ai.request.stream": event.stream}
    if event.model:
        found["gen_ai.request.model"] = event.model[:MAX_LENGTH]
    if event.stream:
        found["gen_ai.response.time_to_first_chunk"] = event.ttfb
    if event.status >= 500:
        found["error.type"] = str(event.status)
    for name, value in (("key", event.key), ("size", event.size), ("cost", event.cost), ("upstream", event.upstream)):
        if value:
            found[f"knapcache.{name}"] = value
    if event.tried:
        found["knapcache.tried"] = [one.upstream for one in event.tried]
    if event.usd is not None:
        found["knapcache.usd"] = event.usd
    return found


def traces_url(endpoint: str) -> str:
    """Return the URL for spans: `/v1/traces` below a base address, as in OTEL_EXPORTER_OTLP_ENDPOINT."""
    base = endpoint.rstrip("/")
    return base if base.endswith("/v1/traces") else f"{base}/v1/traces"


def resource_attributes() -> dict[str, Any]:
    """Return version and service name, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES name the service."""
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return {"service.version": version("knapcache")} | ({} if named else {"service.name": "knapcache"})
