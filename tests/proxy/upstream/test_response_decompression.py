"""Compressed responses: decoded or passed on raw, rejected if they are damaged or too large."""

from __future__ import annotations

import asyncio
import gzip
import zlib

import pytest

from knapcache.errors import UpstreamFailed
from knapcache.proxy.decompress import MAX_OUTPUT
from knapcache.proxy.upstream import Response
from tests.support.scripted_server import Run, client_harness, respond_always, respond_once, run
from tests.support.timing import async_wait_until

__all__ = ["run"]

HEAD = b"HTTP/1.1 200 OK\r\n"
TEXT = b"".join(b"%d little words, " % k for k in range(200))


def encoded_response(body: bytes, encoding: bytes = b"gzip") -> bytes:
    return HEAD + b"content-encoding: %b\r\ncontent-length: %d\r\n\r\n" % (encoding, len(body)) + body


@pytest.mark.parametrize("encoding", [b"gzip", b"X-GZIP", b" gzip ", b"deflate", b"identity", b""])
def test_encodings(run: Run, encoding: bytes) -> None:
    name = encoding.strip().lower()
    body = TEXT if name in (b"", b"identity") else zlib.compress(TEXT) if name == b"deflate" else gzip.compress(TEXT)

    async def scenario() -> None:
        async with client_harness(respond_always(encoded_response(body, encoding))) as harness:
            assert await harness.get() == (200, TEXT)
            assert await harness.get(raw=True) == (200, body)
            assert harness.server.accepted == 1

    run(scenario())


def test_truncated_bodies_fail(run: Run) -> None:
    body = gzip.compress(TEXT)

    async def scenario() -> None:
        for k in range(1, len(body), 7):
            async with client_harness(respond_always(encoded_response(body[:k]))) as harness:
                with pytest.raises(UpstreamFailed, match="DecompressionError"):
                    await harness.get()

    run(scenario())


def test_an_empty_compressed_body_is_empty(run: Run) -> None:
    async def scenario() -> None:
        async with client_harness(respond_always(encoded_response(b""))) as harness:
            assert await harness.get() == (200, b"")

    run(scenario())


def test_bodies_above_the_limit_fail(run: Run) -> None:
    bomb = gzip.compress(bytes(64 << 20), 9)
    assert len(bomb) < 100_000

    async def scenario() -> None:
        for sent in (encoded_response(bomb), HEAD + b"content-length: 8000000\r\n\r\n" + bytes(8_000_000)):
            async with client_harness(respond_once(sent), max_body=4 << 20) as harness:
                with pytest.raises(UpstreamFailed, match="more than 4194304"):
                    await harness.get()
                await asyncio.sleep(0)
                await async_wait_until(lambda: not len(harness.client), seconds=5)

    run(scenario())


def test_a_bomb_is_decompressed_only_as_far_as_it_is_read(run: Run) -> None:
    bomb = gzip.compress(bytes(64 << 20), 9)

    async def scenario() -> None:
        async with client_harness(respond_always(encoded_response(bomb))) as harness:
            response: Response = await harness.request()
            size = 0
            async for chunk in response.iter_bytes():
                assert len(chunk) <= MAX_OUTPUT
                size += len(chunk)
                if size > 1 << 20:
                    break
            await response.close()

    run(scenario())
