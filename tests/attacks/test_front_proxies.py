"""The proxy behind nginx and HAProxy, with the configurations of the operations guide and with careless ones.

A front proxy keeps connections to the proxy open and sends requests of many clients over each. If the two disagree on
where a request ends, the rest of one client's request becomes the beginning of another's. All requests that a front
proxy sends have `X-Forwarded-For`. The attacks have none, so a request that reaches the application without it was
smuggled.
"""

from __future__ import annotations

import itertools
import re
import threading
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import h11
import pytest

from knapcache.proxy.http.app import App
from knapcache.proxy.settings import Settings
from tests.attacks.test_request_framing import ACCEPTED, REFUSED, SMUGGLED, UNFINISHED, Attack, post
from tests.support.front_proxies import OPERATIONS, FrontProxy, careless, documented
from tests.support.raw_client import CHAT, RawClient, WireResponse, chat, chat_body, chunked, exchange, message
from tests.support.recording_upstream import RecordedRequest, RecordingUpstream, UpstreamSide
from tests.support.running_proxy import RunningProxy

NUMBERS = itertools.count(1)
MAX_BODY = 2_000_000
UPGRADES: dict[str, Attack] = {
    f"{name}, {kind}": post(f"Upgrade: {value}", f"Connection: {connection}", *more, framing, body=body)
    for name, value, connection, more in (
        ("h2c", "h2c", "Upgrade, HTTP2-Settings", ("HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA",)),
        (
            "websocket",
            "websocket",
            "Upgrade",
            ("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13"),
        ),
        ("another protocol", "foo/2", "keep-alive, Upgrade", ()),
        ("TLS", "TLS/1.0", "Upgrade", ()),
    )
    for kind, framing, body in (
        ("length", f"Content-Length: {len(SMUGGLED)}", SMUGGLED),
        ("chunked", "Transfer-Encoding: chunked", chunked(SMUGGLED)),
        ("no body", "X: y", SMUGGLED),
    )
}


@pytest.fixture(scope="module")
def proxy_settings() -> dict[str, Any]:
    hosts = ("127.0.0.1", "llm.example.com")
    return {"max_body": MAX_BODY, "trusted_proxies": "127.0.0.1", "allowed_hosts": hosts}


@pytest.fixture(scope="module")
def seen() -> Iterator[list[Any]]:
    """The scopes of all requests that reach the application."""
    scopes: list[Any] = []
    original = App.__call__

    async def recording(self: App, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] != "/readyz":
            scopes.append(scope)
        await original(self, scope, receive, send)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(App, "__call__", recording)
        yield scopes


@pytest.fixture(scope="module", params=["nginx", "haproxy", "nginx-careless", "haproxy-careless"])
def front(
    request: pytest.FixtureRequest, proxy: RunningProxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FrontProxy]:
    kind, _, mode = request.param.partition("-")
    site = careless(kind) if mode else documented(kind)
    with FrontProxy(tmp_path_factory.mktemp(kind), kind, site, proxy.url) as front:
        yield front
        assert front.process.poll() is None


def smuggled(seen: list[Any]) -> list[str]:
    """Return the paths of requests that the front proxy did not send."""
    names = [(scope["path"], {name for name, _ in scope["headers"]}) for scope in list(seen)]
    return [path for path, headers in names if b"x-forwarded-for" not in headers]


@pytest.fixture(autouse=True)
def nothing_smuggled(seen: list[Any]) -> Iterator[None]:
    seen.clear()
    yield
    assert smuggled(seen) == []
    seen.clear()


def check_victim(front: FrontProxy) -> None:
    """Send a request as another client, and check that it gets its own answer."""
    text = f"victim {next(NUMBERS)}"
    (response,) = exchange(front.url, chat(text, key="victim"))
    assert (response.status, response.text) == (200, f"You said: {text}")


def responses_of(front: FrontProxy, sent: bytes, patience: float = 0.1) -> list[WireResponse]:
    """Send an attack. Return at most two responses: those that come before a pause, or before the connection closes."""
    found: list[WireResponse] = []
    with RawClient(front.url, timeout=patience) as client:
        client.send(sent)
        try:
            while len(found) < 2 and (response := client.response_or_none()):
                found.append(response)
        except TimeoutError:
            pass
        except h11.RemoteProtocolError:  # nginx answers HTTP/0.9 without a head
            pass
    return found


