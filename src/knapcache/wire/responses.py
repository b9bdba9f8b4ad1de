"""OpenAI's responses, plain and streamed.

    stream = response.created, response.in_progress, item*, response.completed
    item   = response.output_item.added, deltas, response.output_item.done

Every event has its name as `type` and a running `sequence_number`; the last one carries the whole plain response, which
makes a plain answer of a stream by looking at its end. Whole is a response whose status is `completed`; one that is
queued, failed, cancelled or cut off by a limit (`incomplete`) is not kept. There is no [DONE].

The other way, items that a model writes (messages, thoughts, arguments of calls) become deltas; items of other kinds
are added and done whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from knapcache.errors import Incomplete
from knapcache.wire.json_util import cut, event_of, read_object
from knapcache.wire.sse import Event

Said = Iterator[tuple[str, dict[str, Any]]]

FAILED = {
    "response.failed": "the response failed",
    "response.incomplete": "the response was cut off",
    "error": "an error",
}
WRITTEN = {
    "function_call": ("arguments", "function_call_arguments"),
    "mcp_call": ("arguments", "mcp_call_arguments"),
    "custom_tool_call": ("input", "custom_tool_call_input"),
    "code_interpreter_call": ("code", "code_interpreter_call_code"),
}
"""Items with one text that grows: its field, and what its events are called."""


def check(answer: Mapping[str, Any]) -> None:
    """Incomplete, unless a plain answer is whole."""
    if answer.get("object") != "response" or not isinstance(answer.get("output"), list):
        raise Incomplete("not a response")
    if answer.get("status") != "completed":
        raise Incomplete(f"a response with status {answer.get('status')!r}")
    for item in answer["output"]:
        if not isinstance(item, dict) or not isinstance(item.get("type"), str):
            raise Incomplete("an output item that is no object with a type")
        if not all(objects(item.get(name)) for name in ("content", "summary")):
            raise Incomplete("an output item whose parts are no objects")


def objects(parts: Any) -> bool:
    """Parts of an item: objects whose texts are texts, or none."""
    return parts is None or (
        isinstance(parts, list)
        and all(isinstance(part, dict) for part in parts)
        and all(isinstance(part.get(name, ""), str) for part in parts for name in ("text", "refusal"))
        and all(isinstance(part.get(name) or [], list) for part in parts for name in ("annotations", "logprobs"))
    )


def assemble(events: Iterable[Event]) -> dict[str, Any]:
    """The plain answer that a stream spells, or Incomplete."""
    for event in events:
        if event.data.strip() == "[DONE]":
            break  # some servers that speak this dialect end so
        said = read_object(event.data)
        kind = str(said.get("type"))
        if kind in FAILED:
            raise Incomplete(FAILED[kind])
        if kind == "response.completed":
            answer = said.get("response")
            if not isinstance(answer, dict):
                raise Incomplete("response.completed without a response")
            check(answer)
            return answer
    raise Incomplete("the stream ended before response.completed")


def split(answer: Mapping[str, Any]) -> Iterator[Event]:
    """The stream of a plain answer."""
    begun = {**answer, "status": "in_progress", "output": [], "usage": None}
    begun.pop("completed_at", None)
    for number, (kind, said) in enumerate(cache_headers(answer, begun)):
        yield event_of({"type": kind, "sequence_number": number, **said}, kind)


def cache_headers(answer: Mapping[str, Any], begun: dict[str, Any]) -> Said:
    """All events, without their numbers."""
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for index, item in enumerate(answer["output"]):
        at = {"output_index": index}
        yield "response.output_item.added", {**at, "item": empty(item)}
        for kind, said in written(item):
            yield kind, {"item_id": item.get("id"), **at, **said}
        yield "response.output_item.done", {**at, "item": item}
    yield "response.completed", {"response": answer}


def empty(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item before anything was written into it."""
    kind = item.get("type")
    begun = dict(item)
    if "status" in begun:
        begun["status"] = "in_progress"
    if kind == "message":
        begun["content"] = []
    elif kind == "reasoning":
        begun |= {name: [] for name in ("summary", "content") if isinstance(item.get(name), list)}
    elif kind in WRITTEN and isinstance(item.get(WRITTEN[kind][0]), str):
        begun[WRITTEN[kind][0]] = ""
    return begun


def written(item: Mapping[str, Any]) -> Said:
    """What is written into an item, piece by piece."""
    kind = item.get("type")
    if kind == "message":
        for index, part in enumerate(item.get("content") or []):
            yield from part_said(part, index)
    elif kind == "reasoning":
        for index, part in enumerate(item.get("summary") or []):
            at = {"summary_index": index}
            yield "response.reasoning_summary_part.added", {**at, "part": {**part, "text": ""}}
            for piece in cut(part.get("text") or ""):
                yield "response.reasoning_summary_text.delta", {**at, "delta": piece}
            yield "response.reasoning_summary_text.done", {**at, "text": part.get("text")}
            yield "response.reasoning_summary_part.done", {**at, "part": part}
        for index, part in enumerate(item.get("content") or []):
            at = {"content_index": index}
            for piece in cut(part.get("text") or ""):
                yield "response.reasoning_text.delta", {**at, "delta": piece}
            yield "response.reasoning_text.done", {**at, "text": part.get("text")}
    elif kind in WRITTEN and isinstance(item.get(WRITTEN[kind][0]), str):
        field, name = WRITTEN[kind]
        for piece in cut(item[field]):
            yield f"response.{name}.delta", {"delta": piece}
        called = {"name": item["name"]} if kind == "function_call" and "name" in item else {}
        yield f"response.{name}.done", {field: item[field], **called}


def part_said(part: Mapping[str, Any], index: int) -> Said:
    """A part of a message: a text or a refusal."""
    at = {"content_index": index}
    if part.get("type") == "refusal":
        text = part.get("refusal") or ""
        yield "response.content_part.added", {**at, "part": {**part, "refusal": ""}}
        yield from (("response.refusal.delta", {**at, "delta": piece}) for piece in cut(text))
        yield "response.refusal.done", {**at, "refusal": text}
    else:
        text, logprobs = part.get("text") or "", part.get("logprobs") or []
        hollow: dict[str, Any] = {"annotations": []} if "annotations" in part else {}
        hollow |= {"logprobs": []} if "logprobs" in part else {}
        yield "response.content_part.added", {**at, "part": {**part, "text": "", **hollow}}
        for piece, beside in texts(text, logprobs):
            yield "response.output_text.delta", {**at, "delta": piece, "logprobs": beside}
        for number, note in enumerate(part.get("annotations") or []):
            said = {**at, "annotation_index": number, "annotation": note}
            yield "response.output_text.annotation.added", said
        yield "response.output_text.done", {**at, "text": text, "logprobs": logprobs}
    yield "response.content_part.done", {**at, "part": part}


def texts(text: str, logprobs: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Pieces of a text; where tokens with log probabilities spell it, a token a piece."""
    tokens = [entry.get("token") if isinstance(entry, dict) else None for entry in logprobs]
    if tokens and all(isinstance(token, str) for token in tokens) and "".join(map(str, tokens)) == text:
        yield from ((str(token), [entry]) for token, entry in zip(tokens, logprobs, strict=True))
    else:
        yield from ((piece, []) for piece in cut(text))
