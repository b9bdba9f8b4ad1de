"""Plain and streamed are one answer: a split stream adds up to the plain answer, and only whole answers are kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache import Endpoint
from knapcache.errors import Incomplete
from knapcache.wire import Collector, as_plain, as_stream, plain_answer, sse
from knapcache.wire import base as forms
from tests.support import answers

STRATEGIES = {
    Endpoint.CHAT: answers.chats(),
    Endpoint.COMPLETIONS: answers.completions(),
    Endpoint.RESPONSES: answers.responses(),
    Endpoint.MESSAGES: answers.messages(),
}
any_answer = st.one_of([st.tuples(st.just(at), strategy) for at, strategy in STRATEGIES.items()])


def whole(endpoint: Endpoint, pieces: list[bytes]) -> forms.Whole:
    collector = Collector(endpoint)
    for piece in pieces:
        collector.feed(piece)
    collector.close()
    return collector.whole()


@given(any_answer)
def test_a_split_answer_adds_up_to_itself(case: tuple[Endpoint, dict[str, Any]]) -> None:
    endpoint, answer = case
    kept = plain_answer(endpoint, json.dumps(answer).encode())
    stream = list(as_stream(endpoint, kept.body, kept.form, usage=True))
    found = whole(endpoint, stream)
    assert json.loads(as_plain(endpoint, found.body, found.form)) == answer
    assert (found.model, found.usage) == (kept.model, kept.usage) == (answer["model"], answer["usage"])


@given(any_answer, st.data())
def test_a_kept_stream_replays_block_for_block(case: tuple[Endpoint, dict[str, Any]], data: st.DataObject) -> None:
    endpoint, answer = case
    stream = list(as_stream(endpoint, json.dumps(answer).encode(), "json", usage=True))
    joined = b": hello\n\n" + b"".join(stream)
    at = data.draw(st.integers(0, len(joined)))
    kept = whole(endpoint, [joined[:at], joined[at:]])
    assert list(as_stream(endpoint, kept.body, kept.form, usage=True)) == stream


@given(any_answer, st.data())
def test_a_stream_that_was_cut_off_is_not_kept(case: tuple[Endpoint, dict[str, Any]], data: st.DataObject) -> None:
    endpoint, answer = case
    stream = b"".join(as_stream(endpoint, json.dumps(answer).encode(), "json", usage=True)).rstrip()
    at = data.draw(st.integers(0, len(stream) - 1))
    with pytest.raises(Incomplete):
        whole(endpoint, [stream[:at]])


@given(answers.chats() | answers.completions())
def test_usage_is_said_only_when_it_is_asked_for(answer: dict[str, Any]) -> None:
    endpoint = Endpoint.CHAT if answer["object"] == "chat.completion" else Endpoint.COMPLETIONS
    body = json.dumps(answer).encode()
    asked, unasked = (list(as_stream(endpoint, body, "json", usage=usage)) for usage in (True, False))
    assert b'"usage"' not in b"".join(block for block in unasked if b'"choices":[]' in block)
    kept = whole(endpoint, asked)
    assert list(as_stream(endpoint, kept.body, "sse", usage=False)) == unasked
    *chunks, last, done = [event.data for event in sse.events(b"".join(asked))]
    assert done == "[DONE]"
    assert json.loads(last)["usage"] == answer["usage"]
    assert json.loads(last)["choices"] == []
    assert all(json.loads(chunk)["usage"] is None for chunk in chunks)


def test_a_choice_is_told_in_order_and_tokens_keep_their_log_probabilities() -> None:
    tokens = [{"token": text, "logprob": -1.0} for text in ("He", "llo")]
    logprobs = {"content": tokens, "refusal": None}
    message = {"role": "assistant", "content": "Hello", "reasoning_content": "A greeting."}
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": "stop"}
    answer = {"id": "1", "object": "chat.completion", "model": "m", "choices": [choice]}
    blocks = list(as_stream(Endpoint.CHAT, json.dumps(answer).encode(), "json"))
    steps = [json.loads(e.data)["choices"][0] for e in sse.events(b"".join(blocks[:-1]))]
    assert [step["delta"] for step in steps] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "A greeting."},
        {"content": "He"},
        {"content": "llo"},
        {},
    ]
    assert [step["logprobs"]["content"] for step in steps if step.get("logprobs")] == [[token] for token in tokens]
    assert [step["finish_reason"] for step in steps] == [None] * 4 + ["stop"]


def chunk(delta: dict[str, Any], finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {"id": "1", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **more}


def stream_of(*said: Any, done: bool = True) -> bytes:
    texts = [thing if isinstance(thing, str) else json.dumps(thing) for thing in said]
    return b"".join(f"data: {text}\n\n".encode() for text in [*texts, *(["[DONE]"] if done else [])])


def test_a_stream_as_servers_really_send_it_adds_up() -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}
    stream = stream_of(
        {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]},  # Azure's first chunk
        chunk({"role": "assistant", "content": None, "tool_calls": [call]}, obfuscation="xyz"),
        chunk({"tool_calls": [{"index": 0, "id": "", "function": {"name": "f", "arguments": '{"a":'}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"name": "", "arguments": "1}"}}]}),
        chunk({"role": "assistant", "content": "hi"}, index=1),
        chunk({}, "tool_calls"),
        chunk({"content": " there"}, "stop", index=1, usage={"prompt_tokens": 1}),  # DeepSeek's last chunk
    )
    answer = json.loads(as_plain(Endpoint.CHAT, stream, "sse"))
    first, second = answer["choices"]
    function = {"name": "f", "arguments": '{"a":1}'}
    assert first["message"]["tool_calls"] == [{"id": "c", "type": "function", "function": function}]
    assert (first["finish_reason"], second["finish_reason"]) == ("tool_calls", "stop")
    assert second["message"]["content"] == "hi there"
    assert answer["usage"] == {"prompt_tokens": 1}
    assert answer["prompt_filter_results"] == [{"prompt_index": 0}]
    assert "obfuscation" not in answer
    assert b"".join(as_stream(Endpoint.CHAT, stream, "sse", usage=False)) == stream  # usage of its own accord stays


BAD_CHAT = {
    "an error in the middle": stream_of(chunk({"content": "a"}), {"error": {"message": "overloaded"}}),
    "no finish reason": stream_of(chunk({"content": "a"})),
    "a finish reason for one of two": stream_of(chunk({"content": "a"}, "stop"), chunk({"content": "b"}, index=1)),
    "no [DONE]": stream_of(chunk({"content": "a"}, "stop"), done=False),
    "nothing but [DONE]": stream_of(),
    "nothing": b"",
    "HTML": b"<html>\n\n</html>",
    "no JSON": stream_of('{"choices": [', chunk({}, "stop")),
    "an error event": b"event: error\ndata: {}\n\n" + stream_of(chunk({"content": "a"}, "stop")),
    "bytes that are no text": b'data: {"x": "\xff"}\n\n' + stream_of(chunk({"content": "a"}, "stop")),
    "choices that are no objects": stream_of({"choices": [1]}, chunk({}, "stop")),
    "an index that is no number": stream_of({"choices": [{"index": "a", "delta": {}, "finish_reason": "stop"}]}),
}


@pytest.mark.parametrize("stream", BAD_CHAT.values(), ids=BAD_CHAT)
def test_streams_that_are_not_whole(stream: bytes) -> None:
    with pytest.raises(Incomplete):
        whole(Endpoint.CHAT, [stream])


def messages_stream(*said: dict[str, Any]) -> bytes:
    return b"".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in said)


START = {"type": "message_start", "message": {"type": "message", "content": [], "usage": {"input_tokens": 3}}}
OPEN = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
HI = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}}
TOOL = {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "name": "f", "input": {}}}
HALF = {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a"'}}
END = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}
STOP = {"type": "message_stop"}
NEW = {"type": "content_block_delta", "index": 0, "delta": {"type": "hologram_delta", "hologram": "?"}}
FAIL = {"type": "error", "error": {"type": "overloaded_error"}}

BAD_MESSAGES = {
    "no stop": (START, OPEN, HI, END),
    "no stop reason": (START, OPEN, HI, STOP),
    "no start": (OPEN, HI, END, STOP),
    "an error": (START, OPEN, HI, FAIL),
    "an error, and on it goes": (START, FAIL, OPEN, HI, END, STOP),
    "half a tool input": (START, TOOL, HALF, END, STOP),
    "a delta of no block": (START, HI, END, STOP),
    "a delta of an unknown kind": (START, OPEN, NEW, END, STOP),
    "an event of an unknown kind": (START, {"type": "surprise"}, OPEN, HI, END, STOP),
}


@pytest.mark.parametrize("said", BAD_MESSAGES.values(), ids=BAD_MESSAGES)
def test_messages_that_are_not_whole(said: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(Incomplete):
        whole(Endpoint.MESSAGES, [messages_stream(*said)])


def test_a_message_with_pings_is_whole() -> None:
    kept = whole(Endpoint.MESSAGES, [messages_stream(START, OPEN, {"type": "ping"}, HI, END, STOP)])
    assert kept.usage == {"input_tokens": 3, "output_tokens": 1}
    assert json.loads(as_plain(Endpoint.MESSAGES, kept.body, "sse"))["content"] == [{"type": "text", "text": "hi"}]


BAD_PLAIN = {
    "HTML": (Endpoint.CHAT, b"<html>busy</html>"),
    "an error": (Endpoint.CHAT, b'{"error": {"message": "no"}}'),
    "a list": (Endpoint.CHAT, b"[]"),
    "no choices": (Endpoint.CHAT, b'{"choices": []}'),
    "no finish reason": (Endpoint.CHAT, b'{"choices": [{"message": {"content": "a"}, "finish_reason": null}]}'),
    "no message": (Endpoint.CHAT, b'{"choices": [{"finish_reason": "stop"}]}'),
    "no text": (Endpoint.COMPLETIONS, b'{"choices": [{"finish_reason": "stop"}]}'),
    "still queued": (Endpoint.RESPONSES, b'{"object": "response", "status": "queued", "output": []}'),
    "cut off": (Endpoint.RESPONSES, b'{"object": "response", "status": "incomplete", "output": []}'),
    "not a response": (Endpoint.RESPONSES, b'{"status": "completed"}'),
    "no stop reason": (Endpoint.MESSAGES, b'{"type": "message", "content": []}'),
    "half": (Endpoint.MESSAGES, b'{"type": "message", "content": []'),
}


@pytest.mark.parametrize(("endpoint", "body"), BAD_PLAIN.values(), ids=BAD_PLAIN)
def test_plain_answers_that_are_not_whole(endpoint: Endpoint, body: bytes) -> None:
    with pytest.raises(Incomplete):
        plain_answer(endpoint, body)


@pytest.mark.parametrize("kind", ["response.failed", "response.incomplete", "error"])
def test_responses_that_end_badly(kind: str) -> None:
    good = {"type": "response.completed", "response": {"object": "response", "status": "completed", "output": []}}
    assert whole(Endpoint.RESPONSES, [messages_stream(good)]).form == "sse"
    with pytest.raises(Incomplete):
        whole(Endpoint.RESPONSES, [messages_stream({"type": kind, "response": {}}, good)])


def test_what_follows_the_end_is_not_kept() -> None:
    stream = stream_of(chunk({"content": "a"}, "stop"))
    assert whole(Endpoint.CHAT, [stream + b"data: more\n\n"]).body == stream


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from places(inner, (*path, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*path, index))


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], new)
    return copy


JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, -1.5, "", "x", [], [None], ["x"], [[]], [{}], {}, {"a": None}, {"index": 0}]
)


@given(any_answer, st.data())
def test_what_may_be_kept_can_be_given_in_both_forms(
    case: tuple[Endpoint, dict[str, Any]], data: st.DataObject
) -> None:
    """However strange an answer is, either it is refused, or it streams, and adds up to something that is whole."""
    endpoint, answer = case
    for _ in range(data.draw(st.integers(1, 2))):
        answer = put(answer, data.draw(st.sampled_from(sorted(places(answer), key=repr))), data.draw(JUNK))
    try:
        kept = plain_answer(endpoint, json.dumps(answer).encode())
    except Incomplete:
        return
    for usage in (False, True):
        stream = list(as_stream(endpoint, kept.body, "json", usage))
        assert whole(endpoint, stream).form == "sse"


@given(any_answer, st.data())
def test_no_stream_however_strange_breaks_the_collector(
    case: tuple[Endpoint, dict[str, Any]], data: st.DataObject
) -> None:
    endpoint, answer = case
    events = sse.events(b"".join(as_stream(endpoint, json.dumps(answer).encode(), "json", usage=True)))
    at = data.draw(st.integers(0, len(events) - 1))
    said = json.loads(events[at].data) if events[at].data != "[DONE]" else {}
    said = put(said, data.draw(st.sampled_from(sorted(places(said), key=repr))), data.draw(JUNK))
    events[at] = sse.Event(json.dumps(said), events[at].event)
    try:
        kept = whole(endpoint, [sse.serialise(event) for event in events])
    except Incomplete:
        return
    assert json.loads(as_plain(endpoint, kept.body, "sse"))
    assert list(as_stream(endpoint, kept.body, "sse", usage=False))
