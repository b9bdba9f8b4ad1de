"""Clients that send nothing, half a request, or read nothing: their connections are closed."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from knapcache.proxy.http.connections import Connections
from tests.attacks.conftest import Connect
from tests.support.programs import find_module
from tests.support.proxy_process import ProxyProcess
from tests.support.raw_client import RawClient, chat, chat_body, get, message
from tests.support.recording_upstream import RecordingUpstream, plain, send
from tests.support.running_proxy import RunningProxy
from tests.support.timing import TooSlow, wait_until

PATHS = ["/v1/chat/completions", "/v1/files", "/admin/v1/login", "/nowhere"]
SHORT = {"head_timeout": 0.4, "body_timeout": 0.4, "idle_timeout": 0.6, "write_timeout": 0.8}


@pytest.fixture(scope="module")
def proxy_settings() -> dict[str, Any]:
    return dict(SHORT)


def connections(proxy: RunningProxy) -> Connections:
    app: Any = proxy._server.config.app
    found: Connections = app.connections
    return found


def is_open(client: RawClient) -> bool:
    """Return whether the server has its end of a connection open, according to the kernel's table."""
    (_, port), (_, server) = client.socket.getsockname(), client.socket.getpeername()
    return f" 0100007F:{server:04X} 0100007F:{port:04X} 01 " in Path("/proc/net/tcp").read_text(encoding="ascii")


def trickle(client: RawClient, data: bytes) -> None:
    """Send a byte every 0.05 seconds until the server closes."""
    client.socket.settimeout(0.05)
    for k in range(400):
        with contextlib.suppress(OSError):
            client.socket.send(data[k : k + 1])
        try:
            if not client.socket.recv(1, 2):  # MSG_PEEK
                return
        except TimeoutError:
            continue
        except OSError:
            return
        client.socket.settimeout(20)
        return
    raise TooSlow("the server still waits after 20 seconds")


def test_a_silent_connection_is_closed_without_a_response(connect: Connect) -> None:
    assert connect().read_until_close() == b""


@pytest.mark.parametrize("sent", [b"P", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "])
def test_half_a_head_gets_408(connect: Connect, sent: bytes) -> None:
    (response,) = connect().send(sent).responses_until_close()
    assert (response.status, response.header("connection")) == (408, "close")


@pytest.mark.parametrize("path", PATHS)
def test_half_a_body_gets_408(connect: Connect, path: str) -> None:
    sent = message(f"POST {path} HTTP/1.1", "Authorization: Bearer k", body=chat_body("half"))[:-5]
    found = connect().send(sent).responses_until_close()
    # A path that does not read the body may have answered already.
    assert [response.status for response in found] in ([408], [404], [401], [403])
    assert path != "/v1/chat/completions" or found[0].status == 408


def test_a_byte_now_and_then_does_not_keep_a_connection_open(connect: Connect) -> None:
    client = connect()
    trickle(client, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * 400)
    for path in ("/v1/chat/completions", "/v1/files"):
        client = connect().send(message(f"POST {path} HTTP/1.1", "Content-Length: 500", length=False))
        trickle(client, b"z" * 400)
    trickle(connect(), b"\r\n" * 400)


def test_an_idle_connection_is_closed(connect: Connect) -> None:
    for sent in (get("/healthz"), chat("idle"), chat("idle"), chat("idle")):  # the last is answered by the fast path
        client = connect().send(sent)
        client.response()
        assert client.read_until_close() == b""


def test_hundreds_of_such_connections_are_closed(connect: Connect, proxy: RunningProxy) -> None:
    half_head, half_body = b"GET /healthz HTTP/1.1\r\nHost: ", chat("half")[:-3]
    clients = [connect().send(sent) for sent in (b"", half_head, half_body) for _ in range(100)]
    for client in clients:
        client.read_until_close()
        client.socket.close()
    wait_until(lambda: len(connections(proxy)) == 0)
    connections(proxy).check()


@pytest.mark.parametrize("path", ["/v1/files", "/v1/chat/completions"])
def test_a_client_that_reads_nothing_is_disconnected(
    connect: Connect, proxy: RunningProxy, upstream: RecordingUpstream, path: str
) -> None:
    upstream.script(send(plain(b"z" * (30 << 20), "content-type: application/octet-stream")))
    wait_until(lambda: len(connections(proxy)) == 0)
    client = connect()
    client.send(message(f"POST {path} HTTP/1.1", "Authorization: Bearer k", "Cache-Control: no-store", body=b"{}"))
    upstream.wait_for(1)
    wait_until(lambda: len(connections(proxy)) == 0)
    assert len(client.read_until_close()) < 30 << 20


def test_a_slow_upstream_closes_no_connection(connect: Connect, upstream: RecordingUpstream) -> None:
    upstream.delay = 2.0
    assert connect().send(chat("slow answer")).response().text == "You said: slow answer"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files"])
def test_a_long_body_that_arrives_steadily_is_served(connect: Connect, path: str) -> None:
    body = chat_body("z" * 400_000)
    head = message(f"POST {path} HTTP/1.1", f"Content-Length: {len(body)}", length=False)
    pieces = [body[k : k + 20_000] for k in range(0, len(body), 20_000)]
    assert connect().send(head, *pieces, pause=0.1).response().status == 200


def test_the_timeouts_hold_on_uvloop(process: ProxyProcess, upstream: RecordingUpstream) -> None:
    find_module("uvloop", "the package uvloop")
    upstream.script(send(plain(b"z" * (30 << 20), "content-type: application/octet-stream")))
    unread = RawClient(process.url).send(message("POST /v1/files HTTP/1.1", "Authorization: Bearer k", body=b"{}"))
    sent = [b"", b"GET /healthz HTTP/1.1\r\nHost: ", chat("half")[:-3], get("/healthz"), b"\x00\r\n\r\n"]
    clients = [RawClient(process.url).send(each) for each in sent]
    statuses = [[response.status for response in client.responses_until_close()] for client in clients]
    assert statuses == [[], [408], [408], [200], [400]]
    upstream.wait_for(1)
    wait_until(lambda: not is_open(unread))
    assert len(unread.read_until_close()) < 30 << 20
    for client in (unread, *clients):
        client.socket.close()
