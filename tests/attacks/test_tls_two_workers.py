"""TLS with two worker processes: each of them serves, refuses what it must, and takes a changed certificate."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.attacks.test_tls import ALERT, client_hello, trusting
from tests.attacks.test_two_workers import NUMBERS, each_worker
from tests.support.certificates import Certificate, make_certificate
from tests.support.proxy_process import ProxyProcess
from tests.support.raw_client import CHAT, RawClient, chat_body, get
from tests.support.recording_upstream import RecordingUpstream
from tests.support.timing import wait_until

HALF_OPEN = 40


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificate"), "IP:127.0.0.1")


@pytest.fixture(scope="module")
def process(
    upstream: RecordingUpstream, certificate: Certificate, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    with start(upstream, certificate, tmp_path_factory.mktemp("workers")) as process:
        yield process


def start(upstream: RecordingUpstream, certificate: Certificate, folder: Path) -> ProxyProcess:
    files: dict[str, Any] = {"tls_cert": certificate.cert, "tls_key": certificate.key, "grace": 60}
    return ProxyProcess(folder / "data", upstream.openai_url, workers=2, **files)


@pytest.fixture(autouse=True)
def still_serving() -> None:
    """Replace the check of conftest.py, which speaks plain HTTP."""


def ask(process: ProxyProcess, certificate: Certificate, text: str) -> str:
    """Ask on a new connection. Return the outcome."""
    body = chat_body(text, model="gpt-4o-mini")
    answer = httpx.post(f"{process.url}{CHAT}", content=body, verify=trusting(certificate), timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == f"You said: {text}"
    return answer.headers["x-knapcache"]


def is_hit(process: ProxyProcess, certificate: Certificate, text: str) -> bool:
    return ask(process, certificate, text) == "hit"


def served_certificate(process: ProxyProcess) -> str:
    address = urlsplit(process.url)
    assert address.port is not None
    return ssl.get_server_certificate((str(address.hostname), address.port), timeout=60)


def test_each_worker_serves_and_refuses(process: ProxyProcess, certificate: Certificate) -> None:
    hello, asked = client_hello(trusting(certificate)), list[str]()
    for worker in each_worker(process):
        asked.append(f"{worker} {next(NUMBERS)}")
        with contextlib.ExitStack() as stack:
            for k in range(HALF_OPEN):
                client = stack.enter_context(RawClient(process.url))
                client.send(hello[: 1 + k * (len(hello) - 2) // HALF_OPEN])
            assert ask(process, certificate, asked[-1]) == "miss"
            with RawClient(process.url) as plain_client:
                assert plain_client.send(get("/healthz")).receive()[:1] in (b"", bytes([ALERT]))
    for text in asked:
        wait_until(partial(is_hit, process, certificate, text))


def test_a_session_of_one_worker_is_no_error_at_the_other(process: ProxyProcess, certificate: Certificate) -> None:
    """The workers have different keys for session tickets: the other one makes a full handshake."""
    address, context = urlsplit(process.url), trusting(certificate)
    session: ssl.SSLSession | None = None
    for _ in each_worker(process):
        with (
            socket.create_connection((str(address.hostname), address.port), timeout=60) as raw,
            context.wrap_socket(raw, server_hostname="127.0.0.1", session=session) as tls,
        ):
            tls.sendall(get("/healthz"))
            assert tls.recv(4096).startswith(b"HTTP/1.1 200 ")
            session = tls.session
            assert session is not None


def test_each_worker_takes_a_changed_certificate(
    process: ProxyProcess, certificate: Certificate, tmp_path: Path
) -> None:
    changed = make_certificate(tmp_path / "second", "IP:127.0.0.1")
    expected = changed.cert.read_text().strip()
    assert served_certificate(process).strip() != expected
    shutil.copy(changed.key, certificate.key)
    shutil.copy(changed.cert, certificate.cert)
    for worker in each_worker(process):
        wait_until(lambda: served_certificate(process).strip() == expected)
        assert ask(process, changed, f"changed {worker} {next(NUMBERS)}") == "miss"


@pytest.mark.long
def test_a_request_in_flight_is_answered_before_the_end(
    upstream: RecordingUpstream, certificate: Certificate, tmp_path: Path
) -> None:
    upstream.delay = 0.5
    with start(upstream, certificate, tmp_path) as process, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, process, certificate, "late")
        upstream.wait_for(1)
        process.process.send_signal(signal.SIGTERM)
        assert answer.result(60) == "miss"
        assert process.process.wait(60) == 0
        assert process.problems() == []
