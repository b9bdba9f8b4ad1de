"""Completions of the older kind: as chat (`chat.py`), but a choice has `text` where that has a message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from knapcache.errors import Incomplete
from knapcache.wire.chat import choices_of, frames, gather
from knapcache.wire.json_util import cut
from knapcache.wire.sse import Event


def check(answer: Mapping[str, Any]) -> None:
    """Incomplete, unless a plain answer is whole."""
    for choice in choices_of(answer):
        if not isinstance(choice.get("text"), str):
            raise Incomplete("a choice without a text")


def assemble(events: Iterable[Event]) -> dict[str, Any]:
    """The plain answer that a stream spells, or Incomplete."""
    answer, _ = gather(events, "text_completion")
    check(answer)
    return answer


def split(answer: Mapping[str, Any], usage: bool = False) -> Iterator[Event]:
    """The stream of a plain answer."""
    yield from frames(answer, "text_completion", deltas, usage)


def deltas(choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A choice piece by piece, a token a piece where there are log probabilities; the last has the finish reason."""
    rest = {name: value for name, value in choice.items() if name not in ("index", "text", "finish_reason")}
    logprobs = rest.get("logprobs")
    tokens = logprobs.get("tokens") if isinstance(logprobs, dict) else None
    if isinstance(logprobs, dict) and isinstance(tokens, list) and "".join(map(str, tokens)) == choice["text"] != "":
        lists = {n: v for n, v in logprobs.items() if isinstance(v, list) and len(v) == len(tokens)}
        for at, token in enumerate(tokens):
            said = {n: [v[at]] if n in lists else (None if at else v) for n, v in logprobs.items()}
            yield {"text": token, **({} if at else rest), "logprobs": said, "finish_reason": None}
        rest = {}
    else:
        for piece in cut(choice["text"]):
            yield {"text": piece, **rest, "finish_reason": None}
            rest = {}
    yield {"text": "", **rest, "finish_reason": choice.get("finish_reason")}
