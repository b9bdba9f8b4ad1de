"""Faults of HTTP: invalid responses, surplus responses, closed connections, cancellation, errors."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import random
import socket
from collections.abc import AsyncIterator, Iterator

from _fault_harness import CHUNKED, HEAD, Case, Failure, Fault, Harness, check, closes, fault
from tests.support.scripted_server import OK, Script, ServerConnection, respond_always, respond_once, send_and_stall

# Invalid responses must fail the request.

INVALID = {
    "not HTTP": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "HTTP/2 frames": b"\x00\x00\x12\x04\x00\x00\x00\x00\x00",
    "unknown HTTP version": b"HTTP/3.7 200 OK\r\ncontent-length: 0\r\n\r\n",
    "status is no number": b"HTTP/1.1 2x0 OK\r\ncontent-length: 0\r\n\r\n",
    "status 999": b"HTTP/1.1 999 ?\r\ncontent-length: 0\r\n\r\n",
    "two content-lengths": HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\nhi!",
    "content-length and chunked": HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    "negative content-length": HEAD + b"content-length: -1\r\n\r\nhi",
    "content-length overflow": HEAD + b"content-length: 99999999999999999999999\r\n\r\nhi",
    "chunk size is no number": CHUNKED + b"xyz\r\nhi\r\n0\r\n\r\n",
    "chunk longer than its size": CHUNKED + b"2\r\nhello\r\n0\r\n\r\n",
    "bare LF as line end": b"HTTP/1.1 200 OK\ncontent-length: 2\n\nhi",
    "folded header (obs-fold)": HEAD + b"x: a\r\n b\r\ncontent-length: 2\r\n\r\nhi",
    "carriage return in a header": HEAD + b"x: a\rb\r\ncontent-length: 2\r\n\r\nhi",
    "NUL in a header": HEAD + b"x: a\x00b\r\ncontent-length: 2\r\n\r\nhi",
    "space before the colon": HEAD + b"content-length : 2\r\n\r\nhi",
    "unrequested 101 upgrade": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    "gzip that is none": HEAD + b"content-encoding: gzip\r\ncontent-length: 2\r\n\r\nhi",
}
TRUNCATED = {
    "body shorter than its length": HEAD + b"content-length: 9\r\n\r\n1234",
    "chunked body without its end": CHUNKED + b"4\r\n1234\r\n",
    "truncated gzip": HEAD + b"content-encoding: gzip\r\ncontent-length: 15\r\n\r\n" + gzip.compress(b"hello")[:15],
}


def must_be_refused(script: Script) -> Fault:
    async def check_refusal(case: Case) -> None:
        async with case.serve(script) as harness:
            await harness.must_fail()

    return check_refusal


for _name, _sent in INVALID.items():
    fault("invalid HTTP", _name)(must_be_refused(send_and_stall(_sent)))
for _name, _sent in TRUNCATED.items():
    fault("invalid HTTP", _name)(must_be_refused(respond_once(_sent)))


# Connections that must not be reused, and requests that must not be sent twice.


@fault("connections", "extra response on an idle connection, 50 ms later")
async def late_extra_response(case: Case) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.send(OK)
        await asyncio.sleep(0.05)
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwrong")
        await connection.wait_closed()

    async with case.serve(script) as harness:
        await harness.must_return(200, b"hi")
        await asyncio.sleep(0.15)
        await harness.must_return(200, b"hi")


@fault("connections", "extra response in the same read")
async def extra_response(case: Case) -> None:
    async with case.serve(respond_always(OK + OK.replace(b"hi", b"no"))) as harness:
        for _ in range(3):
            await harness.must_return(200, b"hi")
            await asyncio.sleep(0.01)


@fault("connections", "idle connection closed by the server")
async def closed_while_idle(case: Case) -> None:
    async with case.serve(respond_once(OK)) as harness:
        for _ in range(3):
            await harness.must_return(200, b"hi")
            await asyncio.sleep(0.02)


@fault("connections", "response before the end of the upload")
async def early_response(case: Case) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1 << 16)
            await asyncio.sleep(0)

    async def script(connection: ServerConnection) -> None:
        await connection.reader.read(100)
        await connection.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nno!")
        await asyncio.sleep(0.05)
        await connection.wait_closed()

    async with case.serve(script) as harness:
        await harness.must_return(413, b"no!", method="POST", content=endless())
        await closes(harness.server, "the upload goes on")


def not_sent_twice(method: str, content: bytes | None) -> Fault:
    async def check_requests(case: Case) -> None:
        requests = 0

        async def script(connection: ServerConnection) -> None:
            nonlocal requests
            while True:
                await connection.read_request()
                requests += 1
                if requests == 2:
                    return
                await connection.send(OK)

        async with case.serve(script) as harness:
            await harness.must_return(200, b"hi", method=method, content=content)
            with contextlib.suppress(Failure):
                await harness.must_fail(method=method, content=content)
            check(requests == 2, "sent the request again by itself")

    return check_requests


fault("connections", "GET on a reused connection, closed without a response")(not_sent_twice("GET", None))
fault("connections", "POST on a reused connection, closed without a response")(not_sent_twice("POST", b"x"))


@fault("connections", "many requests with random faults: responses never cross")
async def random_faults(case: Case) -> None:
    async def script(connection: ServerConnection) -> None:
        rng = random.Random(id(connection))
        while True:
            name = (await connection.read_request()).target.encode()
            await asyncio.sleep(rng.choice([0, 0, 0.002]))
            sent = HEAD + b"content-length: %d\r\n\r\n" % len(name) + name
            if rng.random() < 0.1:
                await connection.send(sent[: rng.randrange(len(sent))])
                return
            extra = HEAD + b"content-length: 5\r\n\r\nwrong" if rng.random() < 0.1 else b""
            await connection.send(sent + extra)

    async with case.serve(script) as harness:
        crossed = 0

        async def worker(numbers: Iterator[int]) -> None:
            nonlocal crossed
            for k in numbers:
                with contextlib.suppress(Exception):
                    body = (await harness.get(url=f"{harness.server.url}/{k}"))[1]
                    crossed += body != b"/%d/x" % k

        numbers = iter(range(500))
        await asyncio.gather(*(worker(numbers) for _ in range(20)))
        check(crossed == 0, f"{crossed} of 500 responses belong to other requests")


# Cancellation and close must end the exchange at once.


@fault("cancellation", "cancelled before the head")
async def cancelled_before_the_head(case: Case) -> None:
    async with case.serve(send_and_stall(b"")) as harness:
        await cancel(harness)


@fault("cancellation", "cancelled in the body")
async def cancelled_in_the_body(case: Case) -> None:
    async with case.serve(send_and_stall(CHUNKED + b"2\r\nhi\r\n")) as harness:
        await cancel(harness)


async def cancel(harness: Harness) -> None:
    task = asyncio.create_task(harness.get())
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.wait([task], timeout=1.0)
    check(task.done(), "the task does not end")
    await closes(harness.server, "the request goes on upstream")


@fault("cancellation", "client closed while a body is read")
async def closed_with_a_stream(case: Case) -> None:
    async with case.serve(send_and_stall(CHUNKED + b"2\r\nhi\r\n")) as harness:
        task = await close_client(harness)
        check(task.exception() is not None, "the body ends without an error")
        await closes(harness.server, "the stream goes on upstream")


@fault("cancellation", "client closed before the head")
async def closed_before_the_head(case: Case) -> None:
    async with case.serve(send_and_stall(b"")) as harness:
        await close_client(harness)
        await closes(harness.server, "the request goes on upstream")


async def close_client(harness: Harness) -> asyncio.Task[tuple[int, bytes]]:
    """Close the client during a request, and return the request, which must have ended."""
    task = asyncio.create_task(harness.get())
    await asyncio.sleep(0.1)
    await asyncio.wait_for(harness.client.close(), 1.0)
    await asyncio.wait([task], timeout=1.0)
    if not task.done():
        task.cancel()
        raise Failure("the request hangs")
    return task


# Errors.


@fault("errors", "errors tell which requests are safe to retry")
async def retry_classification(case: Case) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        async with case.serve(respond_always(OK)) as harness:
            error = await harness.must_fail(method="POST", content=b"x", url=url)
            check(harness.client.safe_to_retry(error), f"refused connect: {type(error).__name__}")
    for sent, safe in ((b"", True), (b"HTTP/1.1 2", False), (HEAD + b"content-length: 9\r\n\r\n1234", False)):
        async with case.serve(respond_once(sent)) as harness:
            error = await harness.must_fail(method="POST", content=b"x")
            found = harness.client.safe_to_retry(error)
            check(
                found == safe, f"after {len(sent)} bytes: {type(error).__name__} says {'safe' if found else 'unsafe'}"
            )


@fault("errors", "messages do not contain the address")
async def messages(case: Case) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        async with case.serve(respond_once(b"")) as harness:
            for url in (f"http://127.0.0.1:{port}", harness.server.url):
                error = await harness.must_fail(url=url)
                check("127.0.0.1" not in f"{error} {error!r}", f"{type(error).__name__} shows the address")
