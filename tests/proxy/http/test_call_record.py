"""The cost of answers that the cache does not parse."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from knapcache.proxy.http.call_record import MAX_HEAD, MAX_PLAIN, MAX_TAIL, SampledResponse


def event(**fields: object) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()


class Pieces:
    """A response of an upstream that comes in these pieces."""

    def __init__(self, pieces: tuple[bytes, ...], *, stream: bool) -> None:
        self._pieces = pieces
        self.status, self.pairs = 200, list[tuple[str, str]]()
        self.headers = {"content-type": "text/event-stream" if stream else "application/json"}

    async def read(self) -> bytes:
        return b"".join(self._pieces)

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece

    async def close(self) -> None:
        pass


def sample_of(*pieces: bytes, stream: bool = True) -> SampledResponse:
    found = SampledResponse(Pieces(pieces, stream=stream))

    async def read() -> list[bytes]:
        return [piece async for piece in found.iter_bytes()]

    assert asyncio.run(read()) == list(pieces)
    assert found.complete
    return found


def test_the_usage_of_a_plain_answer() -> None:
    body = json.dumps({"model": "m", "usage": {"total_tokens": 7, "x": None}, "service_tier": "flex"}).encode()
    found = sample_of(body[:20], body[20:], stream=False).usage()
    assert found == ({"total_tokens": 7}, "m", "flex")
    assert sample_of(body[:-1], stream=False).usage() is None
    assert sample_of(b"[1]", stream=False).usage() is None
    longest = b" " * (MAX_PLAIN - len(body))
    assert sample_of(longest, body, stream=False).usage() == found
    assert sample_of(longest + b" ", body, stream=False).usage() is None


@pytest.mark.parametrize("filler", [0, MAX_HEAD, 3 * MAX_TAIL])
@pytest.mark.parametrize("size", [1000, 100_000])
def test_usage_at_the_begin_and_at_the_end_of_a_stream(filler: int, size: int) -> None:
    """Anthropic reports the input first and the output last, OpenAI's Responses within an answer."""
    text = event(type="delta", text='"usage": {"output_tokens": 99}') * (filler // 60)
    whole = (
        event(type="message_start", message={"model": "m", "usage": {"input_tokens": 5, "output_tokens": 1}})
        + text
        + event(type="message_delta", usage={"output_tokens": 30})
    )
    pieces = [whole[k : k + size] for k in range(0, len(whole), size)]
    found = sample_of(*pieces).usage()
    assert found is not None
    assert found.usage == {"input_tokens": 5, "output_tokens": 30}
    assert found.model == "m"
    done = sample_of(text, event(type="response.completed", response={"usage": {"total_tokens": 3}, "model": "r"}))
    assert done.usage() == ({"total_tokens": 3}, "r", None)


def test_usage_elsewhere_is_not_usage() -> None:
    """A caller's own fields come back in some answers."""
    forged = {"tools": [{"usage": {"total_tokens": 10**9}}], "metadata": {"usage": {"total_tokens": 0}}}
    assert sample_of(event(type="x", response=forged, **forged)).usage() is None


def test_the_length_bounds_the_tokens_from_below() -> None:
    assert sample_of(*[event(choices=[{"delta": {"content": "a"}}])] * 50).output_tokens == 50
    long = sample_of(event(text="x" * 40_000))
    assert 9000 < long.output_tokens < 10_100
    assert sample_of(b"x" * 400, stream=False).output_tokens == 100
    sample = sample_of(*[b"x" * 1000] * 2000)
    assert (len(sample._head), len(sample._tail) <= 2 * MAX_TAIL + 1000) == (MAX_HEAD, True)
