"""Chat completions, plain and streamed: one entry serves both.

    plain   {"object": "chat.completion", "choices": [{"index", "message", "logprobs", "finish_reason"}], "usage"}
    stream  {"object": "chat.completion.chunk", "choices": [{"index", "delta", "logprobs", "finish_reason"}]} …, [DONE]

A message is the sum of its deltas (`pieces.py`), whatever fields the provider has in it: content, reasoning_content,
tool calls, refusal, audio. Whole is an answer whose every choice has a finish reason; of a stream also [DONE] must have
been seen. With `stream_options.include_usage` a last chunk without choices has the usage, and all others have
`usage: null`: a kept stream replays with or without these, as it is asked for. Chunks with usage and choices are a
provider's own habit, and stay.

A plain answer becomes a stream by cutting text into pieces; where there are log probabilities, a piece is a token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from knapcache.errors import Incomplete
from knapcache.wire.json_util import add, cut, event_of, read_object
from knapcache.wire.sse import Block, Event, serialise

DONE = Event("[DONE]")
PADDING = "obfuscation"
"""Random letters that OpenAI adds to chunks against listening in by length; no part of an answer."""

THOUGHTS = ("reasoning_content", "reasoning")
"""What providers call the thoughts of a model."""


def check(answer: Mapping[str, Any]) -> None:
    """Incomplete, unless a plain answer is whole."""
    for choice in choices_of(answer):
        message = choice.get("message")
        if not isinstance(message, dict):
            raise Incomplete("a choice without a message")
        calls = message.get("tool_calls")
        if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
            raise Incomplete("tool calls that are no list of objects")


def choices_of(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The choices of an answer, each with an index of its own and a finish reason, or Incomplete."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
        raise Incomplete("no choices")
    indices = [choice.get("index", 0) for choice in choices]
    if not all(type(index) is int for index in indices) or len(set(indices)) < len(indices):
        raise Incomplete("choices whose indices are not numbers, or not different")
    for choice in choices:
        if not choice.get("finish_reason") or not isinstance(choice["finish_reason"], str):
            raise Incomplete("a choice without a finish reason")
    return choices


def chunks(events: Iterable[Event]) -> Iterator[dict[str, Any]]:
    """The chunks of a stream up to [DONE], or Incomplete."""
    for event in events:
        if event.event == "error":
            raise Incomplete("an error")
        if event.data.strip() == "[DONE]":
            return
        yield read_object(event.data)
    raise Incomplete("the stream ended before [DONE]")


def gather(events: Iterable[Event], kind: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """All but the choices of an answer, and the choices added up, by index."""
    answer: dict[str, Any] = {"id": None, "object": kind}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks(events):
        for name, value in chunk.items():
            if name not in ("object", "choices", PADDING) and (value is not None or name not in answer):
                answer[name] = value
        given = chunk.get("choices") or []
        if not isinstance(given, list) or not all(isinstance(choice, dict) for choice in given):
            raise Incomplete("choices that are no list of objects")
        for choice in given:
            index = choice.get("index", 0)
            if type(index) is not int:
                raise Incomplete("a choice whose index is no number")
            add(choices.setdefault(index, {}), choice)
    usage = answer.pop("usage", None)
    answer["choices"] = [choices[index] for index in sorted(choices)]
    if usage is not None:
        answer["usage"] = usage
    return answer, answer["choices"]


def assemble(events: Iterable[Event]) -> dict[str, Any]:
    """The plain answer that a stream spells, or Incomplete."""
    answer, choices = gather(events, "chat.completion")
    for choice in choices:
        message = choice.pop("delta", None)
        if not isinstance(message, dict):
            raise Incomplete("a choice without a message")
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict):
                call.pop("index", None)  # a stream's bookkeeping
        finish = choice.pop("finish_reason", None)
        choice["message"] = {"role": "assistant", "content": None} | message
        choice["finish_reason"] = finish
    check(answer)
    return answer


def split(answer: Mapping[str, Any], usage: bool = False) -> Iterator[Event]:
    """The stream of a plain answer; with usage, when that is asked for and known."""
    yield from frames(answer, "chat.completion.chunk", deltas, usage)


def frames(answer: Mapping[str, Any], kind: str, deltas_of: Any, usage: bool) -> Iterator[Event]:
    """Deltas of choices in chunks, then the usage, then [DONE]. Lists and objects are said once, in the first chunk."""
    rest = {name: value for name, value in answer.items() if name not in ("object", "choices", "usage")}
    same = {n: v for n, v in rest.items() if not isinstance(v, (dict, list))}
    same = {"id": same.pop("id", None), "object": kind, **same}
    null = {"usage": None} if usage else {}
    extra = {n: v for n, v in rest.items() if n not in same}
    for choice in answer["choices"]:
        for delta in deltas_of(choice):
            yield event_of({**same, **extra, "choices": [{"index": choice.get("index", 0), **delta}], **null})
            extra = {}
    if usage and answer.get("usage") is not None:
        yield event_of({**same, "choices": [], "usage": answer["usage"]})
    yield DONE


def deltas(choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A choice as what is said of it, one delta after the other."""
    message = dict(choice["message"])
    others = {n: v for n, v in choice.items() if n not in ("index", "message", "logprobs", "finish_reason")}
    content, logprobs = message.pop("content", None), choice.get("logprobs")
    calls = message.pop("tool_calls", None)
    thoughts = {n: message.pop(n) for n in THOUGHTS if message.get(n) and isinstance(message[n], str)}
    first = {"role": message.pop("role", "assistant"), "content": "" if isinstance(content, str) else content}
    steps = token_steps(content, logprobs)
    early = {} if "logprobs" not in choice else {"logprobs": None if steps else logprobs}
    yield {"delta": {**first, **message}, **others, **early, "finish_reason": None}
    for name, text in thoughts.items():
        yield from ({"delta": {name: piece}, "finish_reason": None} for piece in cut(text))
    if steps:
        yield from steps
    elif isinstance(content, str):
        yield from ({"delta": {"content": piece}, "finish_reason": None} for piece in cut(content))
    yield from call_steps(calls)
    yield {"delta": {}, "finish_reason": choice.get("finish_reason")}


