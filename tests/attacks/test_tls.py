"""Attacks on the TLS server: halves of handshakes, old versions, garbage, and clients that never end."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from knapcache.proxy.http.tls import ServerCertificate
from tests.attacks.test_timeouts import connections
from tests.support.certificates import Certificate, make_certificate
from tests.support.proxy_process import ADMIN_TOKEN, ProxyProcess
from tests.support.raw_client import RawClient, chat, get
from tests.support.recording_upstream import RecordingUpstream
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until, within

ALERT, HANDSHAKE = 21, 22


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificate"), "IP:127.0.0.1")


@pytest.fixture(scope="module")
def proxy_settings(certificate: Certificate) -> dict[str, Any]:
    return {
        "tls_cert": certificate.cert,
        "tls_key": certificate.key,
        "head_timeout": 4.0,
        "idle_timeout": 2.0,
        "write_timeout": 1.0,
        "admin_token": ADMIN_TOKEN,
    }


@pytest.fixture(autouse=True)
def still_serving() -> None:
    """Replace the check of conftest.py, which speaks plain HTTP: every test here makes a request after its attack."""


@pytest.fixture(scope="module")
def on_asyncio(
    upstream: RecordingUpstream, proxy_settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningProxy]:
    """A proxy on asyncio's event loop."""
    folder = tmp_path_factory.mktemp("data")
    with RunningProxy(folder, upstream.openai_url, loop="asyncio", **proxy_settings) as proxy:
        yield proxy


@pytest.fixture(params=["uvloop", "asyncio"])
def url(request: pytest.FixtureRequest) -> str:
    """The address of a proxy on each event loop: the process has the default, which is uvloop."""
    found: str = request.getfixturevalue("on_asyncio" if request.param == "asyncio" else "process").url
    return found


@pytest.fixture(params=["uvloop", "asyncio"])
def running(request: pytest.FixtureRequest) -> RunningProxy:
    """A proxy in this process on each event loop."""
    found: RunningProxy = request.getfixturevalue("on_asyncio" if request.param == "asyncio" else "proxy")
    return found


def trusting(certificate: Certificate) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate.cert))


def client_hello(context: ssl.SSLContext) -> bytes:
    sent = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return sent.read()


def serves(url: str, certificate: Certificate) -> bool:
    return httpx.get(f"{url}/healthz", verify=trusting(certificate), timeout=60).status_code == 200


