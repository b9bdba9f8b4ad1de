"""Many exchanges at once, with all kinds of faults: responses never cross, and no connection or memory leaks."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tracemalloc
from collections.abc import AsyncIterator

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from knapcache.errors import UpstreamFailed
from knapcache.proxy.http.asgi_request import AsgiRequest
from knapcache.proxy.upstream import Client
from tests.support.asgi_server import serving
from tests.support.scripted_server import (
    OK,
    ClientHarness,
    Run,
    ServerConnection,
    client_harness,
    respond_always,
    run,
)
from tests.support.timing import async_wait_until

__all__ = ["run"]

HEAD = b"HTTP/1.1 200 OK\r\n"


async def random_faults(connection: ServerConnection) -> None:
    """Send responses of all framings, some late, truncated or with surplus bytes; each has the name of its request."""
    rng = random.Random(id(connection))
    while True:
        request = await connection.read_request()
        name = request.target[1:].encode()
        body = (b"<%b>" % name) * rng.choice([1, 3, 5000])
        await asyncio.sleep(rng.choice([0, 0, 0.001, 0.01]))
        kind = rng.random()
        if kind < 0.35:
            response = HEAD + b"x-name: %b\r\ncontent-length: %d\r\n\r\n" % (name, len(body)) + body
        elif kind < 0.9:
            parts = [body[k : k + 7000] for k in range(0, len(body), 7000)]
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
            response = HEAD + b"x-name: %b\r\ntransfer-encoding: chunked\r\n\r\n%b0\r\n\r\n" % (name, chunks)
        else:
            response = HEAD + b"x-name: %b\r\nconnection: close\r\n\r\n" % name + body
        place = rng.randrange(len(response))
        if rng.random() < 0.15:
            if kind < 0.9:  # else the close would complete it
                await connection.send(response[:place])
            if rng.random() < 0.5:
                connection.reset()
            return
        if kind < 0.9 and rng.random() < 0.05:
            response += b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwrong"
        await connection.send(response[:place])
        await asyncio.sleep(rng.choice([0, 0, 0.001, 0.03]))
        await connection.send(response[place:])
        if kind >= 0.9:
            return


async def many_requests(count: int, workers: int, seed: int) -> None:
    rng, outcomes = random.Random(seed), {"complete": 0, "failed": 0, "timeout": 0, "left early": 0}

    async def one(harness: ClientHarness, k: int) -> None:
        name = f"{seed}-{k}"
        content = rng.choice([None, b"x" * rng.choice([1, 100_000])])
        response = None
        try:
            async with asyncio.timeout(rng.choice([5, 5, 5, 0.002, 0.01])):
                response = await harness.request(f"/{name}", "GET" if content is None else "POST", content)
                assert response.headers["x-name"] == name
                if rng.random() < 0.2:
                    async for piece in response.iter_bytes():
                        assert (f"<{name}>".encode() * 5000).startswith(piece)
                        outcomes["left early"] += 1
                        break
                else:
                    body = await response.read()
                    assert body == f"<{name}>".encode() * (len(body) // (len(name) + 2))
                    outcomes["complete"] += 1
        except UpstreamFailed:
            outcomes["failed"] += 1
        except TimeoutError:
            outcomes["timeout"] += 1
        finally:
            if response is not None:
                await response.close()

    async with client_harness(random_faults, idle_timeout=0.2) as harness:
        numbers = iter(range(count))

        async def worker() -> None:
            for k in numbers:
                await one(harness, k)

        await asyncio.gather(*(worker() for _ in range(workers)))
        assert all(outcomes.values()), outcomes
        assert outcomes["complete"] > count / 10  # on a busy machine many take longer than 10 ms
        await async_wait_until(
            lambda: len(harness.client) == sum(map(len, harness.client._idle.values()))
        )  # every connection is idle
        assert all(c.response is None for several in harness.client._idle.values() for c in several)


def test_responses_never_cross(run: Run) -> None:
    run(many_requests(800, 60, 1))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 20))
def test_responses_never_cross_long(run: Run, seed: int) -> None:
    run(many_requests(5000, 200, seed))


def test_many_exchanges_do_not_grow_memory(run: Run) -> None:
    async def scenario() -> None:
        async with client_harness(respond_always(OK)) as harness:
            for _ in range(300):
                await harness.get()
            tracemalloc.start()
            try:
                before = tracemalloc.get_traced_memory()[0]
                for _ in range(600):
                    await harness.get()
                assert tracemalloc.get_traced_memory()[0] - before < 30_000
            finally:
                tracemalloc.stop()
            assert len(harness.client) == harness.server.accepted == 1

    run(scenario())


def test_a_server_that_sends_before_the_request(run: Run) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwrong")
        await connection.wait_closed()

    async def scenario() -> None:
        for _ in range(20):
            async with client_harness(script) as harness:
                with contextlib.suppress(UpstreamFailed):  # bytes before the request may look like its response
                    assert await harness.get() == (200, b"wrong")

    run(scenario())


def test_with_uvicorn(run: Run) -> None:
    async def respond(request: AsgiRequest) -> None:
        await request.send_head(200, [])
        async for piece in request.iter_body():
            await request.send_body(piece)
        await request.send_body(request.path.encode(), more=False)

    async def content(body: bytes) -> AsyncIterator[bytes]:
        for k in range(0, len(body), 50_000):
            yield body[k : k + 50_000]
            await asyncio.sleep(0)

    async def scenario() -> None:
        async with serving(respond, HttpToolsProtocol) as (_, connect):
            host, port = (await connect()).writer.get_extra_info("peername")
            client, rng = Client("uvicorn", 5, 10), random.Random(1)

            async def one(k: int) -> None:
                body = b"%d" % k * rng.choice([0, 1, 1000, 100_000])
                sent = body if rng.random() < 0.5 else content(body)
                response = await client.request("POST", f"http://{host}:{port}", f"/{k}", b"", sent)
                assert await response.read() == body + b"/%d" % k

            await asyncio.gather(*(one(k) for k in range(100)))
            for k in range(20):
                await one(k)
            assert 0 < len(client) <= 100
            assert len(client) == sum(map(len, client._idle.values()))
            client.close()
            await async_wait_until(lambda: not len(client))

    run(scenario())
