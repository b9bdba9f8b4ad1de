"""Anthropic's messages, plain and streamed.

    stream = message_start, block*, message_delta, message_stop
    block  = content_block_start, content_block_delta*, content_block_stop

with `ping` anywhere and `error` in place of the rest. The start has the message without content; blocks grow by deltas
of known kinds; message_delta has the stop reason and the usage so far, which replaces what the start said. Whole is a
message with a stop reason; of a stream also message_stop must have been seen. A delta of a kind that is not known here
could be anything: such a stream is passed on and not kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from knapcache.errors import Incomplete
from knapcache.wire.json_util import compact, cut, event_of, read_object
from knapcache.wire.sse import Event

GROWING = {"text_delta": "text", "thinking_delta": "thinking", "compaction_delta": "content"}
"""Deltas that append text to a field of their block."""
TOOLS = ("tool_use", "server_tool_use", "mcp_tool_use")


def check(answer: Mapping[str, Any]) -> None:
    """Incomplete, unless a plain answer is whole."""
    if answer.get("type") != "message" or not isinstance(answer.get("content"), list):
        raise Incomplete("not a message")
    if not all(isinstance(block, dict) for block in answer["content"]):
        raise Incomplete("a content block that is no object")
    if not answer.get("stop_reason") or not isinstance(answer["stop_reason"], str):
        raise Incomplete("a message without a stop reason")
    if not isinstance(answer.get("usage", {}), dict):
        raise Incomplete("a message whose usage is no object")


def assemble(events: Iterable[Event]) -> dict[str, Any]:
    """The plain answer that a stream spells, or Incomplete."""
    message: dict[str, Any] | None = None
    blocks: dict[int, Growing] = {}
    for event in events:
        said = read_object(event.data)
        kind = said.get("type")
        if kind == "message_start":
            message = dict(an_object(said, "message"))
        elif kind == "ping":
            continue
        elif message is None:
            raise Incomplete(f"{kind} before message_start")
        elif kind == "content_block_start":
            blocks[position(said)] = Growing(an_object(said, "content_block"))
        elif kind == "content_block_delta":
            if position(said) not in blocks:
                raise Incomplete("a delta of a block that was not started")
            blocks[position(said)].add(an_object(said, "delta"))
        elif kind == "message_delta":
            close(message, said)
        elif kind == "message_stop":
            content = [blocks[index].block() for index in sorted(blocks)]
            answer = {**message, "content": content}
            check(answer)
            return answer
        elif kind != "content_block_stop":
            raise Incomplete(f"an event of unknown type {kind!r}")
    raise Incomplete("the stream ended before message_stop")


class Growing:
    """A content block while it grows. Text is kept in parts: adding up strings takes time n²."""

    def __init__(self, start: Mapping[str, Any]) -> None:
        self._start = dict(start)
        self._parts: dict[str, list[str]] = {}
        self._json: list[str] = []

    def add(self, delta: Mapping[str, Any]) -> None:
        """One delta more, or Incomplete."""
        kind = str(delta.get("type"))
        if kind in GROWING:
            name = GROWING[kind]
            if delta.get(name) is not None:
                self._parts.setdefault(name, [str(self._start.get(name) or "")]).append(a_text(delta, name))
        elif kind == "input_json_delta":
            self._json.append(a_text(delta, "partial_json"))
        elif kind == "signature_delta":
            self._start["signature"] = a_text(delta, "signature")
        elif kind == "citations_delta":
            before = self._start.get("citations")
            self._start["citations"] = [*(before if isinstance(before, list) else []), delta.get("citation")]
        else:
            raise Incomplete(f"a delta of unknown type {kind!r}")

    def block(self) -> dict[str, Any]:
        """The block as a plain answer has it, or Incomplete."""
        found = self._start | {name: "".join(parts) for name, parts in self._parts.items()}
        if spelled := "".join(self._json):
            try:
                found["input"] = orjson.loads(spelled)
            except ValueError as error:
                raise Incomplete(f"the input of a tool is not JSON: {error}") from None
        return found


def close(message: dict[str, Any], said: Mapping[str, Any]) -> None:
    """What message_delta says about the message; counts are totals so far."""
    message |= an_object(said, "delta")
    before, now = (part.get("usage") for part in (message, said))
    usage = {name: count for name, count in now.items() if count is not None} if isinstance(now, dict) else {}
    message["usage"] = {**(before if isinstance(before, dict) else {}), **usage}
    message |= {name: value for name, value in said.items() if name not in ("type", "delta", "usage")}


def an_object(said: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A field that is an object, or Incomplete."""
    found = said.get(name)
    if not isinstance(found, dict):
        raise Incomplete(f"an event without {name}")
    return found


def a_text(said: Mapping[str, Any], name: str) -> str:
    """A field that is a text, or Incomplete."""
    found = said.get(name)
    if not isinstance(found, str):
        raise Incomplete(f"a delta without {name}")
    return found


def position(said: Mapping[str, Any]) -> int:
    """Which block an event speaks of, or Incomplete."""
    index = said.get("index")
    if not isinstance(index, int):
        raise Incomplete("an event without index")
    return index


def split(answer: Mapping[str, Any]) -> Iterator[Event]:
    """The stream of a plain answer."""
    usage = answer.get("usage")
    start = {**answer, "content": [], "stop_reason": None, "stop_sequence": None}
    if isinstance(usage, dict) and "output_tokens" in usage:
        start["usage"] = {**usage, "output_tokens": 0}
    yield named({"type": "message_start", "message": start})
    for index, block in enumerate(answer["content"]):
        begun, deltas = taken_apart(block)
        yield named({"type": "content_block_start", "index": index, "content_block": begun})
        for delta in deltas:
            yield named({"type": "content_block_delta", "index": index, "delta": delta})
        yield named({"type": "content_block_stop", "index": index})
    end = {"stop_reason": answer.get("stop_reason"), "stop_sequence": answer.get("stop_sequence")}
    yield named({"type": "message_delta", "delta": end, "usage": usage or {}})
    yield named({"type": "message_stop"})


def named(said: dict[str, Any]) -> Event:
    """An event that goes by its type."""
    return event_of(said, said["type"])


def taken_apart(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it starts, and the deltas that complete it. Blocks of other kinds come whole, as in a real stream."""
    kind = block.get("type")
    if kind == "text" and isinstance(block.get("text"), str):
        deltas: list[dict[str, Any]] = [{"type": "text_delta", "text": piece} for piece in cut(block["text"])]
        cited = block.get("citations")
        cited = cited if isinstance(cited, list) else []
        deltas += [{"type": "citations_delta", "citation": citation} for citation in cited]
        return {**block, "text": "", **({"citations": []} if cited else {})}, deltas
    if kind == "thinking" and isinstance(block.get("thinking"), str):
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in cut(block["thinking"])]
        if isinstance(block.get("signature"), str):
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
            return {**block, "thinking": "", "signature": ""}, deltas
        return {**block, "thinking": ""}, deltas
    if kind in TOOLS and isinstance(block.get("input"), dict) and block["input"]:
        spelled = compact(block["input"]).decode()
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in cut(spelled)]
    return dict(block), []