@pytest.mark.parametrize("table", ["refused", "accepted", "unfinished", "upgrades"])
def test_no_request_is_smuggled_and_no_answer_crosses(
    table: str, front: FrontProxy, upstream: RecordingUpstream, seen: list[Any]
) -> None:
    tables = {"refused": REFUSED, "accepted": ACCEPTED, "unfinished": UNFINISHED, "upgrades": UPGRADES}
    check_victim(front)  # opens the connection that the attack will share
    for name, attack in tables[table].items():
        for path in (CHAT, "/v1/other"):
            statuses = [response.status for response in responses_of(front, attack(path))]
            assert 101 not in statuses
            assert smuggled(seen) == [], name
            check_victim(front)
    assert not any("evil" in target.lower() for target in upstream.targets)


def test_a_victim_is_never_captured_by_an_unfinished_request(front: FrontProxy, upstream: RecordingUpstream) -> None:
    """The classic attack: the smuggled part ends inside a header or a body, and the victim's request completes it."""
    catcher = message("POST /v1/catch HTTP/1.1", "Content-Length: 4000", length=False)
    frames = {
        "upgrade": post("Upgrade: h2c", "Connection: Upgrade", f"Content-Length: {len(catcher)}", body=catcher),
        "content-length and chunked": post(
            f"Content-Length: {len(catcher) + 5}", "Transfer-Encoding: chunked", body=b"0\r\n\r\n" + catcher
        ),
        "chunk extension": post("Transfer-Encoding: chunked", body=b"1;\n0\r\n0\r\n\r\n" + catcher),
        "get with a body": post(f"Content-Length: {len(catcher)}", body=catcher, start="GET {} HTTP/1.1"),
        "space before the colon": post(f"Content-Length : {len(catcher)}", "Content-Length: 0", body=catcher),
        "version 1.0": post("Transfer-Encoding: chunked", body=b"0\r\n\r\n" + catcher, start="POST {} HTTP/1.0"),
    }
    check_victim(front)
    for name, attack in frames.items():
        for path in (CHAT, "/v1/other"):
            responses_of(front, attack(path))
            for _ in range(2):
                check_victim(front)
            bodies = [request.body for request in upstream.requests if b"Bearer victim" in request.body]
            assert bodies == [], name


def test_concurrent_clients_get_their_own_answers(front: FrontProxy, upstream: RecordingUpstream) -> None:
    upstream.delay = 0.002

    def run(number: int) -> None:
        with RawClient(front.url) as client:
            for k in range(24):
                stream = k % 3 == 0
                # Half of the texts are asked by all clients, so hits, misses and coalesced requests mix.
                text = f"shared {k}" if k % 2 else f"client {number} question {k}"
                client.send(chat(text, key="same", stream=stream))
                response = client.response()
                assert response.status == 200, response
                if stream:
                    assert response.body.endswith(b"data: [DONE]\n\n")
                    words = re.findall(rb'"content": ?"((?:[^"\\]|\\.)*)"', response.body)
                    assert b"".join(words).decode() == f"You said: {text}"
                else:
                    assert response.text == f"You said: {text}"

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, range(8)))


def test_clients_that_leave_in_the_middle_harm_nobody(front: FrontProxy, upstream: RecordingUpstream) -> None:
    for k in range(6):
        upstream.pace = 0.01
        with RawClient(front.url) as client:  # in the middle of a stream
            client.send(chat(f"a long stream {next(NUMBERS)} " + "word " * 20, stream=True))
            assert client.receive()
            client.reset()
        upstream.pace = 0.0
        check_victim(front)
        body = chat_body("never complete " * 50)
        with RawClient(front.url) as client:  # in the middle of a body
            client.send(message(f"POST {CHAT} HTTP/1.1", f"Content-Length: {len(body)}", length=False), body[:100])
            client.reset() if k % 2 else client.end()
        check_victim(front)
    assert all(request.json() is not None for request in upstream.requests), "half a body reached the upstream"


