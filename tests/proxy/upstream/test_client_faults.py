"""Faults of an upstream: no connection, silence, resets, invalid HTTP, endless heads."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

import pytest

from knapcache.errors import UpstreamFailed
from knapcache.proxy.upstream import response as response_module
from knapcache.proxy.upstream.client import Client
from knapcache.proxy.upstream.connection import MAX_HEAD, ResponseParser
from tests.support.scripted_server import (
    OK,
    ClientHarness,
    Run,
    ServerConnection,
    client_harness,
    respond_always,
    respond_once,
    run,
)
from tests.support.timing import async_wait_until, within

__all__ = ["run"]


@pytest.fixture(autouse=True)
def no_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that close do so for their own reason, not because of LINGER."""
    monkeypatch.setattr(response_module, "LINGER", 60.0)


HEAD = b"HTTP/1.1 200 OK\r\n"


async def expect_failure(harness: ClientHarness, status: int, *, safe_to_retry: bool, **more: object) -> str:
    """Expect a request to fail, and to close its connection at once. Returns the message."""
    with pytest.raises(UpstreamFailed) as caught:
        await harness.get(**more)  # type: ignore[arg-type]
    assert (caught.value.status, caught.value.safe_to_retry) == (status, safe_to_retry)
    assert harness.server.host not in str(caught.value)
    await async_wait_until(lambda: not len(harness.client))
    return str(caught.value)


# No connection, or no answer.


def test_a_refused_connection(run: Run) -> None:
    async def scenario() -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            client = Client("fake", 1, 1)
            with pytest.raises(UpstreamFailed) as caught:
                await client.request("GET", f"http://127.0.0.1:{closed.getsockname()[1]}", "/", b"", None)
            assert (caught.value.status, caught.value.safe_to_retry) == (502, True)
            assert len(client) == 0
            with pytest.raises(UpstreamFailed):
                await client.request("GET", "http://nowhere.invalid", "/", b"", None)

    run(scenario())


def test_a_connect_that_is_not_answered(run: Run) -> None:
    async def scenario() -> None:
        with contextlib.ExitStack() as stack:
            full = stack.enter_context(socket.socket())
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for _ in range(3):  # the backlog is full
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(full.getsockname())
            client = Client("fake", 0.1, 5)
            with pytest.raises(UpstreamFailed, match="timeout: ") as caught:
                await client.request("GET", f"http://127.0.0.1:{full.getsockname()[1]}", "/", b"", None)
            assert (caught.value.status, caught.value.safe_to_retry) == (504, True)
            assert len(client) == 0

    run(scenario())


@pytest.mark.parametrize(
    ("sent", "safe_to_retry"),
    [(b"", True), (b"HTTP/1.1 20", False), (HEAD + b"x: y\r\n", False),
     (HEAD + b"content-length: 9\r\n\r\n1234", False),
     (HEAD + b"transfer-encoding: chunked\r\n\r\n4\r\n1234\r\n", False), (HEAD + b"\r\nsome", False),
     (b"HTTP/1.1 100 Continue\r\n\r\n", False)],
)  # fmt: skip
def test_silence_fails_after_the_idle_timeout(run: Run, sent: bytes, safe_to_retry: bool) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.send(sent)
        await connection.wait_closed()

    async def scenario() -> None:
        async with client_harness(script, idle_timeout=0.05) as harness:
            assert "timeout: no data for 0.05 s" in await expect_failure(harness, 504, safe_to_retry=safe_to_retry)
            await async_wait_until(lambda: not harness.server.open)

    run(scenario())


def test_the_idle_timeout_counts_from_the_last_byte(run: Run) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.read_request()
        pieces = [OK[k : k + 4] for k in range(0, len(OK), 4)]
        assert 0.5 < len(pieces) * 0.08 < 1.0
        for piece in pieces:
            await connection.send(piece)
            await asyncio.sleep(0.08)

    async def scenario() -> None:
        async with client_harness(script, idle_timeout=0.5) as harness:
            with within(1.3, "pieces of which none is late"):
                assert await harness.get() == (200, b"hi")

    run(scenario())


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 2", HEAD + b"content-length: 9\r\n\r\n1234", HEAD + b"\r\nto the en"])
def test_a_reset(run: Run, sent: bytes) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.send(sent)
        await asyncio.sleep(0.01)
        connection.reset()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            await expect_failure(harness, 502, safe_to_retry=not sent)

    run(scenario())


def test_bytes_received_before_a_failure_are_returned_first(run: Run) -> None:
    async def scenario() -> None:
        async with client_harness(respond_once(HEAD + b"content-length: 9\r\n\r\n", b"1234", b"56")) as harness:
            response = await harness.request()
            await async_wait_until(lambda: not len(harness.client))
            pieces = response.iter_bytes()
            assert await anext(pieces) == b"123456"
            with pytest.raises(UpstreamFailed):
                await anext(pieces)
            for _ in range(2):  # the error stays
                with pytest.raises(UpstreamFailed):
                    await response.read()

    run(scenario())


