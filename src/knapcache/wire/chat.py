"""Chat completions, plain and streamed. One entry serves both.

    plain   {"object": "chat.completion", "choices": [{"index", "message", "logprobs", "finish_reason"}], "usage"}
    stream  {"object": "chat.completion.chunk", "choices": [{"index", "delta", "logprobs", "finish_reason"}]} …, [DONE]

A message is the sum of its deltas (`deltas.py`), with all fields that the provider has: content, reasoning_content,
tool calls, refusal, audio. An answer is complete if every choice has a finish reason; a stream must also end in [DONE].

With `stream_options.include_usage` the last chunk has the usage and no choices, and all others have `usage: null`. A
stored stream is replayed with or without these, as the request asks. Chunks with both usage and choices are sent by
some providers on their own, and stay.

A plain answer becomes a stream by splitting its texts. Where there are log probabilities, each chunk is one token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from knapcache.errors import Incomplete
from knapcache.model import Endpoint
from knapcache.wire.base import Format, Streaming, json_event, read_object
from knapcache.wire.deltas import join_texts, merge_delta, split_text
from knapcache.wire.sse import SseBlock, SseEvent, serialise

DONE = SseEvent("[DONE]")
PADDING = "obfuscation"
"""Random letters that OpenAI adds to chunks against traffic analysis by length. Not part of the answer."""

REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Names that providers use for the model's reasoning."""


def check(answer: Mapping[str, Any]) -> None:
    """Raise Incomplete unless every choice has a message and a finish reason."""
    for choice in choices_of(answer):
        message = choice.get("message")
        if not isinstance(message, dict):
            raise Incomplete("a choice without a message")
        calls = message.get("tool_calls")
        if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
            raise Incomplete("tool_calls is not a list of objects")


def choices_of(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the choices of an answer. Raises Incomplete unless each has its own index and a finish reason."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
        raise Incomplete("no choices")
    indices = [choice.get("index", 0) for choice in choices]
    if set(map(type, indices)) != {int} or len(set(indices)) < len(indices):
        raise Incomplete("indices of choices are not distinct integers")
    for choice in choices:
        if not choice.get("finish_reason") or not isinstance(choice["finish_reason"], str):
            raise Incomplete("a choice without a finish reason")
    return choices


def ends(event: SseEvent) -> bool:
    """Return whether an event is [DONE]."""
    return event.data.strip() == "[DONE]"


def chunks(events: Iterable[SseEvent]) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a stream up to [DONE], or raise Incomplete."""
    for event in events:
        if event.event == "error":
            raise Incomplete("an error")
        if ends(event):
            return
        yield read_object(event.data)
    raise Incomplete("the stream ended before [DONE]")


def merge_chunks(events: Iterable[SseEvent], kind: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Merge the chunks of a stream. Return the answer and its choices, ordered by index."""
    answer: dict[str, Any] = {"id": None, "object": kind}
    choices: dict[int, dict[str, Any]] = {}
    same: dict[str, Any] = {}
    for chunk in chunks(events):
        deltas = chunk.pop("choices", None) or []
        chunk.pop("object", None)
        chunk.pop(PADDING, None)
        if chunk != same:  # all but a few repeat the fields of the one before
            same = chunk
            for name, value in chunk.items():
                if value is not None or name not in answer:
                    answer[name] = value
        if not isinstance(deltas, list):
            raise Incomplete("choices is not a list of objects")
        for delta in deltas:
            if not isinstance(delta, dict):
                raise Incomplete("choices is not a list of objects")
            index = delta.get("index", 0)
            if type(index) is not int:
                raise Incomplete("the index of a choice is not an integer")
            merge_delta(choices.setdefault(index, {}), delta)
    usage = answer.pop("usage", None)
    answer["choices"] = [join_texts(choices[index]) for index in sorted(choices)]
    if usage is not None:
        answer["usage"] = usage
    return answer, answer["choices"]


def assemble(events: Iterable[SseEvent]) -> dict[str, Any]:
    """Merge the events of a stream into the plain answer, or raise Incomplete."""
    answer, choices = merge_chunks(events, "chat.completion")
    for choice in choices:
        message = choice.pop("delta", None)
        if not isinstance(message, dict):
            raise Incomplete("a choice without a message")
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict):
                call.pop("index", None)  # only streams have it
        finish = choice.pop("finish_reason", None)
        choice["message"] = {"role": "assistant", "content": None} | message
        choice["finish_reason"] = finish
    check(answer)
    return answer


def split(answer: Mapping[str, Any], usage: bool) -> Iterator[SseEvent]:
    """Yield the events of a stream with this answer."""
    yield from split_choices(answer, "chat.completion.chunk", deltas, usage)


