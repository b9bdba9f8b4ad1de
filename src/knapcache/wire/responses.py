"""OpenAI's responses, plain and streamed.

    stream = response.created, response.in_progress, item*, response.completed
    item   = response.output_item.added, deltas, response.output_item.done

Every event has its name as `type` and a running `sequence_number`. The last one holds the whole plain response, so a
stream is converted by reading its last event. A response is complete if its status is `completed`; one that is queued,
failed, cancelled or truncated (`incomplete`) is not stored. There is no [DONE].

A plain response becomes a stream by splitting the items that a model generates (messages, reasoning, calls)
into deltas. Items of other types are sent whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from knapcache.errors import Incomplete
from knapcache.model import Endpoint
from knapcache.wire.base import Format, Streaming, has_type, json_event, read_object
from knapcache.wire.deltas import split_text
from knapcache.wire.sse import SseEvent

TypedEvents = Iterator[tuple[str, dict[str, Any]]]

FAILED = {
    "response.failed": "the response failed",
    "response.incomplete": "the response was truncated",
    "error": "an error",
}
LAST_EVENTS = ("response.completed", *FAILED)
GENERATED = {
    "function_call": ("arguments", "function_call_arguments"),
    "mcp_call": ("arguments", "mcp_call_arguments"),
    "custom_tool_call": ("input", "custom_tool_call_input"),
    "code_interpreter_call": ("code", "code_interpreter_call_code"),
}
"""Items with one generated text: the field that holds it, and the name of its events."""


def check(answer: Mapping[str, Any]) -> None:
    """Raise Incomplete unless a response has the status `completed` and well-formed output."""
    if answer.get("object") != "response" or not isinstance(answer.get("output"), list):
        raise Incomplete("not a response")
    if answer.get("status") != "completed":
        raise Incomplete("a response that is not completed")
    for item in answer["output"]:
        if not isinstance(item, dict) or not isinstance(item.get("type"), str):
            raise Incomplete("an output item is not an object with a type")
        if not all(parts_valid(item.get(name)) for name in ("content", "summary")):
            raise Incomplete("the parts of an output item are not well-formed")


def parts_valid(parts: Any) -> bool:
    """Return whether the parts of an item are objects with well-typed fields. None is valid."""
    return parts is None or (
        isinstance(parts, list)
        and all(isinstance(part, dict) for part in parts)
        and all(isinstance(part.get(name, ""), str) for part in parts for name in ("text", "refusal"))
        and all(isinstance(part.get(name) or [], list) for part in parts for name in ("annotations", "logprobs"))
    )


def ends(event: SseEvent) -> bool:
    """Return whether an event completes the response or reports its failure."""
    return has_type(event, LAST_EVENTS)


def assemble(events: Iterable[SseEvent]) -> dict[str, Any]:
    """Return the plain answer from the last event of a stream, or raise Incomplete."""
    for event in events:
        if event.data.strip() == "[DONE]":
            break  # some compatible servers end their streams with it
        fields = read_object(event.data)
        kind = str(fields.get("type"))
        if kind in FAILED:
            raise Incomplete(FAILED[kind])
        if kind == "response.completed":
            answer = fields.get("response")
            if not isinstance(answer, dict):
                raise Incomplete("response.completed without a response")
            check(answer)
            return answer
    raise Incomplete("the stream ended before response.completed")


def split(answer: Mapping[str, Any], _usage: bool) -> Iterator[SseEvent]:
    """Yield the events of a stream with this answer."""
    for number, (kind, fields) in enumerate(typed_events(answer)):
        yield json_event({"type": kind, "sequence_number": number, **fields}, kind)


def typed_events(answer: Mapping[str, Any]) -> TypedEvents:
    """Yield all events as type and fields, without sequence numbers."""
    created = {**answer, "status": "in_progress", "output": [], "usage": None}
    created.pop("completed_at", None)
    yield "response.created", {"response": created}
    yield "response.in_progress", {"response": created}
    for index, item in enumerate(answer["output"]):
        at = {"output_index": index}
        yield "response.output_item.added", {**at, "item": empty_item(item)}
        for kind, fields in item_deltas(item):
            yield kind, {"item_id": item.get("id"), **at, **fields}
        yield "response.output_item.done", {**at, "item": item}
    yield "response.completed", {"response": answer}


def empty_item(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item without its generated content, as it is when it is added."""
    kind = item.get("type")
    empty = dict(item)
    if "status" in empty:
        empty["status"] = "in_progress"
    if kind == "message":
        empty["content"] = []
    elif kind == "reasoning":
        empty |= {name: [] for name in ("summary", "content") if isinstance(item.get(name), list)}
    elif kind in GENERATED and isinstance(item.get(GENERATED[kind][0]), str):
        empty[GENERATED[kind][0]] = ""
    return empty