# Invalid HTTP.

INVALID = {
    "not http": b"SSH-2.0-OpenSSH_9.6\r\n",
    "html": b"<html>no</html>\r\n\r\n",
    "http/2": b"\x00\x00\x12\x04\x00\x00\x00\x00\x00",
    "version": b"HTTP/3.7 200 OK\r\ncontent-length: 0\r\n\r\n",
    "status": b"HTTP/1.1 2x0 OK\r\n\r\n",
    "status above 599": b"HTTP/1.1 999 ?\r\ncontent-length: 0\r\n\r\n",
    "two lengths": HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\nhi!",
    "length and chunks": HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    "negative length": HEAD + b"content-length: -1\r\n\r\nhi",
    "length overflow": HEAD + b"content-length: 99999999999999999999999\r\n\r\nhi",
    "chunk size": HEAD + b"transfer-encoding: chunked\r\n\r\nxyz\r\nhi\r\n0\r\n\r\n",
    "chunk size overflow": HEAD + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nhi",
    "chunk longer than its size": HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n",
    "carriage return in a header": HEAD + b"x: a\rb\r\ncontent-length: 0\r\n\r\n",
    "NUL in a header": HEAD + b"x: a\x00b\r\ncontent-length: 0\r\n\r\n",
    "space in a name": HEAD + b"content-length : 2\r\n\r\nhi",
    "switching protocols": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    "unknown encoding": HEAD + b"content-encoding: br\r\ncontent-length: 2\r\n\r\nhi",
    "two encodings": HEAD + b"content-encoding: gzip, gzip\r\ncontent-length: 2\r\n\r\nhi",
    "two encoding headers": HEAD + b"content-encoding: br\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nhi",
    "not gzip": HEAD + b"content-encoding: gzip\r\ncontent-length: 2\r\n\r\nhi",
}  # fmt: skip


@pytest.mark.parametrize("kind", INVALID)
def test_invalid_http(run: Run, kind: str) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.send(INVALID[kind])
        await connection.wait_closed()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            if kind == "not gzip":  # the framing is valid, so the connection may be reused
                with pytest.raises(UpstreamFailed):
                    await harness.get()
            else:
                await expect_failure(harness, 502, safe_to_retry=False)

    run(scenario())


@pytest.mark.parametrize("where", ["name", "value", "many", "reason", "trailer", "extension"])
def test_heads_are_bounded(run: Run, where: str) -> None:
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
            await expect_failure(harness, 502, safe_to_retry=False)
            assert MAX_HEAD < sent < 64 * MAX_HEAD  # socket buffers come on top

    run(scenario())


@pytest.mark.parametrize(("bound", "refused"), [(MAX_HEAD // 2, False), (MAX_HEAD + 100, True)])
def test_heads_are_bounded_however_they_arrive(bound: int, refused: bool) -> None:
    """The second half of the head comes with the body: more than MAX_HEAD bytes were received in any case."""
    head = HEAD + b"x: y\r\n" * (bound // 6) + b"content-length: %d\r\n\r\n" % MAX_HEAD
    parser = ResponseParser("GET", raw=False)
    middle = len(head) // 2
    assert parser.feed(head[:middle]) is None
    error = parser.feed(head[middle:] + b"z" * MAX_HEAD)
    assert (error is not None) is refused
    assert parser.complete is not refused


def test_a_head_of_100_kb_is_accepted(run: Run) -> None:
    sent = HEAD + b"x: " + b"y" * 100_000 + b"\r\ncontent-length: 300000\r\n\r\n" + b"z" * 300_000

    async def scenario() -> None:
        async with client_harness(respond_always(sent)) as harness:
            for _ in range(2):
                assert await harness.get() == (200, b"z" * 300_000)
            assert harness.server.accepted == 1

    run(scenario())


def test_bytes_that_the_event_loop_has_not_read_yet_are_not_the_next_response(run: Run) -> None:
    """They are in the socket's buffer when the next request takes the connection."""
    late, written = threading.Event(), threading.Event()
    accepted: list[socket.socket] = []

    def serve(listening: socket.socket) -> None:
        for expected in (b"hi", b"ho"):
            accepted.append(listening.accept()[0])
            accepted[-1].recv(65536)
            accepted[-1].sendall(OK.replace(b"hi", expected))
            if expected == b"hi":
                late.wait(60)
                accepted[-1].sendall(OK.replace(b"hi", b"XX"))
                written.set()

    async def scenario() -> None:
        client = Client("fake", 10.0, 10.0)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        for expected in (b"hi", b"ho"):
            response = await client.request("GET", url, "/", b"", None)
            assert await response.read() == expected
            await response.close()
            late.set()
            assert written.wait(60)  # blocks the event loop
        client.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        run(scenario())
        thread.join(60)
    for each in accepted:
        each.close()
    assert len(accepted) == 2