def split_choices(
    answer: Mapping[str, Any],
    kind: str,
    deltas_of: Callable[[Mapping[str, Any]], Iterator[dict[str, Any]]],
    usage: bool,
) -> Iterator[SseEvent]:
    """Yield chunks with the deltas of each choice, then the usage, then [DONE].

    Scalar fields of the answer are in every chunk, lists and objects only in the first.
    """
    rest = {name: value for name, value in answer.items() if name not in ("object", "choices", "usage")}
    same = {n: v for n, v in rest.items() if not isinstance(v, (dict, list))}
    same = {"id": same.pop("id", None), "object": kind, **same}
    null = {"usage": None} if usage else {}
    extra = {n: v for n, v in rest.items() if n not in same}
    for choice in answer["choices"]:
        for delta in deltas_of(choice):
            yield json_event({**same, **extra, "choices": [{"index": choice.get("index", 0), **delta}], **null})
            extra = {}
    if usage and answer.get("usage") is not None:
        yield json_event({**same, "choices": [], "usage": answer["usage"]})
    yield DONE


def deltas(choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the deltas of a choice: its role, reasoning, content, tool calls, then the finish reason."""
    message = dict(choice["message"])
    others = {n: v for n, v in choice.items() if n not in ("index", "message", "logprobs", "finish_reason")}
    content, logprobs = message.pop("content", None), choice.get("logprobs")
    calls = message.pop("tool_calls", None)
    reasoning = {n: message.pop(n) for n in REASONING_FIELDS if message.get(n) and isinstance(message[n], str)}
    first = {"role": message.pop("role", "assistant"), "content": "" if isinstance(content, str) else content}
    token_deltas = deltas_of_tokens(content, logprobs)
    early = {} if "logprobs" not in choice else {"logprobs": None if token_deltas else logprobs}
    yield {"delta": {**first, **message}, **others, **early, "finish_reason": None}
    for name, text in reasoning.items():
        yield from ({"delta": {name: part}, "finish_reason": None} for part in split_text(text))
    if token_deltas:
        yield from token_deltas
    elif isinstance(content, str):
        yield from ({"delta": {"content": part}, "finish_reason": None} for part in split_text(content))
    yield from deltas_of_calls(calls)
    yield {"delta": {}, "finish_reason": choice.get("finish_reason")}


def deltas_of_tokens(content: Any, logprobs: Any) -> list[dict[str, Any]]:
    """Return one delta a token with its log probability; nothing if the tokens do not add up to the content."""
    tokens = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, str) or not isinstance(tokens, list) or not tokens:
        return []
    texts = [token.get("token") if isinstance(token, dict) else None for token in tokens]
    if not all(isinstance(text, str) for text in texts) or "".join(map(str, texts)) != content:
        return []  # a token may be half a character
    rest = {name: value for name, value in logprobs.items() if name != "content"}
    found: list[dict[str, Any]] = []
    for text, token in zip(texts, tokens, strict=True):
        own = {"content": [token], **{n: None if found else v for n, v in rest.items()}}
        found.append({"delta": {"content": text}, "logprobs": own, "finish_reason": None})
    return found


def deltas_of_calls(calls: Any) -> Iterator[dict[str, Any]]:
    """Yield the deltas of tool calls: for each its name, then its arguments in chunks."""
    if calls is None:
        return
    if not calls:
        yield {"delta": {"tool_calls": []}, "finish_reason": None}
    for index, call in enumerate(calls):
        function = call.get("function")
        arguments = function.get("arguments") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(arguments, str):
            yield {"delta": {"tool_calls": [{"index": index, **call}]}, "finish_reason": None}
            continue
        named = {"index": index, **call, "function": {**function, "arguments": ""}}
        yield {"delta": {"tool_calls": [named]}, "finish_reason": None}
        for part in split_text(arguments):
            more = {"index": index, "function": {"arguments": part}}
            yield {"delta": {"tool_calls": [more]}, "finish_reason": None}


def strip_usage(block: SseBlock) -> bytes | None:
    """Return a block without `usage: null`; None for the chunk that has only the usage."""
    if block.event is None or '"usage"' not in block.event.data:
        return block.raw
    chunk = read_object(block.event.data)
    if chunk.get("usage") is None:
        chunk.pop("usage", None)
        return serialise(json_event(chunk, block.event.event))
    return None if not chunk.get("choices") else block.raw


FORMAT = Format(
    endpoint=Endpoint.CHAT,
    suffixes=("chat/completions",),
    operation="chat",
    check=check,
    streaming=Streaming(assemble=assemble, split=split, ends=ends, strip_usage=strip_usage),
)
