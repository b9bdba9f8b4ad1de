"""Legacy completions: as chat (`chat.py`), but a choice has a `text` instead of a message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from knapcache.errors import Incomplete
from knapcache.model import Endpoint
from knapcache.wire.base import Format, Streaming
from knapcache.wire.chat import choices_of, ends, merge_chunks, split_choices, strip_usage
from knapcache.wire.deltas import split_text
from knapcache.wire.sse import SseEvent


def check(answer: Mapping[str, Any]) -> None:
    """Raise Incomplete unless every choice has a text and a finish reason."""
    for choice in choices_of(answer):
        if not isinstance(choice.get("text"), str):
            raise Incomplete("a choice without a text")


def assemble(events: Iterable[SseEvent]) -> dict[str, Any]:
    """Merge the events of a stream into the plain answer, or raise Incomplete."""
    answer, _ = merge_chunks(events, "text_completion")
    check(answer)
    return answer


def split(answer: Mapping[str, Any], usage: bool) -> Iterator[SseEvent]:
    """Yield the events of a stream with this answer."""
    yield from split_choices(answer, "text_completion", deltas, usage)


def deltas(choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a choice: a token each if it has log probabilities. The last has the finish reason."""
    rest = {name: value for name, value in choice.items() if name not in ("index", "text", "finish_reason")}
    logprobs = rest.get("logprobs")
    tokens = logprobs.get("tokens") if isinstance(logprobs, dict) else None
    if isinstance(logprobs, dict) and isinstance(tokens, list) and "".join(map(str, tokens)) == choice["text"] != "":
        lists = {n: v for n, v in logprobs.items() if isinstance(v, list) and len(v) == len(tokens)}
        for k, token in enumerate(tokens):
            own = {n: [v[k]] if n in lists else (None if k else v) for n, v in logprobs.items()}
            yield {"text": token, **({} if k else rest), "logprobs": own, "finish_reason": None}
        rest = {}
    else:
        for text in split_text(choice["text"]):
            yield {"text": text, **rest, "finish_reason": None}
            rest = {}
    yield {"text": "", **rest, "finish_reason": choice.get("finish_reason")}


FORMAT = Format(
    endpoint=Endpoint.COMPLETIONS,
    suffixes=("completions",),
    other_suffixes=("fim/completions",),  # Mistral's fill-in-the-middle answers in the format of chat
    operation="text_completion",
    check=check,
    streaming=Streaming(assemble=assemble, split=split, ends=ends, strip_usage=strip_usage),
)
