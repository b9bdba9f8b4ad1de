"""Tracing: the spans that a collector receives over HTTP, decoded with OpenTelemetry's own classes."""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from knapcache.errors import MissingExtra, install_command
from knapcache.model import Endpoint
from knapcache.proxy.events import tracing
from knapcache.proxy.events.events import Event, UpstreamTry
from knapcache.proxy.events.tracing import OPERATIONS, Tracing, attributes, traces_url
from tests.support import ROOT
from tests.support.events import SamplePart, event, traffic
from tests.support.timing import within

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector:
    """A collector on loopback."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []
        self.status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.paths.append(self.path)
                if outer.status == 200:
                    outer.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(outer.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    @property
    def spans(self) -> list[Span]:
        """All received spans."""
        return [s for r in self.requests for rs in r.resource_spans for ss in rs.scope_spans for s in ss.spans]

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    found = Collector()
    yield found
    found.close()


def exported(collector: Collector, *events: Event) -> list[Span]:
    traces = Tracing(collector.url)
    traces.consume(events)
    traces.close()
    assert traces.dropped == 0
    return collector.spans


def attributes_of(span: Span) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in span.attributes}


def test_a_span_describes_its_request(collector: Collector) -> None:
    (span,) = exported(collector, event("hit", time=1.7e9, seconds=0.25, stream=True, ttfb=0.125, upstream_seconds=2.0))
    assert collector.paths == ["/v1/traces"]
    assert span.name == "chat gpt-4o"
    assert span.kind == Span.SPAN_KIND_SERVER
    assert span.start_time_unix_nano == 1_700_000_000 * 10**9
    assert span.end_time_unix_nano - span.start_time_unix_nano == 250_000_000
    assert span.status.code == Status.STATUS_CODE_UNSET
    assert span.parent_span_id == b""
    assert attributes_of(span) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.request.stream": True,
        "gen_ai.response.time_to_first_chunk": 0.125,
        "http.response.status_code": 200,
        "knapcache.outcome": "hit",
        "knapcache.saved": True,
        "knapcache.tenant": "team-a",
        "knapcache.key": "ab" * 32,
        "knapcache.size": 2000,
        "knapcache.cost": 0.5,
        "knapcache.usd": 0.5,
        "knapcache.upstream_seconds": 2.0,
    }
    (spans,) = collector.requests[0].resource_spans
    assert {pair.key: pair.value.string_value for pair in spans.resource.attributes}["service.name"] == "knapcache"


def test_other_endpoints_and_failures(collector: Collector) -> None:
    spans = exported(
        collector,
        event("failed", status=502, usd=None, size=0, key="", upstream="openai"),
        event("rejected", status=401),
        event("passthrough", endpoint="", model=""),
        event("miss", endpoint="embeddings", model="m" * 500),
    )
    assert [span.name for span in spans] == ["chat gpt-4o", "chat gpt-4o", "passthrough", "embeddings " + "m" * 100]
    assert [span.status.code for span in spans] == [Status.STATUS_CODE_ERROR] + [Status.STATUS_CODE_UNSET] * 3
    assert attributes_of(spans[0])["error.type"] == "502"
    assert "knapcache.usd" not in attributes_of(spans[0])
    assert attributes_of(spans[0])["knapcache.upstream"] == "openai"
    assert "gen_ai.operation.name" not in attributes_of(spans[2])
    assert set(OPERATIONS) == set(Endpoint)


def test_spans_join_the_clients_trace(collector: Collector) -> None:
    joined, own, *broken = exported(
        collector,
        event(trace=f"00-{TRACE}-{PARENT}-01"),
        event(),
        event(trace=f"00-{TRACE}-{PARENT}-00"),  # the client does not record this one
        event(trace=f"ff-{TRACE}-{PARENT}-01"),
        event(trace=f"00-{'0' * 32}-{PARENT}-01"),
        event(trace="Bearer sk-secret"),
        event(trace="\x00" * 5000),
    )
    assert (joined.trace_id.hex(), joined.parent_span_id.hex()) == (TRACE, PARENT)
    assert own.trace_id.hex() != TRACE
    assert len(broken) == 4
    for span in broken:
        assert span.parent_span_id == b""
        assert span.trace_id.hex() not in (TRACE, "0" * 32)
    assert len({span.span_id for span in collector.spans}) == 6
    assert b"sk-secret" not in collector.requests[0].SerializeToString()


def test_features_add_attributes_for_their_parts(collector: Collector) -> None:
    traces = Tracing(collector.url, lambda parts: {"knapcache.sample": parts["sample"].text})
    traces.consume([event("miss", sample=SamplePart("a")), event("hit")])
    traces.close()
    assert [attributes_of(span).get("knapcache.sample") for span in collector.spans] == ["a", None]


def test_spans_are_sent_in_batches(collector: Collector) -> None:
    spans = exported(collector, *traffic(1200))
    assert len(spans) == 1200
    assert len(collector.requests) == 3


def test_the_sampler_decides(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "the-proxy")
    spans = exported(collector, event(), event(trace=f"00-{TRACE}-{PARENT}-01"), event())
    assert [span.trace_id.hex() for span in spans] == [TRACE]
    assert "the-proxy" in str(collector.requests[0].resource_spans[0].resource)


def test_a_collector_that_rejects_spans_is_logged_once(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "knapcache")
    collector.status = 400
    traces = Tracing(collector.url)
    for _ in range(3):
        traces.consume([event(), event()])
    traces.close()
    assert traces.dropped == 6
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("knapcache")]
    assert messages == ["Spans dropped: the collector cannot be reached or rejects them."]


def test_an_absent_collector_blocks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Collector()
    gone.close()
    monkeypatch.setattr(tracing, "EXPORT_TIMEOUT", 60.0)
    traces = Tracing(gone.url)
    with within(20.0, "the close"):
        traces.consume([event()] * 10)
        traces.close(0.2)
    assert traces.dropped == 10


def test_addresses() -> None:
    for address in ("http://c:4318", "http://c:4318/", "http://c:4318/v1/traces"):
        assert traces_url(address) == "http://c:4318/v1/traces"
    assert traces_url("https://c/otlp") == "https://c/otlp/v1/traces"


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(MissingExtra, match=re.escape(install_command("telemetry"))):
        Tracing("http://localhost:4318")


def test_every_attribute_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "observability.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `([\w.]+)` \|", page.split("## Traces")[1], re.MULTILINE)
    all_attributes = attributes(
        event("miss", stream=True, status=502, tried=(UpstreamTry("a", (0,), "", 0.0),)), "chat"
    )
    assert set(all_attributes) <= set(documented)
