"""Decompression: any split of the input gives the same output, in bounded chunks, and limits hold for requests."""

from __future__ import annotations

import gzip
import zlib
from functools import partial

import pytest

from knapcache.proxy.decompress import MAX_MEMBERS, MAX_OUTPUT, DecompressionError, Decompressor
from knapcache.proxy.http.asgi_request import RequestRejected, decompress
from tests.support.timing import check_linear, check_seconds, cpu_seconds

TEXT = b"".join(b"%d little words, " % k for k in range(200))
SIZES = [0, 1, MAX_OUTPUT - 1, MAX_OUTPUT, MAX_OUTPUT + 1, 3 * MAX_OUTPUT + 7]


def test_every_split_of_several_members() -> None:
    members = gzip.compress(TEXT, mtime=0) + gzip.compress(b"") + gzip.compress(b"more")
    for k in range(len(members)):
        decompressor = Decompressor()
        assert b"".join([*decompressor.feed(members[:k]), *decompressor.feed(members[k:])]) == TEXT + b"more"
        decompressor.end()
    decompressor = Decompressor()
    assert b"".join(b"".join(decompressor.feed(bytes([byte]))) for byte in members) == TEXT + b"more"
    decompressor.end()


@pytest.mark.parametrize("size", SIZES)
def test_chunks_are_bounded(size: int) -> None:
    data = gzip.compress(b"a" * size, mtime=0)
    for k in (0, 1, len(data) // 2, len(data) - 9, len(data) - 8, len(data) - 1):
        decompressor = Decompressor()
        chunks = [*decompressor.feed(data[:k]), *decompressor.feed(data[k:])]
        decompressor.end()
        assert b"".join(chunks) == b"a" * size
        assert max(map(len, chunks), default=0) <= MAX_OUTPUT


def test_many_empty_members_take_linear_time() -> None:
    empty = gzip.compress(b"", mtime=0)

    def decompress_all(data: bytes) -> None:
        assert b"".join(Decompressor().feed(data)) == b""

    check_linear(
        lambda members: partial(decompress_all, empty * members), MAX_MEMBERS // 8, "empty members", MAX_MEMBERS
    )
    with pytest.raises(DecompressionError, match="more than 10000 members"):
        list(Decompressor().feed(empty * (MAX_MEMBERS + 1)))


@pytest.mark.parametrize(
    "data", [b"xx", gzip.compress(TEXT, mtime=0)[:20] + b"garbage", gzip.compress(TEXT) + b"garbage"]
)
def test_invalid_data(data: bytes) -> None:
    with pytest.raises(DecompressionError):
        list(Decompressor().feed(data * 2))


def test_truncated_data() -> None:
    data = gzip.compress(TEXT, mtime=0)
    for k in range(1, len(data)):
        decompressor = Decompressor()
        list(decompressor.feed(data[:k]))
        with pytest.raises(DecompressionError, match="truncated"):
            decompressor.end()


# Request bodies.


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("gzip", gzip.compress(TEXT, mtime=0)),
        (" X-GZIP ", gzip.compress(TEXT, mtime=0)),
        ("deflate", zlib.compress(TEXT)),
        ("identity", TEXT),
        ("gzip", gzip.compress(TEXT[:100], mtime=0) + gzip.compress(TEXT[100:])),
    ],
)
def test_a_request_is_decompressed_up_to_its_limit(encoding: str, data: bytes) -> None:
    assert decompress(data, encoding, len(TEXT)) == TEXT
    if encoding != "identity":
        with pytest.raises(RequestRejected) as caught:
            decompress(data, encoding, len(TEXT) - 1)
        assert caught.value.status == 413


def test_a_bomb_in_a_request_is_stopped_at_the_limit() -> None:
    bomb = gzip.compress(bytes(64 << 20), 1)

    def stop() -> None:
        with pytest.raises(RequestRejected) as caught:
            decompress(bomb, "gzip", 1 << 20)
        assert caught.value.status == 413

    stopped, whole = (min(cpu_seconds(work) for _ in range(2)) for work in (stop, partial(gzip.decompress, bomb)))
    check_seconds(stopped, whole / 4, "a bomb of 64 times the limit")


@pytest.mark.parametrize(
    ("encoding", "data", "status"),
    [
        ("br", b"", 415),
        ("gzip, gzip", b"", 415),
        ("gzip", b"xx", 400),
        ("gzip", gzip.compress(TEXT, mtime=0)[:-1], 400),
    ],
)
def test_requests_that_cannot_be_decompressed(encoding: str, data: bytes, status: int) -> None:
    with pytest.raises(RequestRejected) as caught:
        decompress(data, encoding, 1 << 20)
    assert caught.value.status == status
