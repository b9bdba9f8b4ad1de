"""Compact streams: every stream comes back byte for byte, and damage is never served."""

from __future__ import annotations

import json
import random
import struct
import zlib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from knapcache import Endpoint
from knapcache.errors import Incomplete
from knapcache.testing.provider_answers import STREAM
from knapcache.wire import FORMATS, compact
from knapcache.wire.base import CompleteAnswer, StreamCollector, compacted, expanded, stored_length
from knapcache.wire.compact import compact_stream, expand_stream
from knapcache.wire.sse import blocks, split_blocks

USAGE = {"stream_options": {"include_usage": True}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
MESSAGES = [{"role": "user", "content": "one two three four five six seven eight nine ten"}]
REQUESTS: dict[str, tuple[Endpoint, dict[str, Any]]] = {
    "chat": (Endpoint.CHAT, {"messages": MESSAGES}),
    "chat, usage": (Endpoint.CHAT, {"messages": MESSAGES, **USAGE}),
    "chat, n = 3": (Endpoint.CHAT, {"messages": MESSAGES, "n": 3, **USAGE}),
    "chat, tools": (Endpoint.CHAT, {"messages": MESSAGES, "tools": TOOLS}),
    "chat, logprobs": (Endpoint.CHAT, {"messages": MESSAGES, "logprobs": True, "reasoning_effort": "low"}),
    "completions": (Endpoint.COMPLETIONS, {"prompt": MESSAGES[0]["content"], **USAGE}),
    "responses": (Endpoint.RESPONSES, {"input": MESSAGES}),
    "messages": (Endpoint.MESSAGES, {"messages": MESSAGES, "max_tokens": 9}),
}
parts = st.sampled_from(
    [b"data: ", b"x", b'{"id":"1","choices":[]}', b"\n", b"\n\n", b"\r\n", b"\r", b": ping", b"event: e",
     b"\xef\xbb\xbf", b"\xff\x00", b'"usage"', b"data: [DONE]\n\n", "é😀".encode()]
)  # fmt: skip
streams = st.lists(parts, max_size=40).map(b"".join) | st.binary(max_size=300)


@given(streams, st.integers(1, 50))
def test_any_bytes_come_back(stream: bytes, times: int) -> None:
    for whole in (stream, stream * times):
        found = compact_stream(whole)
        assert found is None or (expand_stream(found) == whole and len(found) < len(whole))


@given(streams)
@example(b"data: x\n\n\ndata: y\n\n")
@example(b"\ndata: x\n\ndata: y\n\n")
@example(b"data: x\r\n\r\ndata: y\n\n")
def test_blocks_are_those_of_the_parser(stream: bytes) -> None:
    assert split_blocks(stream) == [block.raw for block in blocks(stream)]


def test_a_stream_that_is_too_long_is_not_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = bytes(1000)
    monkeypatch.setattr(compact, "MAX_SIZE", 1000)
    assert compact_stream(stream) is not None
    monkeypatch.setattr(compact, "MAX_SIZE", 999)
    assert compact_stream(stream) is None


def recorded(name: str, eol: str = "\n") -> tuple[Endpoint, CompleteAnswer, list[bytes]]:
    """Return the stored stream of a request, and the blocks that its caller got."""
    endpoint, request = REQUESTS[name]
    body = {"model": "m", "stream": True, **request}
    collector = StreamCollector(FORMATS[endpoint])
    sent = []
    for data in STREAM[f"/{endpoint.value}"](body, 7):
        name = "" if data == "[DONE]" or endpoint is Endpoint.CHAT else json.loads(data).get("type", "")
        lines = [*([f"event: {name}"] if name else []), f"data: {data}", "", ": a comment", "", ""]
        sent += collector.feed(eol.join(lines).encode())
    sent += collector.close()
    return endpoint, collector.complete(), [block.raw for block in sent if block.event]


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("eol", ["\n", "\r\n"], ids=repr)
def test_a_replay_has_the_blocks_that_were_recorded(name: str, eol: str) -> None:
    endpoint, verbatim, sent = recorded(name, eol)
    wire_format, compact = FORMATS[endpoint], compacted(verbatim)
    assert (verbatim.form, compact.form) == ("sse", "compact")
    assert len(compact.body) < len(verbatim.body) / 3
    assert stored_length(compact.body, compact.form) == len(verbatim.body)
    assert expanded(compact.body, compact.form) == expanded(verbatim.body, verbatim.form) == verbatim.body
    for usage in (True, False):  # entries of 0.1 are verbatim
        replayed = list(wire_format.to_stream(compact.body, compact.form, usage))
        assert replayed == list(wire_format.to_stream(verbatim.body, verbatim.form, usage))
        forwarded = [wire_format.forward(block, usage) for block in blocks(b"".join(sent))]
        assert replayed == (sent if usage else [raw for raw in forwarded if raw is not None])
    plain = wire_format.to_plain(compact.body, compact.form)
    assert plain == wire_format.to_plain(verbatim.body, verbatim.form)


def test_damage_is_found() -> None:
    _, verbatim, _ = recorded("chat, usage")
    compact, rng = compacted(verbatim).body, random.Random(1)
    for k in range(3000):
        damaged = bytearray(compact)
        for _ in range(1 + k % 3):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        if k % 5 == 0:
            del damaged[rng.randrange(len(damaged)) :]
        if k % 7 == 0:
            damaged += rng.randbytes(1 + k % 4)
        if bytes(damaged) != compact:
            with pytest.raises(Incomplete):
                expand_stream(bytes(damaged))


@pytest.mark.parametrize("size", [0, 10, 1 << 20, (1 << 32) - 1])
def test_a_stream_that_is_longer_than_it_states_is_not_expanded_further(size: int) -> None:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = deflater.compress(bytes(1 << 24)) + deflater.flush()
    with pytest.raises(Incomplete, match=r"damaged|more than 268435456"):
        expand_stream(struct.pack("<BII", 1, 0, size) + bomb)


def test_a_later_layout_is_a_miss() -> None:
    compact = compact_stream(b"data: x\n\n" * 20)
    assert compact
    with pytest.raises(Incomplete, match="layout 2; this version reads layout 1"):
        expand_stream(b"\x02" + compact[1:])
