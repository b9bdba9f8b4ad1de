"""Streams with tool calls and several choices: a faulty one is never stored, a complete one is replayed equal."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest

from tests.attacks.conftest import Connect
from tests.support.raw_client import chat
from tests.support.recording_upstream import RecordingUpstream, send

TEXTS = (f"stream {number}" for number in itertools.count())
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = "[DONE]"
USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}


def chunk(index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}


def call(index: int, tool: int, arguments: str, **first: Any) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": first.pop("name")} if "name" in first else {})}
    return chunk(index, {"tool_calls": [{"index": tool, **first, "function": function}]})


TOOL_CALLS = [
    chunk(0, {"role": "assistant", "content": None}),
    call(0, 0, "", id="call_1", type="function", name="weather"),
    call(0, 0, '{"city": "Par'),
    call(0, 1, "", id="call_2", type="function", name="time"),
    call(0, 0, 'is"}'),
    call(0, 1, '{"zone": "CET"}'),
    chunk(0, {}, "tool_calls"),
]
CHOICES = [
    *(chunk(k, {"role": "assistant", "content": ""}) for k in (2, 0, 1)),
    *(chunk(k, {"content": f"{word} of {k} "}) for word in ("one", "two") for k in (1, 2, 0)),
    *(chunk(k, {}, "stop") for k in (1, 0, 2)),
]
Events = list[Any]


def stream(events: Iterable[Any]) -> bytes:
    """Return the events as a response in chunks, without its end."""
    lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
    raw = [f"data: {line}\n\n".encode() for line in lines]
    return SSE_HEAD + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in raw)


END = b"0\r\n\r\n"
COMPLETE: dict[str, Events] = {
    "tool calls": [*TOOL_CALLS, USAGE, DONE],
    "choices in any order": [*CHOICES, USAGE, DONE],
    "no usage": [*CHOICES, DONE],
    "done twice": [*TOOL_CALLS, USAGE, DONE, DONE],
    "bytes after done": [*TOOL_CALLS, USAGE, DONE, "garbage", "{", json.dumps({"error": {"message": "late"}})],
}
ERROR = {"error": {"message": "overloaded", "type": "server_error"}}
FAULTS: dict[str, tuple[Events, bytes, str]] = {
    "cut inside the arguments": (TOOL_CALLS[:4], b"", "close"),
    "reset inside the arguments": (TOOL_CALLS[:4], b"", "reset"),
    "ended inside the arguments": (TOOL_CALLS[:4], END, "keep"),
    "done inside the arguments": ([*TOOL_CALLS[:4], DONE], END, "keep"),
    "cut before done": ([*TOOL_CALLS, USAGE], b"", "close"),
    "truncated done": ([*TOOL_CALLS, USAGE, "[DON"], END, "keep"),
    "an unfinished choice after the others": ([*CHOICES, chunk(3, {"content": "x"}), USAGE, DONE], END, "keep"),
    "an index that is an array": ([chunk(0, {}) | {"choices": [{"index": [], "delta": {}}]}, DONE], END, "keep"),
    "choices that are no list": ([*CHOICES, {"choices": {"0": 1}}, DONE], END, "keep"),
    "no choices at all": ([USAGE, DONE], END, "keep"),
    "tool calls that are no list": ([chunk(0, {"tool_calls": "weather"}), chunk(0, {}, "stop"), DONE], END, "keep"),
    "a tool call that is text": ([chunk(0, {"tool_calls": ["x"]}), chunk(0, {}, "stop"), DONE], END, "keep"),
    "an error at the end": ([*TOOL_CALLS, USAGE, ERROR, DONE], END, "keep"),
    "a length that does not come": (TOOL_CALLS, b"10\r\ndata: [DO", "close"),
    "a bad chunk": (TOOL_CALLS, b"zz\r\ndata: [DONE]\n\n\r\n" + END, "keep"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_stream_is_never_stored(connect: Connect, upstream: RecordingUpstream, fault: str) -> None:
    """The caller gets what came, and the next one a fresh answer, in both forms."""
    events, end, then = FAULTS[fault]
    text, faulty = next(TEXTS), send(stream(events) + end, then=then)  # type: ignore[arg-type]
    upstream.script(faulty, faulty)
    for _ in range(2):
        first = connect().send(chat(text, stream=True)).response_or_none()
        assert first is None or first.status == 502 or first.outcome == "miss"
    assert len(upstream.requests) == 2
    for outcome in ("miss", "hit"):
        fresh = connect().send(chat(text)).response()
        assert fresh.text == f"You said: {text}"
        assert fresh.outcome == outcome
    assert len(upstream.requests) == 3


def merged(body: bytes) -> dict[int, dict[str, Any]]:
    """Return the message of each choice of a stream, by a merge that is not the proxy's."""
    found: dict[int, dict[str, Any]] = {}
    for line in body.decode().split("\n\n"):
        data = line.removeprefix("data: ")
        if data == DONE:
            break
        for choice in json.loads(data)["choices"]:
            own = found.setdefault(choice["index"], {"content": "", "calls": {}, "finish": None})
            own["content"] += choice["delta"].get("content") or ""
            own["finish"] = choice["finish_reason"] or own["finish"]
            for each in choice["delta"].get("tool_calls", ()):
                tool = own["calls"].setdefault(each["index"], {"name": "", "arguments": ""})
                tool["name"] += each["function"].get("name", "")
                tool["arguments"] += each["function"].get("arguments", "")
    return found


@pytest.mark.parametrize("name", COMPLETE)
@pytest.mark.parametrize("one_write", [True, False], ids=["one write", "an event each"])
def test_a_complete_stream_is_stored_and_replayed_equal(
    connect: Connect, upstream: RecordingUpstream, name: str, one_write: bool
) -> None:
    text, raw = next(TEXTS), stream(COMPLETE[name])
    pieces = [raw + END] if one_write else [*(part + b"\n\n\r\n" for part in raw.split(b"\n\n\r\n")[:-1]), END]
    upstream.script(send(*pieces, pause=0.0 if one_write else 0.002))
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if "usage" not in name else {}
    first = connect().send(chat(text, stream=True, **options)).response()
    again = connect().send(chat(text, stream=True, **options)).response()
    assert (first.outcome, again.outcome) == ("miss", "hit")
    sent = b"".join(f"data: {e if isinstance(e, str) else json.dumps(e)}\n\n".encode() for e in COMPLETE[name])
    answer = sent[: sent.index(b"[DONE]\n\n") + 8]
    assert again.body == answer
    assert first.body.startswith(answer)
    assert merged(first.body) == merged(again.body) == merged(sent)
    if "usage" not in name:
        plain = connect().send(chat(text)).response()
        assert plain.outcome == "hit"
        for choice in plain.json()["choices"]:
            expected = merged(sent)[choice["index"]]
            assert (choice["message"]["content"] or "") == expected["content"]
            calls = [each["function"] for each in choice["message"].get("tool_calls", ())]
            assert calls == [expected["calls"][k] for k in sorted(expected["calls"])]
    assert len(upstream.requests) == 1
