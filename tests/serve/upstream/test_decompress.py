"""Bodies that come packed: all of them, however they are cut, and no more than there may be."""

from __future__ import annotations

import asyncio
import gzip
import zlib

import pytest

from knapcache.errors import UpstreamFailed
from knapcache.serve.upstream import Response
from knapcache.serve.upstream import response as response_module
from knapcache.serve.upstream.decompress import UNPACKED, Decompressor
from tests.support.scripted_server import Run, client_harness, respond_always, respond_once, run, wait_until

__all__ = ["run"]

HEAD = b"HTTP/1.1 200 OK\r\n"


def answer(body: bytes, encoding: bytes = b"gzip") -> bytes:
    return HEAD + b"content-encoding: %b\r\ncontent-length: %d\r\n\r\n" % (encoding, len(body)) + body


TEXT = b"".join(b"%d little words, " % k for k in range(200))
SIZES = [0, 1, UNPACKED - 1, UNPACKED, UNPACKED + 1, 3 * UNPACKED + 7]


@pytest.mark.parametrize("encoding", [b"gzip", b"X-GZIP", b" gzip ", b"deflate", b"identity", b""])
def test_packed_bodies(run: Run, encoding: bytes) -> None:
    name = encoding.strip().lower()
    packed = TEXT if name in (b"", b"identity") else zlib.compress(TEXT) if name == b"deflate" else gzip.compress(TEXT)
    sent = answer(packed, encoding)

    async def scenario() -> None:
        async with client_harness(respond_always(sent)) as harness:
            assert await harness.get() == (200, TEXT)
            assert await harness.get(raw=True) == (200, packed)
            assert harness.server.accepted == 1

    run(scenario())


def test_packed_bodies_wherever_they_are_cut() -> None:
    several = gzip.compress(TEXT) + gzip.compress(b"") + gzip.compress(b"more")
    for k in range(len(several)):
        unpacker = Decompressor()
        assert b"".join([*unpacker.feed(several[:k]), *unpacker.feed(several[k:])]) == TEXT + b"more"
        unpacker.end()
    unpacker = Decompressor()
    assert b"".join(b"".join(unpacker.feed(bytes([byte]))) for byte in several) == TEXT + b"more"
    unpacker.end()


@pytest.mark.parametrize("size", SIZES)
def test_packed_bodies_of_any_length(size: int) -> None:
    packed = gzip.compress(b"a" * size)
    for k in (0, 1, len(packed) // 2, len(packed) - 9, len(packed) - 8, len(packed) - 1):
        unpacker = Decompressor()
        pieces = [*unpacker.feed(packed[:k]), *unpacker.feed(packed[k:])]
        unpacker.end()
        assert b"".join(pieces) == b"a" * size
        assert max(map(len, pieces), default=0) <= UNPACKED


def test_packed_bodies_that_are_cut_off(run: Run) -> None:
    packed = gzip.compress(TEXT)

    async def scenario() -> None:
        for k in range(1, len(packed), 7):
            async with client_harness(respond_always(answer(packed[:k]))) as harness:
                with pytest.raises(UpstreamFailed):
                    await harness.get()

    run(scenario())


def test_nothing_packed_is_nothing(run: Run) -> None:
    async def scenario() -> None:
        async with client_harness(respond_always(answer(b""))) as harness:
            assert await harness.get() == (200, b"")

    run(scenario())


def test_more_than_there_may_be(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_module, "MAX_BODY", 4 << 20)
    bomb = gzip.compress(bytes(64 << 20), 9)
    assert len(bomb) < 100_000

    async def scenario() -> None:
        for sent in (answer(bomb), HEAD + b"content-length: 8000000\r\n\r\n" + bytes(8_000_000)):
            async with client_harness(respond_once(sent)) as harness:
                with pytest.raises(UpstreamFailed, match="more than 4194304"):
                    await harness.get()
                await asyncio.sleep(0)
                await wait_until(lambda: not len(harness.client), 1.0)

    run(scenario())


def test_a_bomb_is_unpacked_no_faster_than_it_is_read(run: Run) -> None:
    bomb = gzip.compress(bytes(64 << 20), 9)

    async def scenario() -> None:
        async with client_harness(respond_always(answer(bomb))) as harness:
            response: Response = await harness.request()
            size = 0
            async for piece in response.iter_bytes():
                assert len(piece) <= UNPACKED
                size += len(piece)
                if size > 1 << 20:
                    break
            await response.close()

    run(scenario())


def test_many_small_packs_take_no_longer_than_one(run: Run) -> None:
    empty = gzip.compress(b"")
    unpacker = Decompressor()
    many = empty * (1_300_000 // len(empty))

    async def scenario() -> None:
        started = asyncio.get_running_loop().time()
        assert b"".join(unpacker.feed(many)) == b""
        assert asyncio.get_running_loop().time() - started < 1.0

    run(scenario())
