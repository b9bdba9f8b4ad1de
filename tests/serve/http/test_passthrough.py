"""Requests that are not cacheable are forwarded unchanged, and so are their responses."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from knapcache.testing import FakeUpstream
from tests.serve.conftest import Start
from tests.support.running_proxy import RunningProxy


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
        assert client.post("/images/generations", json={"model": "m1"}).status_code == 207
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
