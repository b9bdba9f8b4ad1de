"""Anthropic's messages, plain and streamed.

    stream = message_start, block*, message_delta, message_stop
    block  = content_block_start, content_block_delta*, content_block_stop

`ping` may come anywhere, and `error` instead of the rest. message_start has the message without content. Blocks grow
by deltas of known types. message_delta has the stop reason and the usage so far, which replaces that of message_start.
A message is complete if it has a stop reason; a stream must also have message_stop. A stream with a delta of unknown
type is forwarded and not stored, because its meaning is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from knapcache.errors import Incomplete
from knapcache.model import Endpoint
from knapcache.wire.base import Format, Streaming, has_type, json_event, read_object, to_json
from knapcache.wire.deltas import split_text
from knapcache.wire.sse import SseEvent

TEXT_DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "compaction_delta": "content"}
"""Deltas that append text, and the field of the block that they append to."""
TOOL_BLOCKS = ("tool_use", "server_tool_use", "mcp_tool_use")


def check(answer: Mapping[str, Any]) -> None:
    """Raise Incomplete unless a plain answer has content and a stop reason."""
    if answer.get("type") != "message" or not isinstance(answer.get("content"), list):
        raise Incomplete("not a message")
    if not all(isinstance(block, dict) for block in answer["content"]):
        raise Incomplete("a content block is not an object")
    if not answer.get("stop_reason") or not isinstance(answer["stop_reason"], str):
        raise Incomplete("a message without a stop reason")
    if not isinstance(answer.get("usage", {}), dict):
        raise Incomplete("the usage of a message is not an object")


def ends(event: SseEvent) -> bool:
    """Return whether an event is message_stop or error."""
    return has_type(event, ("message_stop", "error"))


def assemble(events: Iterable[SseEvent]) -> dict[str, Any]:
    """Merge the events of a stream into the plain answer, or raise Incomplete."""
    message: dict[str, Any] | None = None
    blocks: dict[int, BlockBuilder] = {}
    for event in events:
        fields = read_object(event.data)
        kind = fields.get("type")
        if kind == "message_start":
            message = dict(object_field(fields, "message"))
        elif kind == "ping":
            continue
        elif message is None:
            raise Incomplete("an event before message_start")
        elif kind == "content_block_start":
            blocks[index_of(fields)] = BlockBuilder(object_field(fields, "content_block"))
        elif kind == "content_block_delta":
            if index_of(fields) not in blocks:
                raise Incomplete("a delta for a block that was not started")
            blocks[index_of(fields)].add(object_field(fields, "delta"))
        elif kind == "message_delta":
            merge_message_delta(message, fields)
        elif kind == "message_stop":
            content = [blocks[index].build() for index in sorted(blocks)]
            answer = {**message, "content": content}
            check(answer)
            return answer
        elif kind != "content_block_stop":
            raise Incomplete("an event of unknown type")
    raise Incomplete("the stream ended before message_stop")


class BlockBuilder:
    """A content block under construction. Texts are joined once, at the end: repeated `+=` takes quadratic time."""

    def __init__(self, start: Mapping[str, Any]) -> None:
        self._start = dict(start)
        self._texts: dict[str, list[str]] = {}
        self._json: list[str] = []

    def add(self, delta: Mapping[str, Any]) -> None:
        """Add a delta, or raise Incomplete."""
        kind = str(delta.get("type"))
        if kind in TEXT_DELTAS:
            name = TEXT_DELTAS[kind]
            if delta.get(name) is not None:
                self._texts.setdefault(name, [str(self._start.get(name) or "")]).append(text_field(delta, name))
        elif kind == "input_json_delta":
            self._json.append(text_field(delta, "partial_json"))
        elif kind == "signature_delta":
            self._start["signature"] = text_field(delta, "signature")
        elif kind == "citations_delta":
            before = self._start.get("citations")
            self._start["citations"] = [*(before if isinstance(before, list) else []), delta.get("citation")]
        else:
            raise Incomplete("a delta of unknown type")

    def build(self) -> dict[str, Any]:
        """Return the block of the plain answer, or raise Incomplete."""
        block = self._start | {name: "".join(texts) for name, texts in self._texts.items()}
        if text := "".join(self._json):
            try:
                block["input"] = orjson.loads(text)
            except ValueError as error:
                raise Incomplete(f"the input of a tool is not JSON: {error}") from None
        return block


def merge_message_delta(message: dict[str, Any], fields: Mapping[str, Any]) -> None:
    """Merge a message_delta into the message. Its token counts are totals and replace earlier ones."""
    message |= object_field(fields, "delta")
    before, now = (part.get("usage") for part in (message, fields))
    usage = {name: count for name, count in now.items() if count is not None} if isinstance(now, dict) else {}
    message["usage"] = {**(before if isinstance(before, dict) else {}), **usage}
    message |= {name: value for name, value in fields.items() if name not in ("type", "delta", "usage")}


def object_field(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a field that must be an object, or raise Incomplete."""
    found = fields.get(name)
    if not isinstance(found, dict):
        raise Incomplete(f"an event without {name}")
    return found


