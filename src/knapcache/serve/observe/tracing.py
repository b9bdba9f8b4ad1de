"""Traces: a span for each request, made from its event when it is over, and sent to an OpenTelemetry collector.

    start = event.time,  end = start + event.seconds,  parent = the span that the caller's `traceparent` names

Attributes are those of the semantic conventions for generative AI (gen_ai.*) and for HTTP, and ours (knapcache.*).
There is no prompt and no answer among them.

Spans are made and sent by a thread, many at a time, so tracing adds nothing to a request but the append of its event.
The SDK's BatchSpanProcessor was rejected: it would have every span made on the event loop. Whether a request is traced
is for the SDK's sampler to say: as the caller's trace has it, else OTEL_TRACES_SAMPLER, else always.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from knapcache.errors import InvalidInput, MissingExtra
from knapcache.model import Endpoint
from knapcache.serve.observe.events import Event
from knapcache.threads import BatchWorker

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

OPERATIONS = {
    Endpoint.CHAT: "chat",
    Endpoint.COMPLETIONS: "text_completion",
    Endpoint.RESPONSES: "chat",
    Endpoint.EMBEDDINGS: "embeddings",
    Endpoint.MESSAGES: "chat",
}
AT_ONCE = 512
"""Spans in one call of the collector."""
LONGEST = 100
"""Characters of a model's name, which the caller chose."""
PATIENCE = 10.0
"""Seconds for one call of the collector, with its retries."""
SECOND = 1_000_000_000

log = logging.getLogger(__name__)


class Tracing:
    """Sends spans to `endpoint`, the base address of a collector that takes OTLP over HTTP."""

    def __init__(self, endpoint: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
            from opentelemetry.sdk.trace.export import SpanExportResult
            from opentelemetry.trace import SpanKind, Status, StatusCode
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            raise MissingExtra("traces are sent with OpenTelemetry: pip install 'knapcache[telemetry]'") from None

        made: list[ReadableSpan] = []

        class Collecting(SpanProcessor):
            """Keeps what has ended."""

            def on_end(self, span: ReadableSpan) -> None:
                made.append(span)

        self._made = made
        self._exporter = OTLPSpanExporter(address(endpoint), timeout=PATIENCE)
        self._provider = TracerProvider(resource=Resource.create(identity()), shutdown_on_exit=False)
        self._provider.add_span_processor(Collecting())
        self._tracer = self._provider.get_tracer("knapcache", version("knapcache"))
        self._context = TraceContextTextMapPropagator().extract
        self._server, self._success = SpanKind.SERVER, SpanExportResult.SUCCESS
        self._error = Status(StatusCode.ERROR)
        self._told = False
        self._behind: BatchWorker[Event] = BatchWorker("telemetry", self._send)

    def consume(self, events: Sequence[Event]) -> None:
        """Take a batch; it is sent soon."""
        self._behind.offer(events)

    @property
    def lost(self) -> int:
        """Requests whose spans did not arrive."""
        return self._behind.lost

    def close(self, seconds: float = 5.0) -> None:
        """Send what waits, for so long at most."""
        done = self._behind.close(seconds)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # also ends the wait between two tries
        if done:
            self._provider.shutdown()

    # In the thread.

    def _send(self, events: Sequence[Event]) -> None:
        for k in range(0, len(events), AT_ONCE):
            for event in events[k : k + AT_ONCE]:
                self._span(event)
            spans = self._made[:]
            self._made.clear()
            if not spans:  # the sampler wanted none
                continue
            if self._exporter.export(spans) is self._success:
                self._told = False
                continue
            self._behind.count_lost(len(spans))
            if not self._told:  # once until it works again
                self._told = True
                log.warning("the collector of traces cannot be reached: spans are lost until it can")

    def _span(self, event: Event) -> None:
        start = int(event.time * SECOND)
        operation = OPERATIONS.get(event.endpoint, "") if event.endpoint else ""  # type: ignore[call-overload]
        span = self._tracer.start_span(
            " ".join(filter(None, (operation or "pass", event.model[:LONGEST]))),
            context=self._context({"traceparent": event.trace}) if event.trace else None,
            kind=self._server,
            attributes=attributes(event, operation),
            start_time=start,
        )
        if event.status >= 500:  # below, the fault is the caller's: no error of the server's, say the conventions
            span.set_status(self._error)
        span.end(start + int(event.seconds * SECOND))


def attributes(event: Event, operation: str) -> dict[str, Any]:
    """What a span says of its request."""
    found: dict[str, Any] = {
        "http.response.status_code": event.status,
        "knapcache.outcome": event.outcome,
        "knapcache.tenant": event.tenant,
        "knapcache.saved": event.saved,
        "knapcache.seconds": event.upstream_seconds,
    }
    if operation:
        found |= {"gen_ai.operation.name": operation, "gen_ai.request.stream": event.stream}
    if event.model:
        found["gen_ai.request.model"] = event.model[:LONGEST]
    if event.stream:
        found["gen_ai.response.time_to_first_chunk"] = event.ttfb
    if event.status >= 500:
        found["error.type"] = str(event.status)
    for name, value in (("key", event.key), ("size", event.size), ("cost", event.cost), ("upstream", event.upstream)):
        if value:
            found[f"knapcache.{name}"] = value
    if event.usd is not None:
        found["knapcache.usd"] = event.usd
    return found


def address(endpoint: str) -> str:
    """Where spans go: `/v1/traces` below a base address, as OTEL_EXPORTER_OTLP_ENDPOINT has it."""
    try:
        parts = urlsplit(endpoint)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and not parts.fragment
    except ValueError:
        good = False
    if not good:
        raise InvalidInput(f"otlp_endpoint must be an address such as http://localhost:4318, not {endpoint!r}")
    base = endpoint.rstrip("/")
    return base if base.endswith("/v1/traces") else f"{base}/v1/traces"


def identity() -> dict[str, Any]:
    """Who sends: knapcache, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES say otherwise."""
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return {"service.version": version("knapcache")} | ({} if named else {"service.name": "knapcache"})
