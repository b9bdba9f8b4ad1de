"""The text of stored answers, of every endpoint and in every form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from knapcache import Endpoint
from knapcache.testing.provider_answers import PLAIN, STREAM
from knapcache.wire import FORMATS, StreamCollector
from knapcache.wire.answer_text import answer_text
from knapcache.wire.base import CompleteAnswer, compacted

REQUESTS: dict[Endpoint, dict[str, Any]] = {
    Endpoint.CHAT: {"model": "m", "messages": [{"role": "user", "content": "Grüße, and hello"}]},
    Endpoint.COMPLETIONS: {"model": "m", "prompt": "Grüße, and hello"},
    Endpoint.RESPONSES: {"model": "m", "input": "Grüße, and hello"},
    Endpoint.MESSAGES: {"model": "m", "messages": [{"role": "user", "content": "Grüße, and hello"}]},
}


def plain(endpoint: Endpoint, **fields: Any) -> dict[str, Any]:
    return PLAIN[f"/{endpoint.value}"](REQUESTS[endpoint] | fields, 1)


def text_of(endpoint: Endpoint, answer: Any) -> str | None:
    return answer_text(endpoint, json.dumps(answer).encode(), "json")


def streamed(endpoint: Endpoint, **fields: Any) -> CompleteAnswer:
    """Return an answer as it is stored after a stream."""
    collector = StreamCollector(FORMATS[endpoint])
    named = endpoint in (Endpoint.MESSAGES, Endpoint.RESPONSES)
    for data in STREAM[f"/{endpoint.value}"](REQUESTS[endpoint] | fields | {"stream": True}, 1):
        name = f"event: {json.loads(data)['type']}\n" if named else ""
        collector.feed(f"{name}data: {data}\n\n".encode())
    collector.close()
    return collector.complete()


@pytest.mark.parametrize("endpoint", REQUESTS)
def test_every_endpoint_and_form_gives_the_same_text(endpoint: Endpoint) -> None:
    expected = "You said: Grüße, and hello"
    assert text_of(endpoint, plain(endpoint)) == expected
    stream = streamed(endpoint)
    compact = compacted(stream)
    assert compact.form == "compact"
    assert answer_text(endpoint, stream.body, stream.form) == expected
    assert answer_text(endpoint, compact.body, compact.form) == expected


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        (Endpoint.CHAT, {"n": 2}),
        (Endpoint.COMPLETIONS, {"n": 2}),
        (Endpoint.CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        (Endpoint.MESSAGES, {"tools": [{"name": "f"}]}),
        (Endpoint.RESPONSES, {"tools": [{"type": "function", "name": "f"}]}),
    ],
)
def test_tool_calls_and_several_choices_are_no_text(endpoint: Endpoint, fields: dict[str, Any]) -> None:
    assert text_of(endpoint, plain(endpoint, **fields)) is None


def test_reasoning_is_no_part_of_the_text() -> None:
    expected = "You said: Grüße, and hello"
    assert text_of(Endpoint.CHAT, plain(Endpoint.CHAT, reasoning_effort="high")) == expected
    assert text_of(Endpoint.MESSAGES, plain(Endpoint.MESSAGES, thinking={"type": "enabled"})) == expected
    response = plain(Endpoint.RESPONSES)
    assert text_of(Endpoint.RESPONSES, response | {"output": [{"type": "reasoning"}, *response["output"]]}) == expected


def chat(message: dict[str, Any], finish: str = "stop") -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}]}


def test_refusals_audio_filtered_and_blank_answers_are_no_text() -> None:
    assert text_of(Endpoint.CHAT, chat({"content": "Paris"})) == "Paris"
    assert text_of(Endpoint.CHAT, chat({"content": [{"type": "text", "text": "Paris"}]})) == "Paris"
    assert text_of(Endpoint.CHAT, chat({"content": "Paris", "refusal": "no"})) is None
    assert text_of(Endpoint.CHAT, chat({"content": "Paris", "audio": {"id": "a"}})) is None
    assert text_of(Endpoint.CHAT, chat({"content": "Paris", "function_call": {"name": "f"}})) is None
    assert text_of(Endpoint.CHAT, chat({"content": "Paris"}, "content_filter")) is None
    assert text_of(Endpoint.CHAT, chat({"content": [{"type": "image_url"}]})) is None
    assert text_of(Endpoint.CHAT, chat({"content": " \n"})) is None
    assert text_of(Endpoint.CHAT, chat({"content": None})) is None
    message = plain(Endpoint.MESSAGES)
    assert text_of(Endpoint.MESSAGES, message | {"stop_reason": "refusal"}) is None
    assert text_of(Endpoint.MESSAGES, message | {"stop_reason": "pause_turn"}) is None
    response = plain(Endpoint.RESPONSES)
    refusal = {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}
    assert text_of(Endpoint.RESPONSES, response | {"output": [refusal]}) is None
    assert text_of(Endpoint.RESPONSES, response | {"output": [{"type": "web_search_call"}]}) is None


def test_damaged_answers_and_embeddings_have_no_text() -> None:
    for damaged in (b"", b"[]", b'{"choices": 3}', b'{"choices": [3]}', b'{"choices": [{"finish_reason": "stop"}]}'):
        assert answer_text(Endpoint.CHAT, damaged, "json") is None
    assert answer_text(Endpoint.MESSAGES, b'{"stop_reason": "end_turn", "content": [3]}', "json") is None
    assert answer_text(Endpoint.RESPONSES, b'{"output": [3]}', "json") is None
    assert answer_text(Endpoint.CHAT, b"data: {", "sse") is None
    assert answer_text(Endpoint.EMBEDDINGS, b"{}", "json") is None
