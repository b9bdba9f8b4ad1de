"""The harness itself: what the upstream recorded is what was sent, and a smuggled request would be seen."""

from __future__ import annotations

from tests.attacks.conftest import Connect
from tests.support.proxy_process import ProxyProcess
from tests.support.raw_client import RawClient, chat, exchange, get
from tests.support.recording_upstream import RecordingUpstream


def test_responses_and_upstream_requests_are_recorded_exactly(connect: Connect, upstream: RecordingUpstream) -> None:
    client = connect()
    sent = chat("hello", "X-Test: 1")
    client.send(sent[:10], sent[10:90], sent[90:], pause=0.001)
    client.send(chat("hello", "X-Test: 1") + get("/v1/models?limit=1"))
    miss, hit, passed = client.responses(3)
    assert [miss.outcome, hit.outcome, passed.outcome] == ["miss", "hit", "passthrough"]
    assert miss.text == hit.text == "You said: hello"
    assert passed.json()["target"] == "/v1/models?limit=1"
    assert upstream.targets == ["POST /v1/chat/completions", "GET /v1/models?limit=1"]
    assert upstream.requests[0].json()["messages"][0]["content"] == "hello"
    assert upstream.requests[0].values("authorization") == ["Bearer k"]


def test_the_upstream_reports_a_second_request_in_the_same_bytes(upstream: RecordingUpstream) -> None:
    with RawClient(upstream.url) as client:
        client.send(get("/one") + get("/two")).responses(2, ["GET", "GET"])
    assert upstream.targets == ["GET /one", "GET /two"]


def test_a_process_serves_and_reports_its_memory(process: ProxyProcess, upstream: RecordingUpstream) -> None:
    (response,) = exchange(process.url, chat("process"))
    assert response.status == 200
    assert len(upstream.requests) == 1
    assert 10 << 20 < process.memory() <= process.peak_memory()