def token_steps(content: Any, logprobs: Any) -> list[dict[str, Any]]:
    """Content a token at a time, each with its log probability; nothing where tokens do not spell the content."""
    tokens = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, str) or not isinstance(tokens, list) or not tokens:
        return []
    texts = [token.get("token") if isinstance(token, dict) else None for token in tokens]
    if not all(isinstance(text, str) for text in texts) or "".join(map(str, texts)) != content:
        return []  # a token may be half a character
    rest = {name: value for name, value in logprobs.items() if name != "content"}
    steps: list[dict[str, Any]] = []
    for text, token in zip(texts, tokens, strict=True):
        said = {"content": [token], **{n: None if steps else v for n, v in rest.items()}}
        steps.append({"delta": {"content": text}, "logprobs": said, "finish_reason": None})
    return steps


def call_steps(calls: Any) -> Iterator[dict[str, Any]]:
    """Tool calls: each first by name, then its arguments in pieces."""
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
        for piece in cut(arguments):
            said = {"index": index, "function": {"arguments": piece}}
            yield {"delta": {"tool_calls": [said]}, "finish_reason": None}


def wanted(block: Block, usage: bool) -> bytes | None:
    """A block of a stream that has usage, for one who asked for it, or for one who did not."""
    if usage or block.event is None or '"usage"' not in block.event.data:
        return block.raw
    chunk = read_object(block.event.data)
    if chunk.get("usage") is None:
        chunk.pop("usage", None)
        return serialise(event_of(chunk, block.event.event))
    return None if not chunk.get("choices") else block.raw
