"""The usage in responses of Amazon Bedrock, plain and streamed."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from knapcache.serve.http.bedrock_usage import MAX_ANSWER, MAX_MESSAGE, StreamUsage, usage_reader
from tests.support.bedrock import STREAM_TYPE, converse_stream, invoke_stream, message


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"inputTokens": 5, "outputTokens": 1}, (5, 0, 0, 0)),
        ({"inputTokens": 5, "cacheReadInputTokens": 70, "cacheWriteInputTokens": 8}, (5, 70, 8, 0)),
        ({"input_tokens": 5, "cache_read_input_tokens": 70}, (5, 70, 0, 0)),
        ({"inputTokens": "5"}, None),
        ({"inputTokens": 5, "cacheReadInputTokens": -1}, None),
        ([1], None),
    ],
)
@pytest.mark.parametrize("size", [1, 50, 10_000])
def test_usage_is_read_from_pieces_of_any_size(usage: Any, expected: tuple[int, ...] | None, size: int) -> None:
    plain_answer = json.dumps({"usage": usage}).encode()
    for body, kind in (
        (plain_answer, "application/json"),
        (converse_stream(usage), STREAM_TYPE),
        (invoke_stream(usage), STREAM_TYPE),
    ):
        reader = usage_reader({"content-type": kind})
        assert reader is not None
        for start in range(0, len(body), size):
            reader.feed(body[start : start + size])
        assert reader.tokens() == expected


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"[]", "application/json"),
        (b"{", "application/json"),
        (b"", STREAM_TYPE),
        (b'{"usage": {"inputTokens": 5}}' + b" " * MAX_ANSWER, "application/json"),
        (converse_stream({"inputTokens": 5})[:-1], STREAM_TYPE),
        (b"\0" * 16 + converse_stream({"inputTokens": 5}), STREAM_TYPE),
        (struct.pack(">III", MAX_MESSAGE + 1, 0, 0) + bytes(100), STREAM_TYPE),
        (message({"bytes": "not base64!"}) + message([1]) + message({"usage": 1}), STREAM_TYPE),
    ],
)
def test_other_answers_have_no_usage(body: bytes, kind: str) -> None:
    reader = usage_reader({"content-type": kind})
    assert reader is not None
    reader.feed(body)
    assert reader.tokens() is None
    assert usage_reader({"content-type": "text/html"}) is None
    assert usage_reader({"content-type": kind, "content-encoding": "gzip"}) is None


def test_a_stream_is_not_kept() -> None:
    reader = StreamUsage()
    for _ in range(100):
        reader.feed(message({"delta": {"text": "t" * 1000}}))
        assert not reader._rest
    reader.feed(bytes(100))
    reader.feed(bytes(1000))
    assert not reader._rest, "what is no event stream is not kept either"
