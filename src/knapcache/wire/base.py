"""One entry, two forms: what is kept is the answer as it came, and what is given is the form that is asked for.

    kept as           asked for plain        asked for as a stream
    json              as it is               cut into pieces (`split`)
    sse               added up (`assemble`)  block for block as it came, but for usage chunks nobody asked for

`Whole` is the only way to a kept answer, and only answers that are whole become one; everything else is Incomplete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from knapcache.errors import Incomplete
from knapcache.model import Endpoint
from knapcache.wire import chat, completions, messages, responses
from knapcache.wire.json_util import compact, read_object
from knapcache.wire.sse import Block, Event, Parser, blocks, serialise

Form = Literal["json", "sse"]

CONTENT_TYPE: dict[Form, str] = {"json": "application/json", "sse": "text/event-stream; charset=utf-8"}
CHECK: dict[Endpoint, Callable[[Mapping[str, Any]], None]] = {
    Endpoint.CHAT: chat.check,
    Endpoint.COMPLETIONS: completions.check,
    Endpoint.RESPONSES: responses.check,
    Endpoint.MESSAGES: messages.check,
}
ASSEMBLE: dict[Endpoint, Callable[[Iterable[Event]], dict[str, Any]]] = {
    Endpoint.CHAT: chat.assemble,
    Endpoint.COMPLETIONS: completions.assemble,
    Endpoint.RESPONSES: responses.assemble,
    Endpoint.MESSAGES: messages.assemble,
}
SPLIT: dict[Endpoint, Callable[..., Iterator[Event]]] = {
    Endpoint.CHAT: chat.split,
    Endpoint.COMPLETIONS: completions.split,
    Endpoint.RESPONSES: lambda answer, _: responses.split(answer),
    Endpoint.MESSAGES: lambda answer, _: messages.split(answer),
}
USAGE_APART = (Endpoint.CHAT, Endpoint.COMPLETIONS)
"""Where a stream has usage only when that is asked for."""


class Whole(NamedTuple):
    """A whole answer, as it is kept."""

    body: bytes
    form: Form
    model: str
    usage: Mapping[str, Any] | None
    tier: str | None = None
    """The service tier that it was answered in, where the answer says so beside its usage."""


def plain_answer(endpoint: Endpoint, body: bytes) -> Whole:
    """A plain answer that may be kept, or Incomplete."""
    answer = read_object(body)
    CHECK[endpoint](answer)
    return Whole(body, "json", *facts(answer))


def facts(answer: Mapping[str, Any]) -> tuple[str, Mapping[str, Any] | None, str | None]:
    """Model, usage and service tier of an answer, as far as it names them."""
    model, usage, tier = (answer.get(name) for name in ("model", "usage", "service_tier"))
    return (
        model if isinstance(model, str) else "",
        usage if isinstance(usage, dict) else None,
        tier if isinstance(tier, str) else None,
    )


class Collector:
    """Reads a stream on its way to the client; at its end it knows whether the answer was whole."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.ended = False
        """The terminator was seen: nothing that follows belongs to the answer."""
        self._parser = Parser()
        self._kept: list[Block] = []

    def feed(self, piece: bytes) -> list[Block]:
        """The blocks that this piece completes, to be passed on."""
        return self._take(self._parser.feed(piece))

    def close(self) -> list[Block]:
        """The last block, at the end of the stream."""
        return self._take(self._parser.close())

    def _take(self, found: list[Block]) -> list[Block]:
        for block in found:
            if block.event and not self.ended:
                self._kept.append(block)
                self.ended = ends(self.endpoint, block.event)
        return found

    def whole(self) -> Whole:
        """The answer that may be kept, or Incomplete."""
        answer = ASSEMBLE[self.endpoint](block.event for block in self._kept if block.event)
        raw = b"".join(block.raw for block in self._kept[:-1]) + serialised(self._kept[-1])
        return Whole(raw, "sse", *facts(answer))


def serialised(block: Block) -> bytes:
    """A last block with its blank line, which some servers forget."""
    return block.raw if block.raw.endswith((b"\n\n", b"\r\n\r\n")) or not block.event else serialise(block.event)


def ends(endpoint: Endpoint, event: Event) -> bool:
    """Whether this event is the last of an answer, good or bad."""
    if endpoint in USAGE_APART:
        return event.data.strip() == "[DONE]"
    kinds = {Endpoint.MESSAGES: ("message_stop", "error")}.get(endpoint, ("response.completed", *responses.FAILED))
    if not any(kind in event.data for kind in kinds):  # most events are deltas: JSON need not be read
        return False
    try:
        return read_object(event.data).get("type") in kinds
    except Incomplete:
        return True


def as_plain(endpoint: Endpoint, body: bytes, form: Form) -> bytes:
    """A kept answer in plain form."""
    if form == "json":
        return body
    return compact(ASSEMBLE[endpoint](block.event for block in blocks(body) if block.event))


def as_stream(endpoint: Endpoint, body: bytes, form: Form, usage: bool = False) -> Iterator[bytes]:
    """A kept answer as a stream, a block at a time."""
    if form == "json":
        yield from map(serialise, SPLIT[endpoint](read_object(body), usage))
    else:
        for block in blocks(body):
            if (raw := passed_on(endpoint, block, usage)) is not None:
                yield raw


def passed_on(endpoint: Endpoint, block: Block, usage: bool) -> bytes | None:
    """A block as this client gets it: usage that was asked for on its behalf only is left out."""
    if endpoint not in USAGE_APART:
        return block.raw
    try:
        return chat.wanted(block, usage)
    except Incomplete:
        return block.raw
