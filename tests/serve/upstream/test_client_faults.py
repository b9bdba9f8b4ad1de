"""What goes wrong on the way to a provider: nobody there, nothing comes, nonsense comes, false names."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from knapcache.errors import UpstreamFailed
from knapcache.serve.upstream import response as response_module
from knapcache.serve.upstream.client import Client
from knapcache.serve.upstream.connect import tls_context
from knapcache.serve.upstream.response import MAX_HEAD
from tests.support.scripted_server import (
    OK,
    ClientHarness,
    Run,
    ServerConnection,
    client_harness,
    respond_always,
    respond_once,
    run,
    wait_until,
)

__all__ = ["run"]


@pytest.fixture(autouse=True)
def no_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends its connection does so by itself, not because nobody reads on."""
    monkeypatch.setattr(response_module, "LINGER", 60.0)


HEAD = b"HTTP/1.1 200 OK\r\n"


async def failing(harness: ClientHarness, status: int, *, safe_to_retry: bool, **more: object) -> str:
    """How a call fails that must; nothing of it is left, and at once."""
    with pytest.raises(UpstreamFailed) as told:
        await harness.get(**more)  # type: ignore[arg-type]
    assert (told.value.status, told.value.safe_to_retry) == (status, safe_to_retry)
    assert harness.server.host not in str(told.value)
    await wait_until(lambda: not len(harness.client))
    return str(told.value)


# Nobody there.


def test_refused(run: Run) -> None:
    async def scenario() -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            client = Client("fake", 1, 1)
            with pytest.raises(UpstreamFailed) as told:
                await client.request("GET", f"http://127.0.0.1:{closed.getsockname()[1]}", "/", b"", None)
            assert (told.value.status, told.value.safe_to_retry) == (502, True)
            assert len(client) == 0
            with pytest.raises(UpstreamFailed):
                await client.request("GET", "http://nowhere.invalid", "/", b"", None)

    run(scenario())


def test_nobody_takes_the_call(run: Run) -> None:
    async def scenario() -> None:
        with contextlib.ExitStack() as stack:
            full = stack.enter_context(socket.socket())
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for _ in range(3):  # nobody accepts them, and there is no room for more
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(full.getsockname())
            client = Client("fake", 0.1, 5)
            with pytest.raises(UpstreamFailed, match="in time") as told:
                await client.request("GET", f"http://127.0.0.1:{full.getsockname()[1]}", "/", b"", None)
            assert (told.value.status, told.value.safe_to_retry) == (504, True)
            assert len(client) == 0

    run(scenario())


@pytest.mark.parametrize(
    ("said", "safe_to_retry"),
    [(b"", True), (b"HTTP/1.1 20", False), (HEAD + b"x: y\r\n", False),
     (HEAD + b"content-length: 9\r\n\r\n1234", False),
     (HEAD + b"transfer-encoding: chunked\r\n\r\n4\r\n1234\r\n", False), (HEAD + b"\r\nsome", False),
     (b"HTTP/1.1 100 Continue\r\n\r\n", False)],
)  # fmt: skip
def test_nothing_more_comes(run: Run, said: bytes, safe_to_retry: bool) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.send(said)
        await connection.wait_closed()

    async def scenario() -> None:
        async with client_harness(script, idle_timeout=0.05) as harness:
            assert "in time" in await failing(harness, 504, safe_to_retry=safe_to_retry)
            await wait_until(lambda: not harness.server.open)

    run(scenario())


def test_time_is_counted_between_bytes(run: Run) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.read_request()
        for byte in OK:
            await connection.send(bytes([byte]))
            await asyncio.sleep(0.005)

    async def scenario() -> None:
        async with client_harness(script, idle_timeout=0.1) as harness:
            assert await harness.get() == (200, b"hi")

    run(scenario())


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 2", HEAD + b"content-length: 9\r\n\r\n1234", HEAD + b"\r\nto the en"])
def test_reset_in_the_middle(run: Run, said: bytes) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.send(said)
        await asyncio.sleep(0.01)
        connection.reset()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            await failing(harness, 502, safe_to_retry=not said)

    run(scenario())


def test_what_came_before_the_end_is_given_first(run: Run) -> None:
    async def scenario() -> None:
        async with client_harness(respond_once(HEAD + b"content-length: 9\r\n\r\n", b"1234", b"56")) as harness:
            response = await harness.request()
            await wait_until(lambda: not len(harness.client))
            pieces = response.iter_bytes()
            assert await anext(pieces) == b"123456"
            with pytest.raises(UpstreamFailed):
                await anext(pieces)
            for _ in range(2):  # and the error stays
                with pytest.raises(UpstreamFailed):
                    await response.read()

    run(scenario())


# Nonsense.

