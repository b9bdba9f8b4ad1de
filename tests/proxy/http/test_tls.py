"""TLS of the proxy: real clients over https, limits on connections, and a certificate that changes."""

from __future__ import annotations

import contextlib
import json
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
import pytest

from knapcache.errors import InvalidInput
from knapcache.proxy.http.tls import ServerCertificate
from knapcache.proxy.run import run, startup_message
from knapcache.proxy.settings import Settings
from knapcache.testing import FakeUpstream
from tests.support.certificates import Certificate, make_certificate
from tests.support.programs import find_program
from tests.support.proxy_process import ADMIN_TOKEN, ProxyProcess
from tests.support.raw_client import RawClient, chat, chat_body, chunked, get, message
from tests.support.running_proxy import RunningProxy
from tests.support.timing import Deadline, wait_until, within

NAMES = ("IP:127.0.0.1", "DNS:localhost")


class TlsProxy(NamedTuple):
    """A running proxy with TLS."""

    url: str
    certificate: Certificate
    upstream: FakeUpstream

    @property
    def context(self) -> ssl.SSLContext:
        """TLS of a client that trusts only the proxy's certificate."""
        return ssl.create_default_context(cafile=str(self.certificate.cert))

    def connect(self, **options: Any) -> RawClient:
        client = RawClient(self.url, **options)
        client.socket = self.context.wrap_socket(client.socket, server_hostname="127.0.0.1")
        return client


@pytest.fixture(scope="module", params=["asyncio", "uvloop, two workers"])
def proxy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsProxy]:
    folder = tmp_path_factory.mktemp("tls")
    certificate = make_certificate(folder / "certificate", *NAMES)
    settings: dict[str, Any] = {
        "tls_cert": certificate.cert,
        "tls_key": certificate.key,
        "head_timeout": 2.0,
        "policy": "lru",
    }
    settings["admin_token"] = ADMIN_TOKEN
    with FakeUpstream() as upstream, contextlib.ExitStack() as stack:
        if request.param == "asyncio":
            running = stack.enter_context(
                RunningProxy(folder / "data", upstream.openai_url, loop="asyncio", **settings)
            )
            url = running.url
        else:
            url = stack.enter_context(ProxyProcess(folder / "data", upstream.openai_url, workers=2, **settings)).url
        yield TlsProxy(url, certificate, upstream)


def test_the_openai_sdk_gets_plain_and_streamed_answers(proxy: TlsProxy) -> None:
    with httpx.Client(verify=proxy.context) as http:
        client = openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="k", http_client=http)
        messages: Any = [{"role": "user", "content": "over TLS"}]
        texts = [client.chat.completions.create(model="m", messages=messages) for _ in range(2)]
        stream = client.chat.completions.create(model="m", messages=messages, stream=True)
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert {text.choices[0].message.content for text in texts} == {streamed}


def test_curl_verifies_the_certificate(proxy: TlsProxy) -> None:
    find_program("curl", "curl")
    command = ["curl", "-sS", "--cacert", str(proxy.certificate.cert), f"{proxy.url}/healthz"]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.startswith("ok")


def test_a_connection_serves_hits_misses_and_pipelined_requests(proxy: TlsProxy) -> None:
    with proxy.connect() as client:
        first = client.send(chat("keep alive")).response()
        assert first is not None
        deadline = Deadline("hits")
        while True:  # a worker that is not the owner finds the entry when the owner has stored it
            hits = client.send(chat("keep alive") * 3).responses(3)
            hits += client.send(chat("keep alive")).responses(1)  # a repeated head
            assert [hit.text for hit in hits] == [first.text] * 4
            if {hit.outcome for hit in hits} == {"hit"}:
                break
            deadline.check()


def test_a_long_body_arrives_whole(proxy: TlsProxy) -> None:
    text = "long " * 600_000
    body = chat_body(text)
    pieces = [body[k : k + 100_000] for k in range(0, len(body), 100_000)]
    start = "POST /v1/chat/completions HTTP/1.1"
    headers = "Authorization: Bearer k", "Content-Type: application/json"
    with proxy.connect() as client:
        counted = client.send(message(start, *headers, body=body)).response()
        in_chunks = client.send(
            message(start, *headers, "Transfer-Encoding: chunked", length=False) + chunked(*pieces)
        ).response()
        assert counted is not None
        assert in_chunks is not None
        assert counted.status == in_chunks.status == 200
        assert counted.text == in_chunks.text


def test_a_long_answer_arrives_whole_before_the_connection_closes(proxy: TlsProxy) -> None:
    with proxy.connect() as client:
        client.send(chat("echo " * 400_000, "Connection: close"))
        time.sleep(0.2)  # the client does not read at once
        response = client.response()
        assert response is not None
        assert json.loads(response.body)["choices"]


def test_a_request_over_a_limit_gets_its_error(proxy: TlsProxy) -> None:
    with proxy.connect() as client:
        response = client.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 101 + b"\r\n").response("GET")
        assert response is not None
        assert response.status == 431


def test_a_handshake_that_never_ends_is_cut(proxy: TlsProxy) -> None:
    hello = ssl.MemoryBIO()
    tls = proxy.context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    with (
        within(15, "the cut"),  # head_timeout is 2 s, and asyncio's own limit is 60 s
        RawClient(proxy.url) as silent,
        RawClient(proxy.url) as half,
        proxy.connect() as idle,
    ):
        half.send(hello.read()[:50])
        assert silent.read_until_close() == half.read_until_close() == idle.read_until_close() == b""


