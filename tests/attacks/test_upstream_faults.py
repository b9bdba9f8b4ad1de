"""A misbehaving upstream: nothing wrong is stored, no answer reaches another request, and other callers are served."""

from __future__ import annotations

import gzip
import itertools
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.attacks.conftest import Connect
from tests.support.certificates import make_certificate
from tests.support.raw_client import CHAT, chat, exchange, get
from tests.support.recording_upstream import RecordedRequest, RecordingUpstream, UpstreamSide, plain, send
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until, within

TEXTS = (f"fault {number}" for number in itertools.count())
MAX_ANSWER = 2_000_000


@pytest.fixture(scope="module")
def proxy_settings(upstream: RecordingUpstream) -> dict[str, Any]:
    own = {"name": "fake", "url": upstream.openai_url, "retries": 0, "timeout": 20}
    return {"upstreams": [own], "max_answer": MAX_ANSWER}


def answer(text: str) -> bytes:
    """Return a complete answer that no request asks for."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return json.dumps({"id": "evil", "object": "chat.completion", "model": "m", "choices": [choice]}).encode()


EVIL = answer("EVIL")
LENGTH = b"content-length: %d\r\n" % len(EVIL)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n"
AS_CHUNK = b"%x\r\n%b\r\n" % (len(EVIL), EVIL)
BOMB = gzip.compress(bytes(100_000_000), 9)
FAULTS = {
    "equal lengths in a list": HEAD + b"content-length: %d, %d\r\n\r\n" % (len(EVIL), len(EVIL)) + EVIL,
    "a signed length": HEAD + b"content-length: +%d\r\n\r\n" % len(EVIL) + EVIL,
    "an unknown transfer encoding": HEAD + b"transfer-encoding: chunked, evil\r\n\r\n" + AS_CHUNK + b"0\r\n\r\n",
    "a short body": HEAD + b"content-length: %d\r\n\r\n" % (len(EVIL) + 1) + EVIL,
    "a body cut at the end of the connection": HEAD + b"\r\n" + EVIL[:-1],
    "no last chunk": CHUNKED + b"\r\n" + AS_CHUNK,
    "endless chunk extensions": CHUNKED + b"\r\n5;" + b"x" * 1_000_000 + b"\r\nhello\r\n0\r\n\r\n",
    "endless trailers": CHUNKED + b"\r\n" + AS_CHUNK + b"0\r\n" + b"x: y\r\n" * 100_000,
    "informational responses without end": b"HTTP/1.1 100 Continue\r\n\r\n" * 1000 + HEAD + LENGTH + b"\r\n" + EVIL,
    "a huge head": HEAD + b"x: %b\r\n" % (b"y" * 1_000_000) + LENGTH + b"\r\n" + EVIL,
    "many headers": HEAD + b"x: y\r\n" * 80_000 + LENGTH + b"\r\n" + EVIL,
    "a folded header": HEAD + b"x: y\r\n z\r\n" + LENGTH + b"\r\n" + EVIL,
    "bare line feeds": (HEAD + LENGTH + b"\r\n").replace(b"\r\n", b"\n") + EVIL,
    "truncated gzip": plain(gzip.compress(EVIL)[:-4], "content-encoding: gzip"),
    "gzip with a wrong checksum": plain(gzip.compress(EVIL)[:-8] + b"\0" * 8, "content-encoding: gzip"),
    "a gzip bomb": plain(BOMB, "content-encoding: gzip"),
    "a status of four digits": HEAD.replace(b"200", b"2000") + LENGTH + b"\r\n" + EVIL,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "nothing": b"",
}  # fmt: skip
NOT_AN_ANSWER = {
    "a page": plain(b"<html>please wait</html>", "content-type: text/html"),
    "truncated JSON": plain(EVIL[:-1], "content-type: application/json"),
    "two JSON texts": plain(EVIL + EVIL, "content-type: application/json"),
    "an error with status 200": plain(b'{"error": {"message": "overloaded"}}', "content-type: application/json"),
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "a part": plain(EVIL, "content-range: bytes 0-9/10", status="206 Partial Content"),
    "not modified": b"HTTP/1.1 304 Not Modified\r\n\r\n",
    "a redirect": plain(EVIL, "location: http://127.0.0.1:9/", status="302 Found"),
}  # fmt: skip


def is_served(connect: Connect, text: str) -> None:
    """Check that a repeated request is fetched, stored and right."""
    for outcome in ("miss", "hit"):
        found = connect().send(chat(text)).response()
        assert (found.status, found.outcome, found.text) == (200, outcome, f"You said: {text}")


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_response_that_is_no_valid_http_is_an_error(
    connect: Connect, upstream: RecordingUpstream, fault: str, stream: bool
) -> None:
    text = next(TEXTS)
    # A complete response that cannot be decoded: its connection may be reused, so a close would race the next request.
    upstream.script(send(FAULTS[fault], then="keep" if b"content-encoding" in FAULTS[fault] else "close"))
    found = connect().send(chat(text, stream=stream)).response()
    if fault == "a body cut at the end of the connection":  # valid HTTP; the JSON is truncated
        assert (found.status, found.body) == (200, EVIL[:-1])
    else:
        assert found.status == 502
        assert found.json()["error"]["type"] == "upstream_failed"
        assert b"127.0.0.1" not in found.body
    is_served(connect, text)
    assert len(upstream.requests) == 2


@pytest.mark.parametrize("fault", NOT_AN_ANSWER)
def test_a_response_that_is_no_answer_is_forwarded_and_not_stored(
    connect: Connect, upstream: RecordingUpstream, fault: str
) -> None:
    text = next(TEXTS)
    upstream.script(send(NOT_AN_ANSWER[fault]))
    assert connect().send(chat(text)).response().status == int(NOT_AN_ANSWER[fault].split()[1])
    is_served(connect, text)


@pytest.mark.parametrize("gap", [None, 0.0, 0.05])
@pytest.mark.parametrize("path", [CHAT, "/v1/models"])
def test_bytes_after_a_complete_answer_do_not_answer_the_next_request(
    proxy: RunningProxy, connect: Connect, upstream: RecordingUpstream, path: str, gap: float | None
) -> None:
    """The bytes come in the same segment, in the next one, or 50 ms later."""
    sent, late = threading.Event(), plain(EVIL, "content-type: application/json")

    def script(side: UpstreamSide, _request: RecordedRequest) -> None:
        own = plain(answer("own"), "content-type: application/json")
        side.send(*([own + late] if gap is None else [own, late]), pause=gap or 0.0)
        sent.set()
        side.wait_closed()

    upstream.script(script)
    client = connect()
    first = client.send(chat(next(TEXTS)) if path == CHAT else get(path)).response()
    assert b"own" in first.body
    assert b"EVIL" not in first.body
    wait_until(sent.is_set, "the end of the answer")
    pool = proxy.proxy.upstreams.all[0].client
    wait_until(lambda: not any(pool._idle.values()), "the end of the connection, which must not be reused")
    text = next(TEXTS)
    assert client.send(chat(text)).response().text == f"You said: {text}"
    assert upstream.requests[0].connection != upstream.requests[1].connection


def test_hanging_calls_leave_others_quick(connect: Connect, upstream: RecordingUpstream) -> None:
    upstream.script(*[send(b"HTTP/1.1 200 OK\r\n", then="stall")] * 30, *[send(HEAD + b"\r\n{", then="stall")] * 30)
    hanging = [connect().send(chat(next(TEXTS), stream=k % 2 == 0)) for k in range(60)]
    upstream.wait_for(60)
    client = connect()
    with within(10.0, "20 calls beside hanging ones, which last 20 seconds"):
        for _ in range(20):
            text = next(TEXTS)
            assert client.send(chat(text)).response().text == f"You said: {text}"
    for each in hanging:
        each.socket.close()


class Tls(BaseHTTPRequestHandler):
    """Answers every request over TLS."""

    def do_POST(self) -> None:
        self.server.answered = True  # type: ignore[attr-defined]
        self.wfile.write(plain(EVIL, "content-type: application/json"))

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class QuietServer(ThreadingHTTPServer):
    daemon_threads, answered = True, False

    def handle_error(self, *_: Any) -> None:
        """Ignore failed handshakes."""


@pytest.fixture(scope="module", params=["untrusted", "wrong name"])
def tls_proxy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("tls")
    wrong = request.param == "wrong name"
    certificate = make_certificate(folder / "server", "DNS:other.example" if wrong else "IP:127.0.0.1")
    trusted = certificate if wrong else make_certificate(folder / "other", "IP:127.0.0.1")
    server = QuietServer(("127.0.0.1", 0), Tls)
    server.socket = certificate.server_context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    url = f"https://127.0.0.1:{server.server_address[1]}/v1"
    settings: dict[str, Any] = {"upstreams": [{"name": "tls", "url": url, "retries": 0, "ca_file": trusted.cert}]}
    with RunningProxy(folder / "data", url, **settings) as proxy:
        yield proxy, server
    server.shutdown()
    server.server_close()


def test_a_certificate_that_is_not_trusted_or_has_another_name_is_refused(tls_proxy: Any) -> None:
    proxy, server = tls_proxy
    for request in (chat("tls"), chat("tls", stream=True), get("/v1/models")):
        (found,) = exchange(proxy.url, request, method=request.split()[0].decode())
        assert found.status == 502
        assert b"EVIL" not in found.body
    assert not server.answered