NONSENSE = {
    "not http": b"SSH-2.0-OpenSSH_9.6\r\n",
    "html": b"<html>no</html>\r\n\r\n",
    "http/2": b"\x00\x00\x12\x04\x00\x00\x00\x00\x00",
    "version": b"HTTP/3.7 200 OK\r\ncontent-length: 0\r\n\r\n",
    "status": b"HTTP/1.1 2x0 OK\r\n\r\n",
    "status that is none": b"HTTP/1.1 999 ?\r\ncontent-length: 0\r\n\r\n",
    "two lengths": HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\nhi!",
    "length and chunks": HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    "length below nothing": HEAD + b"content-length: -1\r\n\r\nhi",
    "length beyond all": HEAD + b"content-length: 99999999999999999999999\r\n\r\nhi",
    "size of a chunk": HEAD + b"transfer-encoding: chunked\r\n\r\nxyz\r\nhi\r\n0\r\n\r\n",
    "size of a chunk beyond all": HEAD + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nhi",
    "chunk longer than it says": HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n",
    "line break in a header": HEAD + b"x: a\rb\r\ncontent-length: 0\r\n\r\n",
    "nothing in a header": HEAD + b"x: a\x00b\r\ncontent-length: 0\r\n\r\n",
    "space in a name": HEAD + b"content-length : 2\r\n\r\nhi",
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    "packed as nobody asked": HEAD + b"content-encoding: br\r\ncontent-length: 2\r\n\r\nhi",
    "packed twice": HEAD + b"content-encoding: gzip, gzip\r\ncontent-length: 2\r\n\r\nhi",
    "in two lines": HEAD + b"content-encoding: br\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nhi",
    "packed, and is not": HEAD + b"content-encoding: gzip\r\ncontent-length: 2\r\n\r\nhi",
}  # fmt: skip


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense(run: Run, kind: str) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.send(NONSENSE[kind])
        await connection.wait_closed()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            if kind == "packed, and is not":  # HTTP is well, so the connection may be
                with pytest.raises(UpstreamFailed):
                    await harness.get()
            else:
                await failing(harness, 502, safe_to_retry=False)

    run(scenario())


@pytest.mark.parametrize("where", ["name", "value", "many", "reason", "trailer", "extension"])
def test_heads_have_an_end(run: Run, where: str) -> None:
    chunks = HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n"
    begin, more = {
        "name": (HEAD, b"x" * 1000),
        "value": (HEAD + b"x: ", b"y" * 1000),
        "many": (HEAD, b"abcd: efgh\r\n" * 100),
        "reason": (b"HTTP/1.1 200 ", b"O" * 1000),
        "trailer": (chunks + b"0\r\nx: ", b"y" * 1000),
        "extension": (chunks + b"2;", b"y" * 1000),
    }[where]
    sent = 0

    async def script(connection: ServerConnection) -> None:
        nonlocal sent
        await connection.read_request()
        await connection.send(begin)
        while True:
            await connection.send(more)
            sent += len(more)
            await asyncio.sleep(0)

    async def scenario() -> None:
        async with client_harness(script) as harness:
            await failing(harness, 502, safe_to_retry=False)
            assert MAX_HEAD < sent < 64 * MAX_HEAD  # what the sockets hold comes on top

    run(scenario())


def test_a_long_head_is_no_trouble(run: Run) -> None:
    sent = HEAD + b"x: " + b"y" * 100_000 + b"\r\ncontent-length: 300000\r\n\r\n" + b"z" * 300_000

    async def scenario() -> None:
        async with client_harness(respond_always(sent)) as harness:
            for _ in range(2):
                assert await harness.get() == (200, b"z" * 300_000)
            assert harness.server.accepted == 1

    run(scenario())


# Names.


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """One for an address, not for its name; and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here")
    made = tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=fake", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    command += ["-keyout", str(tmp_path / "key.pem"), "-out", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    return made


@pytest.fixture
def own_trust() -> Iterator[None]:
    tls_context.cache_clear()
    yield
    tls_context.cache_clear()


def served(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.parent / "key.pem")
    return context


@pytest.mark.usefixtures("own_trust")
def test_who_can_prove_its_name_is_believed(run: Run, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    long = b"x" * 3_000_000

    async def script(connection: ServerConnection) -> None:
        while True:
            body = (await connection.read_request()).body
            await connection.send(HEAD + b"content-length: %d\r\n\r\n" % len(body), body)

    async def scenario() -> None:
        async with client_harness(script, ssl=served(certificate)) as harness:
            for body in (b"hi", long, b"hi"):
                assert await harness.get(method="POST", content=body) == (200, body)
            assert harness.server.accepted == len(harness.client) == 1
            with pytest.raises(UpstreamFailed, match="SSLCertVerificationError"):  # for this name it has no proof
                await harness.client.request(
                    "GET", harness.server.url.replace("127.0.0.1", "localhost"), "/", b"", None
                )
        async with client_harness(respond_once(HEAD + b"\r\nto the end"), ssl=served(certificate)) as harness:
            assert await harness.get() == (200, b"to the end")

    run(scenario())


@pytest.mark.usefixtures("own_trust")
def test_who_cannot_is_not(run: Run, certificate: Path) -> None:
    async def scenario() -> None:
        async with client_harness(respond_always(OK), ssl=served(certificate)) as harness:
            told = await failing(harness, 502, safe_to_retry=True)
            assert told == "fake cannot be reached, or closed the connection: SSLCertVerificationError"
            assert harness.server.accepted == 0
        async with client_harness(respond_always(OK)) as harness:  # no TLS at all
            with pytest.raises(UpstreamFailed, match=r"SSLError|ConnectionLost|Connection"):
                await harness.client.request("GET", harness.server.url.replace("http:", "https:"), "/", b"", None)
            assert len(harness.client) == 0

    run(scenario())