def test_plain_http_is_refused(proxy: TlsProxy) -> None:
    with RawClient(proxy.url) as client:
        assert not client.send(chat("plain")).read_until_close().startswith(b"HTTP")


def test_the_session_cookie_of_the_dashboard_is_secure(proxy: TlsProxy) -> None:
    with httpx.Client(verify=proxy.context, base_url=proxy.url) as client:
        login = client.post("/admin/v1/login", json={"token": ADMIN_TOKEN})
        assert "__Secure-knapcache-session=" in login.headers["set-cookie"]
        assert "; Secure" in login.headers["set-cookie"]


def test_connections_over_the_limit_are_refused_or_make_room(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path / "certificate", *NAMES)
    settings: dict[str, Any] = {
        "tls_cert": certificate.cert,
        "tls_key": certificate.key,
        "max_connections": 4,
        "max_connections_per_address": 4,
        "policy": "lru",
    }
    with (
        FakeUpstream() as upstream,
        RunningProxy(tmp_path, upstream.openai_url, **settings) as running,
        contextlib.ExitStack() as stack,
    ):
        proxy = TlsProxy(running.url, certificate, upstream)
        idle = [stack.enter_context(proxy.connect()) for _ in range(5)]
        assert idle[0].read_until_close() == b""  # closed for the fifth, long before head_timeout
        for client in idle[1:]:
            response = client.send(get("/healthz")).response("GET")
            assert response is not None
            assert response.status == 200


def test_a_changed_certificate_serves_new_connections_and_a_bad_one_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "knapcache.serve")
    old, new = (make_certificate(tmp_path / name, *NAMES) for name in ("old", "new"))
    certificate = ServerCertificate(old.cert, old.key)
    contexts = [certificate.context]
    assert contexts[0].minimum_version == ssl.TLSVersion.TLSv1_2

    def refresh() -> list[str]:
        caplog.clear()
        for _ in range(3):
            certificate.refresh()
        contexts.append(certificate.context)
        return [record.getMessage() for record in caplog.records]

    assert refresh() == []
    shutil.copy(new.cert, old.cert)  # without its key
    assert [line.split(".")[0] for line in refresh()] == ["Certificate not reloaded; the old one stays in use"]
    assert contexts[0] is contexts[1] is contexts[2]
    shutil.copy(new.key, old.key)
    assert refresh() == [f"Certificate reloaded from {old.cert}."]
    assert contexts[3] is not contexts[0]


def test_the_running_proxy_uses_the_changed_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knapcache.proxy.http.tls.REFRESH_INTERVAL", 0.05)
    used, new = (make_certificate(tmp_path / name, *NAMES) for name in ("used", "new"))
    context = ssl.create_default_context(cafile=str(new.cert))
    with (
        FakeUpstream() as upstream,
        RunningProxy(tmp_path, upstream.openai_url, tls_cert=used.cert, tls_key=used.key) as running,
    ):
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{running.url}/healthz", verify=context)
        shutil.copy(new.cert, used.cert)
        shutil.copy(new.key, used.key)

        def serves() -> bool:
            with contextlib.suppress(httpx.ConnectError):
                return httpx.get(f"{running.url}/healthz", verify=context).status_code == 200
            return False

        wait_until(serves, "the new certificate")


def test_a_proxy_stops_while_a_connection_waits_for_the_end_of_tls(tmp_path: Path) -> None:
    """The server has closed it, and the client does not answer."""
    made = make_certificate(tmp_path, *NAMES)
    with (
        FakeUpstream() as upstream,
        RunningProxy(tmp_path, upstream.openai_url, tls_cert=made.cert, tls_key=made.key) as running,
        RawClient(running.url) as client,
    ):
        context = ssl.create_default_context(cafile=str(made.cert))
        client.socket = context.wrap_socket(client.socket, server_hostname="127.0.0.1")
        assert client.send(get("/healthz", "Connection: close")).response("GET") is not None
        app: Any = running._server.config.app
        assert len(app.connections) == 1
        with within(30, "the stop"):
            running.stop()


def test_wrong_files_are_one_error_before_the_start(tmp_path: Path) -> None:
    one, other = (make_certificate(tmp_path / name, *NAMES) for name in ("one", "other"))
    locked = make_certificate(tmp_path / "locked", *NAMES, password="secret")
    for cert, key, problem in (
        (one.cert, other.key, "is not the key of the certificate"),
        (one.key, one.key, "must be PEM files with a certificate and its private key"),
        (locked.cert, locked.key, "is encrypted"),
    ):
        with pytest.raises(InvalidInput, match=problem):
            run(Settings(path=tmp_path, port=0, tls_cert=cert, tls_key=key))
    with pytest.raises(InvalidInput, match=r"^tls_key: is missing, and tls_cert needs it: .* \(--tls-key FILE\)$"):
        Settings(tls_cert=one.cert)
    with pytest.raises(InvalidInput, match=r"^tls_key: needs tls_cert, .* \(--tls-cert FILE\)$"):
        Settings(tls_key=one.key)
    with pytest.raises(InvalidInput, match=r"^tls_cert: must be an existing file"):
        Settings(tls_cert=tmp_path / "none", tls_key=one.key)


def test_the_start_up_message_says_https(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path / "certificate", *NAMES)
    settings = Settings(path=tmp_path, tls_cert=certificate.cert, tls_key=certificate.key)
    lines = startup_message(settings, 8443, None).splitlines()
    assert all("https://127.0.0.1:8443" in line for line in lines)