def test_a_request_in_the_last_message_of_the_handshake_is_served(url: str, certificate: Certificate) -> None:
    """The client sends the end of its handshake, several requests and its end of the connection in one segment."""
    for pieces in (1, 50):
        received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = trusting(certificate).wrap_bio(received, sent, server_hostname="127.0.0.1")
        with RawClient(url) as client:
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    client.send(sent.read())
                    received.write(client.receive())
            tls.write(get("/healthz") * 2 + chat("early", "Connection: close"))
            data = sent.read()
            size = -(-len(data) // pieces)
            client.send(*(data[k : k + size] for k in range(0, len(data), size)), pause=0.001)
            answers = b""
            while b"You said: early" not in answers and not client.closed:
                received.write(client.receive())
                with contextlib.suppress(ssl.SSLWantReadError):
                    while data := tls.read(65536):  # nothing: the server has ended TLS
                        answers += data
            assert answers.count(b"HTTP/1.1 200") == 3
            assert b"You said: early" in answers


def test_a_handshake_byte_by_byte_is_cut(url: str, certificate: Certificate) -> None:
    hello = client_hello(trusting(certificate))
    # head_timeout is 4 s, and all bytes would take 25 s.
    with within(15, "a handshake byte by byte"), RawClient(url) as client:
        client.socket.settimeout(0.05)
        for k in range(len(hello)):
            client.send(hello[k : k + 1])
            if not client.sent_all:
                break
            with contextlib.suppress(TimeoutError):
                if not client.receive():
                    break
    assert serves(url, certificate)


def test_a_client_that_does_not_end_tls_is_disconnected(running: RunningProxy, certificate: Certificate) -> None:
    """After `Connection: close` the server waits for the client's end of TLS, which never comes."""
    client = RawClient(running.url)
    client.socket = trusting(certificate).wrap_socket(client.socket, server_hostname="127.0.0.1")
    with client:
        client.send(get("/healthz", "Connection: close")).response("GET")
        wait_until(lambda: len(connections(running)) == 0)


GARBAGE = {
    "a record of 65,535 bytes": b"\x16\x03\x01\xff\xff" + b"\x01" * 65_535,
    "an empty record, often": b"\x16\x03\x01\x00\x00" * 5000,
    "a hello that claims 16 MB": b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + b"\x00" * 16_380,
    "alerts": b"\x15\x03\x01\x00\x02\x01\x00" * 5000,
    "application data": b"\x17\x03\x03\x40\x00" + b"x" * 16_384,
    "plain HTTP": chat("plain"),
    "SSL 2": b"\x80\x2e\x01\x00\x02" + b"\x00" * 43,
}


@pytest.mark.parametrize("name", GARBAGE)
def test_what_is_no_handshake_is_refused_at_once(url: str, name: str, certificate: Certificate) -> None:
    limit = 30.0 if name == "a hello that claims 16 MB" else 3.5  # before head_timeout
    with within(limit, "the refusal"), RawClient(url) as client:
        reply = client.send(GARBAGE[name]).read_until_close()
    assert reply[:1] in (b"", bytes([ALERT]))
    assert serves(url, certificate)


def test_versions_before_1_2_are_refused(url: str) -> None:
    for version in (b"\x03\x00", b"\x03\x01", b"\x03\x02"):
        body = version + b"\x07" * 32 + b"\x00" + b"\x00\x04\xc0\x14\x00\x2f" + b"\x01\x00"
        hello = b"\x01" + len(body).to_bytes(3, "big") + body
        with RawClient(url) as client:
            reply = client.send(b"\x16\x03\x01" + len(hello).to_bytes(2, "big") + hello).read_until_close()
        assert reply[:1] in (b"", bytes([ALERT]))  # and no ServerHello


def test_there_is_no_renegotiation(process: ProxyProcess, certificate: Certificate) -> None:
    address = urlsplit(process.url).netloc
    command = ["openssl", "s_client", "-connect", address, "-tls1_2", "-CAfile", str(certificate.cert)]
    found = subprocess.run(command, input="R\n" * 20, capture_output=True, text=True, timeout=60)
    assert "RENEGOTIATING" in found.stdout + found.stderr
    assert re.search(r"no.renegotiation", found.stdout + found.stderr)
    assert serves(process.url, certificate)


def test_clients_that_disconnect_in_the_handshake_leave_nothing(
    process: ProxyProcess, certificate: Certificate
) -> None:
    hello = client_hello(trusting(certificate))
    assert serves(process.url, certificate)
    for sent in (b"", hello[:5], hello):
        for end in (RawClient.reset, lambda client: client.socket.close(), lambda client: client.end()):
            before = process.open_files()
            clients = [RawClient(process.url).send(sent) for _ in range(10)]
            for client in clients:
                end(client)
            assert serves(process.url, certificate)  # all were accepted
            wait_until(lambda: process.open_files() <= before, "the end of the connections")  # noqa: B023
            for client in clients:
                client.socket.close()


def test_the_proxy_stops_while_handshakes_are_open(
    upstream: RecordingUpstream, certificate: Certificate, tmp_path: Path, environment: dict[str, str]
) -> None:
    files: dict[str, Any] = {"tls_cert": certificate.cert, "tls_key": certificate.key}
    process = ProxyProcess(tmp_path / "data", upstream.openai_url, environment, grace=600, **files)
    hello = client_hello(trusting(certificate))
    with process, RawClient(process.url).send(hello[:50]), RawClient(process.url).send(hello) as client:
        assert client.receive()[:1] == bytes([HANDSHAKE])
        with within(10, "the stop"):  # head_timeout is 20 s, and grace is longer
            process.stop()
    assert process.problems() == []


@pytest.fixture(params=["uvloop", "asyncio"])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Environment of a proxy with the default event loop, and of one where uvloop is not installed."""
    if request.param == "uvloop":
        return {}
    (tmp_path / "uvloop.py").write_text("raise ImportError")
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}


def test_the_log_stays_empty(
    upstream: RecordingUpstream, certificate: Certificate, tmp_path: Path, environment: dict[str, str]
) -> None:
    """Served requests, and connections that end in the handshake, in a body, in an answer, and with plain HTTP."""
    files: dict[str, Any] = {"tls_cert": certificate.cert, "tls_key": certificate.key}
    context = trusting(certificate)
    hello, question = client_hello(context), chat("known", model="gpt-4o-mini")

    def secured() -> RawClient:
        client = RawClient(process.url)
        client.socket = context.wrap_socket(client.socket, server_hostname="127.0.0.1")
        return client

    with ProxyProcess(tmp_path / "data", upstream.openai_url, environment, **files) as process:
        for k in range(20):
            with secured() as client:
                assert [answer.status for answer in client.send(question * 3).responses(3)] == [200] * 3
            secured().send(question[:-20]).reset()
            secured().send(chat(f"abandoned {k}", model="gpt-4o-mini")).reset()
            secured().send(question * 3).socket.close()  # asyncio itself warns of five writes after the end
            RawClient(process.url).send(hello[:40]).reset()
            with RawClient(process.url) as half:
                assert half.send(hello).receive()
                half.reset()
            with RawClient(process.url) as plain:
                assert not plain.send(question).read_until_close().startswith(b"HTTP")
        assert serves(process.url, certificate)
    assert process.problems() == []


def test_a_key_that_every_user_can_read_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "knapcache.serve")
    made = make_certificate(tmp_path, "IP:127.0.0.1")
    made.key.chmod(0o600)
    ServerCertificate(made.cert, made.key)
    assert not caplog.records
    made.key.chmod(0o644)
    ServerCertificate(made.cert, made.key)
    (record,) = caplog.records
    assert "can be read by every user" in record.getMessage()
