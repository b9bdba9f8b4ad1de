"""Hostile bodies: decompression bombs, nested encodings, deep and ambiguous JSON."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import pytest

from tests.attacks.conftest import Connect
from tests.support.proxy_process import ProxyProcess
from tests.support.raw_client import CHAT, HealthProbe, RawClient, chat_body, post
from tests.support.recording_upstream import RecordingUpstream
from tests.support.timing import check_seconds

MAX_BODY, MAX_DECOMPRESSED = 1_000_000, 2_000_000


@pytest.fixture(scope="module")
def proxy_settings() -> dict[str, Any]:
    return {"max_body": MAX_BODY, "max_decompressed": MAX_DECOMPRESSED}


def bomb(megabytes: int) -> bytes:
    """Return a gzip file of zeros. Its blocks are one block repeated, so it is made at once."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + block * megabytes


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", " gzip ", "x-gzip", "deflate"])
def test_a_bomb_is_refused_at_the_limit(encoding: str, connect: Connect, upstream: RecordingUpstream) -> None:
    body = zlib.compress(bytes(5_000_000)) if encoding == "deflate" else bomb(5)
    (response,) = connect().send(post(body, f"Content-Encoding: {encoding}")).responses(1)
    assert response.status in ((413,) if encoding != "x-gzip" else (413, 415))
    assert upstream.targets == []


def test_a_bomb_of_400_megabytes_takes_no_memory_and_stalls_no_one(
    process: ProxyProcess, upstream: RecordingUpstream
) -> None:
    body = bomb(400)
    assert len(body) < MAX_BODY
    before = process.peak_memory()
    with HealthProbe(process.url) as probe, RawClient(process.url) as client:
        for _ in range(3):
            (response,) = client.send(post(body, "Content-Encoding: gzip")).responses(1)
            assert response.status == 413
            if client.closed:
                break
    assert upstream.targets == []
    assert process.peak_memory() - before < 50 << 20
    check_seconds(probe.worst, 1.0, "/healthz")


REFUSED_ENCODINGS = {
    "two encodings": ("gzip, gzip", gzip.compress(gzip.compress(chat_body("x")))),
    "brotli": ("br", b"\x0b\x02\x80{}\x03"),
    "zstd": ("zstd", b"\x28\xb5\x2f\xfd"),
    "unknown": ("rot13", b"{}"),
    "empty": ("", chat_body("x")),
    "not gzip": ("gzip", chat_body("x")),
    "truncated gzip": ("gzip", gzip.compress(chat_body("x" * 1000))[:-9]),
    "gzip with a wrong checksum": ("gzip", gzip.compress(chat_body("x"))[:-8] + bytes(8)),
    "gzip with bytes after it": ("gzip", gzip.compress(chat_body("x")) + b"more"),
}


@pytest.mark.parametrize(("encoding", "body"), REFUSED_ENCODINGS.values(), ids=REFUSED_ENCODINGS.keys())
def test_a_body_in_an_unreadable_encoding_is_refused(
    encoding: str, body: bytes, connect: Connect, upstream: RecordingUpstream
) -> None:
    (response,) = connect().send(post(body, f"Content-Encoding: {encoding}")).responses(1)
    assert response.status in (400, 415)
    assert upstream.targets == []


def test_a_nested_encoding_is_decoded_once(connect: Connect, upstream: RecordingUpstream) -> None:
    inner = gzip.compress(chat_body("nested"))
    (response,) = connect().send(post(gzip.compress(inner), "Content-Encoding: gzip")).responses(1)
    assert response.outcome == "bypass"
    assert [request.body for request in upstream.requests] == [inner]
    assert upstream.requests[0].values("content-encoding") == []


def test_an_encoded_request_and_its_plain_form_are_one_request(connect: Connect, upstream: RecordingUpstream) -> None:
    body = chat_body("encoded")
    client = connect().send(post(gzip.compress(body), "Content-Encoding: gzip") + post(body))
    assert [response.outcome for response in client.responses(2)] == ["miss", "hit"]
    assert upstream.requests[0].json() == {"model": "m", "messages": [{"role": "user", "content": "encoded"}]}


def test_encoded_bodies_pass_through_as_they_are(connect: Connect, upstream: RecordingUpstream) -> None:
    body = bomb(5)
    (response,) = connect().send(post(body, "Content-Encoding: gzip", path="/v1/files")).responses(1)
    assert response.status == 200
    assert [request.body for request in upstream.requests] == [body]
    assert upstream.requests[0].values("content-encoding") == ["gzip"]


NO_KEY: dict[str, bytes] = {  # tests/keys has many more
    "NaN": b'{"model":"m","seed":NaN}',
    "duplicate name by an escape": b'{"model":"m","seed":1,"\\u0073eed":2}',
    "lone high surrogate": b'{"model":"m","seed":"\\ud800"}',
    "invalid UTF-8": b'{"model":"m","seed":"\xff"}',
    "byte order mark": b'\xef\xbb\xbf{"model":"m"}',
    "UTF-16": '{"model":"m"}'.encode("utf-16"),
    "100,000 levels": b'{"model":"m","seed":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "100,000 open lists": b'{"model":"m","seed":' + b"[" * 100_000,
    "100,000 digits": b'{"model":"m","seed":' + b"1" * 100_000 + b"}",
    "two bodies": b'{"model":"m"}{"model":"n"}',
    "list": b'[{"model":"m"}]',
    "nothing": b"",
}


@pytest.mark.parametrize("body", NO_KEY.values(), ids=NO_KEY.keys())
def test_a_body_without_one_meaning_is_forwarded_as_it_is_and_never_cached(
    body: bytes, connect: Connect, upstream: RecordingUpstream
) -> None:
    client = connect()
    outcomes = [client.send(post(body)).responses(1)[0] for _ in range(3)]
    assert {response.outcome for response in outcomes} == {"bypass"}
    assert [request.body for request in upstream.requests] == [body] * 3


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings", "/v1/messages", "/v1/responses", "/v1/completions"])
@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":0,"input":0,"prompt":0}',
        b'{"model":"m","messages":[0,null,{}],"input":[0,null,{}],"prompt":[0,null,{}]}',
        b'{"model":"m","messages":{"role":[]},"input":{},"prompt":{}}',
        b'{"model":"","messages":[],"input":[],"prompt":[]}',
        b'{"model":"m","stream":"yes","stream_options":1,"input":"x"}',
        b'{"model":"m","stream":true,"stream_options":[],"input":"x","messages":[]}',
        b'{"model":"m","cache":[],"input":"x"}',
        b'{"model":"m","cache":{"ttl":"x"},"input":"x"}',
        b'{"model":"m","cache":{"ttl":1e15},"input":"x"}',
        b'{"model":"m","cache":{"ttl":-1},"input":"x"}',
        b'{"model":"m","cache":{"namespace":{}},"input":"x"}',
        b'{"model":"m","n":-1,"tools":0,"input":"x"}',
        b'{"model":"m","encoding_format":{},"dimensions":[],"input":["x",["y"]]}',
    ],
)
def test_fields_of_the_wrong_type_are_no_error_of_the_proxy(path: str, body: bytes, connect: Connect) -> None:
    (response,) = connect().send(post(body, path=path)).responses(1)
    assert response.status != 500, response
