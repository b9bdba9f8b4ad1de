"""Plain and streamed forms convert into each other, and only complete answers are stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache import Endpoint
from knapcache.errors import Incomplete
from knapcache.wire import FORMATS, CompleteAnswer, SseEvent, StreamCollector, completions, endpoint_of, responses, sse
from knapcache.wire.base import BLOCK_OVERHEAD, Form
from knapcache.wire.deltas import TextParts, join_texts, merge_delta
from knapcache.wire.messages import merge_message_delta, split, split_block
from tests.support import answers

STRATEGIES = {
    Endpoint.CHAT: answers.chats(),
    Endpoint.COMPLETIONS: answers.completions(),
    Endpoint.RESPONSES: answers.responses(),
    Endpoint.MESSAGES: answers.messages(),
}
any_answer = st.one_of([st.tuples(st.just(at), strategy) for at, strategy in STRATEGIES.items()])


def plain_answer(endpoint: Endpoint, body: bytes) -> CompleteAnswer:
    return FORMATS[endpoint].parse(body, {})


def as_plain(endpoint: Endpoint, body: bytes, form: Form) -> bytes:
    return FORMATS[endpoint].to_plain(body, form)


def as_stream(endpoint: Endpoint, body: bytes, form: Form, usage: bool = False) -> Iterator[bytes]:
    return FORMATS[endpoint].to_stream(body, form, usage)


def collect(endpoint: Endpoint, pieces: list[bytes]) -> CompleteAnswer:
    collector = StreamCollector(FORMATS[endpoint])
    for piece in pieces:
        collector.feed(piece)
    collector.close()
    return collector.complete()


@given(any_answer)
def test_a_split_answer_assembles_to_itself(case: tuple[Endpoint, dict[str, Any]]) -> None:
    endpoint, answer = case
    kept = plain_answer(endpoint, json.dumps(answer).encode())
    stream = list(as_stream(endpoint, kept.body, kept.form, usage=True))
    found = collect(endpoint, stream)
    assert json.loads(as_plain(endpoint, found.body, found.form)) == answer
    assert (found.model, found.usage) == (kept.model, kept.usage) == (answer["model"], answer["usage"])


@given(any_answer, st.data())
def test_a_stored_stream_is_replayed_block_by_block(case: tuple[Endpoint, dict[str, Any]], data: st.DataObject) -> None:
    endpoint, answer = case
    stream = list(as_stream(endpoint, json.dumps(answer).encode(), "json", usage=True))
    joined = b": hello\n\n" + b"".join(stream)
    at = data.draw(st.integers(0, len(joined)))
    kept = collect(endpoint, [joined[:at], joined[at:]])
    assert list(as_stream(endpoint, kept.body, kept.form, usage=True)) == stream


@given(any_answer, st.data())
def test_a_truncated_stream_is_not_stored(case: tuple[Endpoint, dict[str, Any]], data: st.DataObject) -> None:
    endpoint, answer = case
    stream = b"".join(as_stream(endpoint, json.dumps(answer).encode(), "json", usage=True)).rstrip()
    at = data.draw(st.integers(0, len(stream) - 1))
    with pytest.raises(Incomplete):
        collect(endpoint, [stream[:at]])


@given(answers.chats() | answers.completions())
def test_a_stream_has_usage_only_if_it_is_asked_for(answer: dict[str, Any]) -> None:
    endpoint = Endpoint.CHAT if answer["object"] == "chat.completion" else Endpoint.COMPLETIONS
    body = json.dumps(answer).encode()
    asked, unasked = (list(as_stream(endpoint, body, "json", usage=usage)) for usage in (True, False))
    assert b'"usage"' not in b"".join(block for block in unasked if b'"choices":[]' in block)
    kept = collect(endpoint, asked)
    assert list(as_stream(endpoint, kept.body, "sse", usage=False)) == unasked
    *chunks, last, done = [event.data for event in sse.events(b"".join(asked))]
    assert done == "[DONE]"
    assert json.loads(last)["usage"] == answer["usage"]
    assert json.loads(last)["choices"] == []
    assert all(json.loads(chunk)["usage"] is None for chunk in chunks)


def test_deltas_are_ordered_and_tokens_keep_their_log_probabilities() -> None:
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


def stream_of(*chunks: Any, done: bool = True) -> bytes:
    texts = [thing if isinstance(thing, str) else json.dumps(thing) for thing in chunks]
    return b"".join(f"data: {text}\n\n".encode() for text in [*texts, *(["[DONE]"] if done else [])])


def test_a_stream_as_real_servers_send_it_is_assembled() -> None:
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
    "no delta": stream_of({"choices": [{"finish_reason": "stop"}]}),
    "an index that is no number": stream_of({"choices": [{"index": "a", "delta": {}, "finish_reason": "stop"}]}),
}


@pytest.mark.parametrize("stream", BAD_CHAT.values(), ids=BAD_CHAT)
def test_incomplete_chat_streams_are_refused(stream: bytes) -> None:
    with pytest.raises(Incomplete):
        collect(Endpoint.CHAT, [stream])


def messages_stream(*events: dict[str, Any]) -> bytes:
    return b"".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events)


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
    "a text that is a number": (START, OPEN, {**HI, "delta": {"type": "text_delta", "text": 5}}, END, STOP),
    "a tool input without text": (START, TOOL, {**HALF, "delta": {"type": "input_json_delta"}}, END, STOP),
    "a block without its index": (START, {key: OPEN[key] for key in ("type", "content_block")}, END, STOP),
    "a block without its content": (START, {key: OPEN[key] for key in ("type", "index")}, END, STOP),
    "an end without its reason": (START, OPEN, HI, {"type": "message_delta"}, STOP),
    "an event of an unknown kind": (START, {"type": "surprise"}, OPEN, HI, END, STOP),
}


@pytest.mark.parametrize("events", BAD_MESSAGES.values(), ids=BAD_MESSAGES)
def test_incomplete_message_streams_are_refused(events: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(Incomplete):
        collect(Endpoint.MESSAGES, [messages_stream(*events)])


def test_a_message_stream_with_pings_is_complete() -> None:
    kept = collect(Endpoint.MESSAGES, [messages_stream(START, OPEN, {"type": "ping"}, HI, END, STOP)])
    assert kept.usage == {"input_tokens": 3, "output_tokens": 1}
    assert json.loads(as_plain(Endpoint.MESSAGES, kept.body, "sse"))["content"] == [{"type": "text", "text": "hi"}]


def chat_of(*choices: dict[str, Any]) -> bytes:
    return json.dumps({"choices": [{"message": {}, "finish_reason": "stop", **choice} for choice in choices]}).encode()


def response_of(item: Any) -> bytes:
    return json.dumps({"object": "response", "status": "completed", "output": [item]}).encode()


BAD_PLAIN = {
    "HTML": (Endpoint.CHAT, b"<html>busy</html>"),
    "an error": (Endpoint.CHAT, b'{"error": {"message": "no"}}'),
    "a list": (Endpoint.CHAT, b"[]"),
    "no choices": (Endpoint.CHAT, b'{"choices": []}'),
    "no finish reason": (Endpoint.CHAT, b'{"choices": [{"message": {"content": "a"}, "finish_reason": null}]}'),
    "no message": (Endpoint.CHAT, b'{"choices": [{"finish_reason": "stop"}]}'),
    "a finish reason that is a number": (Endpoint.CHAT, b'{"choices": [{"message": {}, "finish_reason": 1}]}'),
    "an index that is no number": (Endpoint.CHAT, chat_of({"index": "0"})),
    "two choices with one index": (Endpoint.CHAT, chat_of({"index": 0}, {})),
    "tool calls that are no list": (Endpoint.CHAT, chat_of({"message": {"tool_calls": {}}})),
    "a tool call that is no object": (Endpoint.CHAT, chat_of({"message": {"tool_calls": [{}, 1]}})),
    "no text": (Endpoint.COMPLETIONS, b'{"choices": [{"finish_reason": "stop"}]}'),
    "still queued": (Endpoint.RESPONSES, b'{"object": "response", "status": "queued", "output": []}'),
    "cut off": (Endpoint.RESPONSES, b'{"object": "response", "status": "incomplete", "output": []}'),
    "not a response": (Endpoint.RESPONSES, b'{"status": "completed"}'),
    "an item that is no object": (Endpoint.RESPONSES, response_of(1)),
    "an item without a type": (Endpoint.RESPONSES, response_of({"content": []})),
    "a part that is no object": (Endpoint.RESPONSES, response_of({"type": "message", "content": [{}, 1]})),
    "a part that is a number": (Endpoint.RESPONSES, response_of({"type": "message", "content": [{"text": 1}]})),
    "a note that is no list": (Endpoint.RESPONSES, response_of({"type": "r", "summary": [{"annotations": 1}]})),
    "another type": (Endpoint.MESSAGES, b'{"type": "error", "content": [], "stop_reason": "end_turn"}'),
    "a block that is no object": (Endpoint.MESSAGES, b'{"type": "message", "content": [1], "stop_reason": "x"}'),
    "a stop reason that is a number": (Endpoint.MESSAGES, b'{"type": "message", "content": [], "stop_reason": 1}'),
    "usage that is a list": (
        Endpoint.MESSAGES,
        b'{"type": "message", "content": [], "stop_reason": "x", "usage": []}',
    ),
    "no stop reason": (Endpoint.MESSAGES, b'{"type": "message", "content": []}'),
    "half": (Endpoint.MESSAGES, b'{"type": "message", "content": []'),
}


@pytest.mark.parametrize(("endpoint", "body"), BAD_PLAIN.values(), ids=BAD_PLAIN)
def test_incomplete_plain_answers_are_refused(endpoint: Endpoint, body: bytes) -> None:
    with pytest.raises(Incomplete):
        plain_answer(endpoint, body)


def test_the_helpers_of_these_tests_give_complete_answers() -> None:
    plain_answer(Endpoint.CHAT, chat_of({}, {"index": 1, "message": {"tool_calls": [{}]}}))
    plain_answer(Endpoint.RESPONSES, response_of({"type": "r", "content": [{"text": "a", "annotations": None}]}))


@pytest.mark.parametrize("kind", ["response.failed", "response.incomplete", "error"])
def test_failed_response_streams_are_refused(kind: str) -> None:
    good = {"type": "response.completed", "response": {"object": "response", "status": "completed", "output": []}}
    assert collect(Endpoint.RESPONSES, [messages_stream(good)]).form == "sse"
    with pytest.raises(Incomplete):
        collect(Endpoint.RESPONSES, [messages_stream({"type": kind, "response": {}}, good)])


def test_blocks_after_the_end_are_not_stored() -> None:
    stream = stream_of(chunk({"content": "a"}, "stop"))
    assert collect(Endpoint.CHAT, [stream + b"data: more\n\n"]).body == stream


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
def test_a_stored_answer_can_be_served_in_both_forms(
    case: tuple[Endpoint, dict[str, Any]], data: st.DataObject
) -> None:
    """However malformed an answer is, it is refused, or it can be streamed and assembled to a complete answer."""
    endpoint, answer = case
    for _ in range(data.draw(st.integers(1, 2))):
        answer = put(answer, data.draw(st.sampled_from(sorted(places(answer), key=repr))), data.draw(JUNK))
    try:
        kept = plain_answer(endpoint, json.dumps(answer).encode())
    except Incomplete:
        return
    for usage in (False, True):
        stream = list(as_stream(endpoint, kept.body, "json", usage))
        assert collect(endpoint, stream).form == "sse"


@given(any_answer, st.data())
def test_no_malformed_stream_breaks_the_collector(case: tuple[Endpoint, dict[str, Any]], data: st.DataObject) -> None:
    endpoint, answer = case
    events = sse.events(b"".join(as_stream(endpoint, json.dumps(answer).encode(), "json", usage=True)))
    at = data.draw(st.integers(0, len(events) - 1))
    fields = json.loads(events[at].data) if events[at].data != "[DONE]" else {}
    fields = put(fields, data.draw(st.sampled_from(sorted(places(fields), key=repr))), data.draw(JUNK))
    events[at] = SseEvent(json.dumps(fields), events[at].event)
    try:
        kept = collect(endpoint, [sse.serialise(event) for event in events])
    except Incomplete:
        return
    assert json.loads(as_plain(endpoint, kept.body, "sse"))
    assert list(as_stream(endpoint, kept.body, "sse", usage=False))


def test_every_endpoint_has_a_format() -> None:
    assert set(FORMATS) == set(Endpoint)
    for endpoint, each in FORMATS.items():
        assert each.endpoint is endpoint
        assert endpoint_of(f"/v1/{endpoint.value}") is endpoint


@pytest.mark.parametrize("endpoint", STRATEGIES)
def test_a_stream_that_ends_with_our_error_event_is_incomplete(endpoint: Endpoint) -> None:
    error = FORMATS[endpoint].error_event("the connection was lost")
    (event,) = sse.events(error)
    assert event.event == ("" if FORMATS[endpoint].usage_on_request else "error")
    assert json.loads(event.data)["error"]["message"] == "the connection was lost"
    with pytest.raises(Incomplete):
        collect(endpoint, [error])


def test_null_counts_of_a_message_delta_do_not_replace_known_ones() -> None:
    message = {"type": "message", "content": [], "usage": {"input_tokens": 3, "cache_read_input_tokens": 7}}
    merge_message_delta(
        message,
        {
            "delta": {"stop_reason": "end_turn"},
            "usage": {
                "input_tokens": None,
                "cache_read_input_tokens": None,
                "output_tokens": 5,
                "server_tool_use": None,
            },
        },
    )
    assert message["usage"] == {"input_tokens": 3, "cache_read_input_tokens": 7, "output_tokens": 5}
    assert message["stop_reason"] == "end_turn"


@pytest.mark.parametrize("arguments", [{}, {"a": 1}])
def test_the_input_of_a_tool_is_sent_in_deltas_unless_it_is_empty(arguments: dict[str, int]) -> None:
    block = {"type": "tool_use", "id": "t", "name": "f", "input": arguments}
    answer = {"type": "message", "content": [block], "stop_reason": "tool_use", "usage": {"output_tokens": 2}}
    body = json.dumps(answer).encode()
    stream = b"".join(as_stream(Endpoint.MESSAGES, body, "json"))
    assert (b"input_json_delta" in stream) is bool(arguments)
    assert json.loads(as_plain(Endpoint.MESSAGES, stream, "sse")) == answer | {"stop_sequence": None}


def test_texts_of_deltas_are_joined_once() -> None:
    whole: dict[str, Any] = {}
    for _ in range(1000):
        merge_delta(whole, {"content": "ab", "role": "assistant", "tool_calls": [{"index": 0, "name": "f", "x": "y"}]})
    assert isinstance(whole["content"], TextParts)
    call = {"index": 0, "name": "f", "x": "y" * 1000}
    assert join_texts(whole) == {"content": "ab" * 1000, "role": "assistant", "tool_calls": [call]}


def test_the_items_of_a_response_are_sent_in_deltas() -> None:
    note = {"type": "url_citation", "url": "u"}
    text = {"type": "output_text", "text": "Hi", "annotations": [note]}
    refusal = {"type": "refusal", "refusal": "No"}
    message = {"type": "message", "id": "m", "status": "completed", "content": [text, refusal]}
    summary, thought = {"type": "summary_text", "text": "S"}, {"type": "reasoning_text", "text": "T"}
    reasoning = {"type": "reasoning", "id": "r", "summary": [summary], "content": [thought]}
    call = {"type": "function_call", "id": "f", "name": "add", "arguments": "{}"}
    search = {"type": "web_search_call", "id": "w", "status": "completed"}
    answer = {
        "object": "response",
        "status": "completed",
        "completed_at": 5,
        "output": [message, reasoning, call, search],
        "usage": {"input_tokens": 1},
    }
    stream = b"".join(as_stream(Endpoint.RESPONSES, json.dumps(answer).encode(), "json"))
    events = [json.loads(event.data) for event in sse.events(stream)]
    assert [event.pop("sequence_number") for event in events] == list(range(len(events)))
    created: dict[str, Any] = {"object": "response", "status": "in_progress", "output": [], "usage": None}
    in_message, in_reasoning, in_call = ({"item_id": id_, "output_index": k} for k, id_ in enumerate("mrf"))
    first, second = in_message | {"content_index": 0}, in_message | {"content_index": 1}
    summarized, thinking = in_reasoning | {"summary_index": 0}, in_reasoning | {"content_index": 0}
    expected: list[tuple[str, dict[str, Any]]] = [
        ("created", {"response": created}),
        ("in_progress", {"response": created}),
        ("output_item.added", {"output_index": 0, "item": message | {"status": "in_progress", "content": []}}),
        ("content_part.added", first | {"part": text | {"text": "", "annotations": []}}),
        ("output_text.delta", first | {"delta": "Hi", "logprobs": []}),
        ("output_text.annotation.added", first | {"annotation_index": 0, "annotation": note}),
        ("output_text.done", first | {"text": "Hi", "logprobs": []}),
        ("content_part.done", first | {"part": text}),
        ("content_part.added", second | {"part": refusal | {"refusal": ""}}),
        ("refusal.delta", second | {"delta": "No"}),
        ("refusal.done", second | {"refusal": "No"}),
        ("content_part.done", second | {"part": refusal}),
        ("output_item.done", {"output_index": 0, "item": message}),
        ("output_item.added", {"output_index": 1, "item": reasoning | {"summary": [], "content": []}}),
        ("reasoning_summary_part.added", summarized | {"part": summary | {"text": ""}}),
        ("reasoning_summary_text.delta", summarized | {"delta": "S"}),
        ("reasoning_summary_text.done", summarized | {"text": "S"}),
        ("reasoning_summary_part.done", summarized | {"part": summary}),
        ("reasoning_text.delta", thinking | {"delta": "T"}),
        ("reasoning_text.done", thinking | {"text": "T"}),
        ("output_item.done", {"output_index": 1, "item": reasoning}),
        ("output_item.added", {"output_index": 2, "item": call | {"arguments": ""}}),
        ("function_call_arguments.delta", in_call | {"delta": "{}"}),
        ("function_call_arguments.done", in_call | {"arguments": "{}", "name": "add"}),
        ("output_item.done", {"output_index": 2, "item": call}),
        ("output_item.added", {"output_index": 3, "item": search | {"status": "in_progress"}}),
        ("output_item.done", {"output_index": 3, "item": search}),
        ("completed", {"response": answer}),
    ]
    assert events == [{"type": f"response.{name}"} | fields for name, fields in expected]


@pytest.mark.parametrize("kind", ["message", "reasoning"])
@pytest.mark.parametrize("part", [{"type": "output_text"}, {"type": "refusal"}])
def test_a_part_of_a_response_without_its_text_is_empty(kind: str, part: dict[str, str]) -> None:
    item = {"type": kind, "content": [part], "summary": [part]}
    answer = {"object": "response", "status": "completed", "output": [item]}
    stream = b"".join(as_stream(Endpoint.RESPONSES, json.dumps(answer).encode(), "json"))
    assert b'.delta"' not in stream
    assert json.loads(as_plain(Endpoint.RESPONSES, stream, "sse")) == answer


@pytest.mark.parametrize("tokens", [["He", "llo"], ["He", "lo"], ["Hello", None], []])
def test_tokens_that_do_not_add_up_to_the_text_are_not_sent_with_it(tokens: list[str | None]) -> None:
    logprobs = [{"token": token} for token in tokens]
    added_up = tokens == ["He", "llo"]
    message = {"message": {"content": "Hello"}, "logprobs": {"content": logprobs}}
    chat = b"".join(as_stream(Endpoint.CHAT, chat_of(message), "json"))
    steps = [json.loads(event.data)["choices"][0] for event in sse.events(chat) if event.data != "[DONE]"]
    texts = [(step["delta"]["content"], step.get("logprobs")) for step in steps if step["delta"].get("content")]
    parts = [(token, [{"token": token}]) for token in tokens]
    assert texts == ([(text, {"content": own}) for text, own in parts] if added_up else [("Hello", None)])
    assert steps[0]["logprobs"] == (None if added_up else {"content": logprobs})

    part = {"type": "output_text", "text": "Hello", "logprobs": logprobs}
    body = response_of({"type": "message", "content": [part]})
    events = [json.loads(event.data) for event in sse.events(b"".join(as_stream(Endpoint.RESPONSES, body, "json")))]
    deltas = [(event["delta"], event["logprobs"]) for event in events if event["type"].endswith(".delta")]
    assert deltas == (parts if added_up else [("Hello", [])])


def test_a_stream_that_ends_without_its_response_is_incomplete() -> None:
    with pytest.raises(Incomplete, match=r"response\.completed without a response"):
        collect(Endpoint.RESPONSES, [messages_stream({"type": "response.completed"})])


def test_an_answer_that_is_too_long_is_forwarded_and_not_kept() -> None:
    stream = list(as_stream(Endpoint.CHAT, chat_of({"message": {"content": "Hello"}}), "json"))
    size = sum(len(block) + BLOCK_OVERHEAD for block in stream)
    for limit in (size, size - 1):
        collector = StreamCollector(FORMATS[Endpoint.CHAT], limit)
        forwarded = [block.raw for piece in stream for block in collector.feed(piece)]
        assert b"".join([*forwarded, *(block.raw for block in collector.close())]) == b"".join(stream)
        assert collector.overflowed is (limit < size)
    assert not collector._kept
    with pytest.raises(Incomplete, match="too long"):
        collector.complete()


def test_a_block_that_cannot_be_read_is_forwarded_with_its_usage() -> None:
    (block,) = sse.blocks(b'data: {"usage": \n\n')
    assert FORMATS[Endpoint.CHAT].forward(block, usage=False) == block.raw


def test_a_stream_of_a_response_ends_with_done() -> None:
    with pytest.raises(Incomplete, match=r"ended before response\.completed"):
        responses.assemble([SseEvent(data="[DONE]")])


def test_a_text_is_sent_in_deltas_with_its_citations() -> None:
    said, cited = {"type": "text_delta", "text": "T"}, {"type": "citations_delta", "citation": {"url": "u"}}
    block = {"type": "text", "text": "T"}
    assert split_block(block) == (block | {"text": ""}, [said])
    assert split_block(block | {"citations": None}) == (block | {"text": "", "citations": None}, [said])
    whole = block | {"citations": [{"url": "u"}]}
    assert split_block(whole) == (block | {"text": "", "citations": []}, [said, cited])
    assert split_block({"type": "other", "text": "T"}) == ({"type": "other", "text": "T"}, [])


def test_thinking_is_sent_in_deltas() -> None:
    block = {"type": "thinking", "thinking": "T", "signature": "S"}
    thought, signed = {"type": "thinking_delta", "thinking": "T"}, {"type": "signature_delta", "signature": "S"}
    assert split_block(block) == (block | {"thinking": "", "signature": ""}, [thought, signed])
    assert split_block({"type": "thinking", "thinking": "T"}) == ({"type": "thinking", "thinking": ""}, [thought])
    assert split_block(block | {"type": "other"}) == (block | {"type": "other"}, [])


def test_tokens_of_a_completion_keep_their_log_probabilities() -> None:
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [-1, -2], "top_logprobs": None, "other": [7]}
    choice = {"index": 0, "text": "ab", "logprobs": logprobs, "finish_reason": "stop"}
    first = {"tokens": ["a"], "token_logprobs": [-1], "top_logprobs": None, "other": [7]}
    second = {"tokens": ["b"], "token_logprobs": [-2], "top_logprobs": None, "other": None}
    assert list(completions.deltas(choice)) == [
        {"text": "a", "logprobs": first, "finish_reason": None},
        {"text": "b", "logprobs": second, "finish_reason": None},
        {"text": "", "finish_reason": "stop"},
    ]


def test_the_start_of_a_message_invents_no_counts() -> None:
    for usage, expected in (({"input_tokens": 3}, {"input_tokens": 3}), ({"output_tokens": 7}, {"output_tokens": 0})):
        first = next(split({"content": [], "usage": usage}, True))
        assert json.loads(first.data)["message"]["usage"] == expected


def test_usage_leaves_the_first_block_of_a_stream_with_a_byte_order_mark() -> None:
    first = {"choices": [{"index": 0, "delta": {"content": "a"}}], "usage": None}
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    blocks = [b"data: " + json.dumps(each).encode() + b"\n\n" for each in (first, last)]
    body = "\ufeff".encode() + b"".join(blocks) + b"data: [DONE]\n\n"
    assert b"usage" not in b"".join(as_stream(Endpoint.CHAT, body, "sse"))
    assert b"usage" in b"".join(as_stream(Endpoint.CHAT, body, "sse", usage=True))


def test_an_answer_that_reports_an_error_is_incomplete() -> None:
    message = {"role": "assistant", "content": "a"}
    answer = {"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    assert plain_answer(Endpoint.CHAT, json.dumps(answer).encode()).model == "m"
    with pytest.raises(Incomplete, match="an error"):
        plain_answer(Endpoint.CHAT, json.dumps({**answer, "error": {"message": "overloaded"}}).encode())
