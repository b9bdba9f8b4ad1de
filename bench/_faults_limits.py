"""Faults of size and time: what has no end, slow sides, silence."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import tracemalloc
from collections.abc import AsyncIterator

from _fault_clients import Options
from _fault_harness import CHUNKED, HEAD, MB, Case, Failure, Fault, check, closes, fault
from tests.support.scripted_server import OK, ServerConnection, respond_always, respond_once, send_and_stall

# What an upstream sends without end must be bounded.


def must_be_bounded(start: bytes, more: bytes) -> Fault:
    async def check_bound(case: Case) -> None:
        sent = 0

        async def script(connection: ServerConnection) -> None:
            nonlocal sent
            await connection.read_request()
            await connection.send(start)
            while sent < 64 * MB:
                await connection.send(more)
                sent += len(more)
                await asyncio.sleep(0)

        async with case.serve(script) as harness:
            try:
                await asyncio.wait_for(harness.must_fail(), 3.0)
            except TimeoutError:
                raise Failure(f"does not fail within 3 s ({sent / MB:.1f} MB sent)") from None
            check(sent < 32 * MB, f"accepts {sent / MB:.0f} MB")

    return check_bound


_BODY = CHUNKED + b"2\r\nhi\r\n"
fault("limits", "1xx responses without end")(must_be_bounded(b"", b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n" * 30))
fault("limits", "header name without end")(must_be_bounded(HEAD, b"x" * 4000))
fault("limits", "header value without end")(must_be_bounded(HEAD + b"x: ", b"y" * 4000))
fault("limits", "headers without end")(must_be_bounded(HEAD, b"abcd: efgh\r\n" * 400))
fault("limits", "reason phrase without end")(must_be_bounded(b"HTTP/1.1 200 ", b"O" * 4000))
fault("limits", "trailer without end")(must_be_bounded(_BODY + b"0\r\nx: ", b"y" * 4000))
fault("limits", "chunk extension without end")(must_be_bounded(_BODY + b"2;", b"y" * 4000))


@fault("limits", "decompression bomb, read in part")
async def bomb(case: Case) -> None:
    body = gzip.compress(bytes(256 * MB), 1)
    sent = HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    async with case.serve(respond_once(sent)) as harness:
        tracemalloc.start()
        try:
            response = await harness.open()
            async for _ in response.chunks():
                break
            await asyncio.sleep(0.2)
            peak = tracemalloc.get_traced_memory()[1]
            await response.close()
        finally:
            tracemalloc.stop()
        check(peak < 32 * MB, f"takes {peak / MB:.0f} MB of memory")


@fault("limits", "slow reader")
async def slow_reader(case: Case) -> None:
    sent = 0

    async def script(connection: ServerConnection) -> None:
        nonlocal sent
        await connection.read_request()
        await connection.send(HEAD + b"content-length: %d\r\n\r\n" % (128 * MB))
        while sent < 128 * MB:
            await connection.send(bytes(1 << 16))
            sent += 1 << 16

    async with case.serve(script) as harness:
        response = await harness.open()
        await asyncio.sleep(0.5)
        check(sent < 48 * MB, f"buffers {sent / MB:.0f} MB")
        await response.close()


@fault("limits", "slow server")
async def slow_server(case: Case) -> None:
    produced = 0

    async def content() -> AsyncIterator[bytes]:
        nonlocal produced
        while produced < 128 * MB:
            produced += 1 << 16
            yield bytes(1 << 16)

    async def script(_: ServerConnection) -> None:
        await asyncio.sleep(5)

    async with case.serve(script) as harness:
        task = asyncio.create_task(harness.get("POST", content()))
        await asyncio.sleep(0.5)
        check(produced < 48 * MB, f"buffers {produced / MB:.0f} MB")
        task.cancel()
        await asyncio.wait([task], timeout=1.0)


# Time limits.


@fault("timeouts", "connect that is not answered")
async def unanswered(case: Case) -> None:
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        async with case.serve(respond_always(OK), Options(connect_timeout=0.3)) as harness:
            await harness.must_fail(within=1.5, url=url)


@fault("timeouts", "silence before the head")
async def silence_before_the_head(case: Case) -> None:
    async with case.serve(send_and_stall(b""), Options(idle_timeout=0.3)) as harness:
        await harness.must_fail(within=1.5)
        await closes(harness.server, "the connection stays open")


@fault("timeouts", "silence in the body")
async def silence_in_the_body(case: Case) -> None:
    async with case.serve(send_and_stall(CHUNKED + b"2\r\nhi\r\n"), Options(idle_timeout=0.3)) as harness:
        await harness.must_fail(within=1.5)
        await closes(harness.server, "the connection stays open")


@fault("timeouts", "body that trickles without end")
async def trickle(case: Case) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.send(HEAD + b"\r\n")
        while True:
            await connection.send(b"x")
            await asyncio.sleep(0.02)

    async with case.serve(script, Options(total_timeout=0.3)) as harness:
        try:
            await asyncio.wait_for(harness.must_fail(), 1.5)
        except TimeoutError:
            raise Failure("has no limit for the whole exchange") from None