def test_too_large_requests_are_refused_and_the_next_client_is_served(front: FrontProxy) -> None:
    large = b" " * (MAX_BODY + 1000)
    for sent in (
        message(f"POST {CHAT} HTTP/1.1", "Authorization: Bearer k", body=large),
        message(f"POST {CHAT} HTTP/1.1", "Transfer-Encoding: chunked", length=False) + chunked(large),
        message("POST /v1/files HTTP/1.1", "Authorization: Bearer k", body=large),
    ):
        (response,) = exchange(front.url, sent)
        assert response.status == 413
        check_victim(front)
    for headers in (["X: " + "y" * 100_000], [f"X-{k}: y" for k in range(2000)]):
        with RawClient(front.url) as client:
            client.send(chat("many headers", *headers))
            (response,) = client.responses(1)
        assert response.status in (400, 414, 431, 502)
        check_victim(front)


def test_large_uploads_arrive_whole(front: FrontProxy, upstream: RecordingUpstream) -> None:
    body = bytes(range(256)) * 6000
    for sent in (
        message("POST /v1/files HTTP/1.1", "Authorization: Bearer k", body=body),
        message("POST /v1/files HTTP/1.1", "Authorization: Bearer k", "Transfer-Encoding: chunked", length=False)
        + chunked(*(body[k : k + 100_000] for k in range(0, len(body), 100_000))),
    ):
        (response,) = exchange(front.url, sent)
        assert response.status == 200
        assert upstream.requests[-1].body == body


def test_expect_and_trailers_pass_or_are_dropped(front: FrontProxy, upstream: RecordingUpstream) -> None:
    text = f"expect {next(NUMBERS)}"
    with RawClient(front.url) as client:
        head, _, body = chat(text, "Expect: 100-continue").partition(b"\r\n\r\n")
        assert client.send(head + b"\r\n\r\n", body, pause=0.05).response().text == f"You said: {text}"
        chunks = (
            chunked(chat_body(f"trailer {next(NUMBERS)}"))[:-2] + b"Authorization: Bearer evil\r\nHost: evil\r\n\r\n"
        )
        start = message(f"POST {CHAT} HTTP/1.1", "Authorization: Bearer k", "Transfer-Encoding: chunked", length=False)
        client.send(start, chunks)
        client.responses(1)
    check_victim(front)
    for request in upstream.requests:
        assert "evil" not in str(request.headers)


def test_a_stream_arrives_event_by_event(front: FrontProxy, upstream: RecordingUpstream) -> None:
    if front.careless and front.kind == "nginx":
        pytest.skip("nginx buffers responses unless it is told not to")
    received, in_time = threading.Event(), threading.Event()

    def script(side: UpstreamSide, _request: RecordedRequest) -> None:
        side.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        event = b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"first"}}]}\n\n'
        side.send(b"%x\r\n%b\r\n" % (len(event), event))
        if received.wait(60):
            in_time.set()
        side.send(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    upstream.script(script)
    with RawClient(front.url) as client:
        data = client.send(chat(f"slow {next(NUMBERS)}", stream=True)).receive()
        while b"first" not in data:
            piece = client.receive()
            assert piece, data
            data += piece
        received.set()
        while b"[DONE]" not in data:
            data += client.receive()
    assert in_time.wait(60)


def test_a_client_cannot_choose_its_address(front: FrontProxy) -> None:
    """The address of a client that sends X-Forwarded-For itself: here 127.0.0.2, which is not in trusted_proxies."""
    statuses = []
    for k in range(12):
        with RawClient(front.url, source="127.0.0.2") as client:
            headers = [f"Authorization: Bearer wrong-{front.url}-{k}", f"X-Forwarded-For: 10.0.0.{k}"]
            client.send(message("GET /admin/v1/summary HTTP/1.1", *headers, length=False))
            (response,) = client.responses(1, ["GET"])
            statuses.append(response.status)
    assert statuses[-1] == (404 if statuses[0] == 404 else 429), "404: the admin API is not reachable from outside"


def test_the_documented_settings_fit_the_documented_front_proxies() -> None:
    text = OPERATIONS.read_text(encoding="utf-8")
    (toml,) = [each for each in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "trusted_proxies" in each]
    settings = Settings(**tomllib.loads(toml))
    nginx, haproxy = documented("nginx"), documented("haproxy")
    (name,) = re.findall(r"server_name (\S+);", nginx)
    assert name in settings.allowed_hosts
    (size,) = re.findall(r"client_max_body_size (\d+)m;", nginx)
    assert int(size) << 20 >= settings.max_body
    (size,) = re.findall(r"gt (\d+) }", haproxy)
    assert int(size) >= settings.max_body