def item_deltas(item: Mapping[str, Any]) -> TypedEvents:
    """Yield the events that generate the content of an item."""
    kind = item.get("type")
    if kind == "message":
        for index, part in enumerate(item.get("content") or []):
            yield from message_part(part, index)
    elif kind == "reasoning":
        for index, part in enumerate(item.get("summary") or []):
            at = {"summary_index": index}
            yield "response.reasoning_summary_part.added", {**at, "part": {**part, "text": ""}}
            for text in split_text(part.get("text") or ""):
                yield "response.reasoning_summary_text.delta", {**at, "delta": text}
            yield "response.reasoning_summary_text.done", {**at, "text": part.get("text")}
            yield "response.reasoning_summary_part.done", {**at, "part": part}
        for index, part in enumerate(item.get("content") or []):
            at = {"content_index": index}
            for text in split_text(part.get("text") or ""):
                yield "response.reasoning_text.delta", {**at, "delta": text}
            yield "response.reasoning_text.done", {**at, "text": part.get("text")}
    elif kind in GENERATED and isinstance(item.get(GENERATED[kind][0]), str):
        field, name = GENERATED[kind]
        for text in split_text(item[field]):
            yield f"response.{name}.delta", {"delta": text}
        called = {"name": item["name"]} if kind == "function_call" and "name" in item else {}
        yield f"response.{name}.done", {field: item[field], **called}


def message_part(part: Mapping[str, Any], index: int) -> TypedEvents:
    """Yield the events of one part of a message: a text or a refusal."""
    at = {"content_index": index}
    if part.get("type") == "refusal":
        refusal = part.get("refusal") or ""
        yield "response.content_part.added", {**at, "part": {**part, "refusal": ""}}
        yield from (("response.refusal.delta", {**at, "delta": text}) for text in split_text(refusal))
        yield "response.refusal.done", {**at, "refusal": refusal}
    else:
        content, logprobs = part.get("text") or "", part.get("logprobs") or []
        empty: dict[str, Any] = {"annotations": []} if "annotations" in part else {}
        empty |= {"logprobs": []} if "logprobs" in part else {}
        yield "response.content_part.added", {**at, "part": {**part, "text": "", **empty}}
        for text, own in split_tokens(content, logprobs):
            yield "response.output_text.delta", {**at, "delta": text, "logprobs": own}
        for number, note in enumerate(part.get("annotations") or []):
            fields = {**at, "annotation_index": number, "annotation": note}
            yield "response.output_text.annotation.added", fields
        yield "response.output_text.done", {**at, "text": content, "logprobs": logprobs}
    yield "response.content_part.done", {**at, "part": part}


def split_tokens(text: str, logprobs: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield chunks of a text with their log probabilities: one token each, if the tokens add up to the text."""
    tokens = [entry.get("token") if isinstance(entry, dict) else None for entry in logprobs]
    if tokens and all(isinstance(token, str) for token in tokens) and "".join(map(str, tokens)) == text:
        yield from ((str(token), [entry]) for token, entry in zip(tokens, logprobs, strict=True))
    else:
        yield from ((part, []) for part in split_text(text))


FORMAT = Format(
    endpoint=Endpoint.RESPONSES,
    suffixes=("responses",),
    operation="chat",
    check=check,
    streaming=Streaming(assemble=assemble, split=split, ends=ends, error_name="error"),
)
