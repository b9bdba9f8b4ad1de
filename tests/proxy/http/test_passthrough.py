"""Requests that are not cacheable are forwarded unchanged, and so are their responses."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from knapcache.testing import FakeUpstream
from tests.support.events import EventList
from tests.support.proxy_fixtures import Start
from tests.support.recording_upstream import RecordingUpstream, plain, send
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until


class Mirror(BaseHTTPRequestHandler):
    """Responds with the request, byte for byte."""

    protocol_version = "HTTP/1.1"

    def _mirror(self) -> None:
        if self.headers.get("transfer-encoding") == "chunked":
            content = b""
            while size := int(self.rfile.readline(), 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            content = self.rfile.read(int(self.headers.get("content-length", 0)))
        seen = f"{self.command} {self.path}\n".encode() + content
        compressed = gzip.compress(seen) if "gzip" in self.headers.get("accept-encoding", "") else seen
        self.send_response(207)
        self.send_header("x-own", "forwarded")
        self.send_header("x-content-type-seen", self.headers.get("content-type", ""))
        if compressed is not seen:
            self.send_header("content-encoding", "gzip")
        self.send_header("content-length", str(len(compressed)))
        self.end_headers()
        self.wfile.write(compressed)

    do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = _mirror  # noqa: N815 - its names

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture
def mirror() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PUT", "PATCH"])
@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_every_method_path_query_and_body_passes(start: Start, mirror: str, method: str, encoding: str) -> None:
    proxy = start(upstreams=[{"name": "mirror", "url": mirror}])
    content = b"" if method == "GET" else b"\x00binary\xff" * 1000
    headers = {"content-type": "application/octet-stream", "accept-encoding": encoding}
    answer = httpx.request(method, f"{proxy.openai_url}/files/a%2Fb?x=1&y=%20z", content=content, headers=headers)
    assert answer.status_code == 207
    assert answer.headers["x-own"] == "forwarded"
    assert answer.headers["x-content-type-seen"] == "application/octet-stream"
    assert answer.headers["x-knapcache"] == "passthrough"
    assert answer.headers.get("content-encoding", "identity") == encoding
    assert answer.content == f"{method} /v1/files/a%2Fb?x=1&y=%20z\n".encode() + content


def test_a_body_without_a_length_passes(start: Start, mirror: str) -> None:
    proxy = start(upstreams=[{"name": "mirror", "url": mirror}])
    answer = httpx.post(f"{proxy.openai_url}/audio/transcriptions", content=iter([b"one", b"two"]))
    assert answer.content.endswith(b"onetwo")


def test_which_upstream(start: Start, upstream: FakeUpstream, mirror: str) -> None:
    proxy = start(
        upstreams=[
            {"name": "mirror", "url": mirror, "models": ["m*"]},
            {"name": "fake", "url": upstream.openai_url, "models": ["f*"]},
        ]
    )
    with httpx.Client(base_url=proxy.openai_url) as client:
        assert client.get("/models").status_code == 207
        answer = client.post("/images/generations", json={"model": "m1"})
        assert (answer.status_code, answer.headers["x-content-type-seen"]) == (207, "application/json")
        assert (
            client.post("/images/generations", json={"model": "f1"}).status_code == 404
        )  # the fake knows no such path
        assert upstream.count("/images/generations") == 1
        unknown = client.post("/images/generations", json={"model": "x"})
        assert unknown.status_code == 404
        assert "No upstream serves the model 'x'" in unknown.text
        hello = {"messages": [{"role": "user", "content": "hello"}]}
        assert client.post("/chat/completions", json={"model": "f1", **hello}).json()["choices"]
        assert client.post("/chat/completions", json={"model": "x", **hello}).status_code == 404


SONNET, OPUS = "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "anthropic.claude-opus-4-20250514-v1:0"
OPERATIONS = ("converse", "converse-stream", "invoke", "invoke-with-response-stream")


@pytest.mark.features
def test_requests_to_bedrock_pass_unmarked(start: Start) -> None:
    """Also with the prefix tier on. The model in their path selects the upstream, and is in the event."""
    with RecordingUpstream() as server:
        upstreams = [
            {"name": "other", "url": server.url, "prompt_cache": "anthropic", "models": [OPUS]},
            {"name": "bedrock", "url": server.url, "prompt_cache": "anthropic"},
        ]
        proxy = start(prefix="on", upstreams=upstreams)
        events = EventList()
        proxy.proxy.events.add_consumer(events)
        sent = []
        with httpx.Client(base_url=proxy.openai_url, headers={"authorization": "Bearer bedrock-key"}) as client:
            for turn, operation in enumerate(OPERATIONS * 2):
                model = SONNET if turn % 3 else OPUS
                stream = "stream" in operation
                kind = "application/vnd.amazon.eventstream" if stream else "application/json"
                server.script(send(plain(b"\x00answer", f"content-type: {kind}")))
                content = [{"type": "text", "text": "u" * 9000}] * (turn + 1)
                body = {"anthropic_version": "bedrock-2023-05-31", "system": "s" * 9000, "max_tokens": 9}
                raw = json.dumps({**body, "messages": [{"role": "user", "content": content}]}, indent=1).encode()
                answer = client.post(f"/model/{model.replace(':', '%3A')}/{operation}", content=raw)
                assert (answer.status_code, answer.content) == (200, b"\x00answer")
                assert answer.headers["x-knapcache"] == "passthrough"
                sent.append((raw, f"/model/{model.replace(':', '%3A')}/{operation}", model, stream))
        assert [(request.body, request.target) for request in server.requests] == [each[:2] for each in sent]
        wait_until(lambda: len(events) == len(sent))
        assert [(event.model, event.stream) for event in events] == [each[2:] for each in sent]
        assert [event.upstream for event in events] == [
            "other" if model == OPUS else "bedrock" for _, _, model, _ in sent
        ]
        assert [(event.outcome, event.parts) for event in events] == [("passthrough", {})] * len(events)


@pytest.mark.features
def test_requests_to_bedrock_count_in_limits(start: Start, mirror: str) -> None:
    proxy = start(upstreams=[{"name": "bedrock", "url": mirror}], limits={"requests_per_minute": 2})
    body = {"messages": [{"role": "user", "content": [{"text": "hello"}]}]}
    answers = [httpx.post(f"{proxy.openai_url}/model/{SONNET}/converse", json=body) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [207, 207, 429]


def test_a_signature_for_another_host_is_refused(start: Start, mirror: str) -> None:
    proxy = start(upstreams=[{"name": "bedrock", "url": mirror}])
    signature = "AWS4-HMAC-SHA256 Credential=a/20261116/us-east-1/bedrock/aws4_request, SignedHeaders=host, Signature=b"
    headers = {"authorization": signature}
    assert httpx.post(f"{proxy.openai_url}/model/{SONNET}/converse", json={}, headers=headers).status_code == 401


def test_models_of_the_same_name_at_two_providers_are_two(start: Start, upstream: FakeUpstream) -> None:
    """The address is part of the key: after a change of configuration nothing of the old provider is given."""
    hello = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    with FakeUpstream() as other:
        for url in (upstream.openai_url, other.openai_url):
            proxy = start(upstreams=[{"name": "same", "url": url}])
            assert httpx.post(f"{proxy.openai_url}/chat/completions", json=hello).headers["x-knapcache"] == "miss"
            proxy.stop()
        assert upstream.count() == other.count() == 1


def test_health(proxy: RunningProxy) -> None:
    assert httpx.get(f"{proxy.url}/healthz").text == "ok\n"
    assert httpx.get(f"{proxy.url}/readyz").status_code == 200
    proxy.proxy.ready = False
    assert httpx.get(f"{proxy.url}/readyz").status_code == 503
    assert httpx.get(f"{proxy.url}/healthz").status_code == 200