def text_field(fields: Mapping[str, Any], name: str) -> str:
    """Return a field that must be a string, or raise Incomplete."""
    found = fields.get(name)
    if not isinstance(found, str):
        raise Incomplete(f"a delta without {name}")
    return found


def index_of(fields: Mapping[str, Any]) -> int:
    """Return the index of an event's content block, or raise Incomplete."""
    index = fields.get("index")
    if not isinstance(index, int):
        raise Incomplete("an event without index")
    return index


def split(answer: Mapping[str, Any], _usage: bool) -> Iterator[SseEvent]:
    """Yield the events of a stream with this answer."""
    counts = answer.get("usage")
    start = {**answer, "content": [], "stop_reason": None, "stop_sequence": None}
    if isinstance(counts, dict) and "output_tokens" in counts:
        start["usage"] = {**counts, "output_tokens": 0}
    yield typed_event({"type": "message_start", "message": start})
    for index, block in enumerate(answer["content"]):
        opened, deltas = split_block(block)
        yield typed_event({"type": "content_block_start", "index": index, "content_block": opened})
        for delta in deltas:
            yield typed_event({"type": "content_block_delta", "index": index, "delta": delta})
        yield typed_event({"type": "content_block_stop", "index": index})
    end = {"stop_reason": answer.get("stop_reason"), "stop_sequence": answer.get("stop_sequence")}
    yield typed_event({"type": "message_delta", "delta": end, "usage": counts or {}})
    yield typed_event({"type": "message_stop"})


def typed_event(fields: dict[str, Any]) -> SseEvent:
    """Return an event whose name is its type."""
    return json_event(fields, fields["type"])


def split_block(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a block as it starts, and the deltas that complete it. Blocks of other types start complete."""
    kind = block.get("type")
    if kind == "text" and isinstance(block.get("text"), str):
        deltas: list[dict[str, Any]] = [{"type": "text_delta", "text": part} for part in split_text(block["text"])]
        cited = block.get("citations")
        cited = cited if isinstance(cited, list) else []
        deltas += [{"type": "citations_delta", "citation": citation} for citation in cited]
        return {**block, "text": "", **({"citations": []} if cited else {})}, deltas
    if kind == "thinking" and isinstance(block.get("thinking"), str):
        deltas = [{"type": "thinking_delta", "thinking": part} for part in split_text(block["thinking"])]
        if isinstance(block.get("signature"), str):
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
            return {**block, "thinking": "", "signature": ""}, deltas
        return {**block, "thinking": ""}, deltas
    if kind in TOOL_BLOCKS and isinstance(block.get("input"), dict) and block["input"]:
        text = to_json(block["input"]).decode()
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": part} for part in split_text(text)]
    return dict(block), []


FORMAT = Format(
    endpoint=Endpoint.MESSAGES,
    suffixes=("v1/messages",),  # OpenAI's threads have messages too
    operation="chat",
    check=check,
    streaming=Streaming(assemble=assemble, split=split, ends=ends, error_name="error"),
)
