"""The record that describes an endpoint's format, and what all formats do with it.

An entry holds the answer in the form in which it came. A caller gets the form that it asks for:

    stored as    asked for plain         asked for as a stream
    json         as it is                split into events (`split`)
    sse          merged (`assemble`)     the stored blocks, without usage chunks that the caller did not ask for
    compact      as sse                  as sse, after `compact.py` has expanded it

Only complete answers are stored: `Format.parse` and `StreamCollector.complete` return a `CompleteAnswer` or raise
Incomplete.

A new format is one file with a `Format` in it, its line in `registry.py`, and a member of `knapcache.model.Endpoint`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import orjson

from knapcache.errors import Incomplete
from knapcache.model import Endpoint
from knapcache.wire.compact import compact_stream, expand_stream, expanded_size
from knapcache.wire.sse import MAX_BLOCK, SseBlock, SseEvent, SseParser, blocks, parse_block, serialise, split_blocks

Form = Literal["json", "sse", "compact"]

MAX_NAME = 1024
"""Characters of a model's name or a service tier in an answer. Tables are kept by these names."""

CONTENT_TYPE = {"json": "application/json", "sse": "text/event-stream; charset=utf-8"}


class CompleteAnswer(NamedTuple):
    """A complete answer, in the form in which it is stored."""

    body: bytes
    form: Form
    model: str
    usage: Mapping[str, Any] | None
    tier: str | None = None
    """The service tier that served the request, if the answer names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """How a format streams."""

    assemble: Callable[[Iterable[SseEvent]], dict[str, Any]]
    """Merge the events of a stream into the plain answer. Raises Incomplete."""
    split: Callable[[Mapping[str, Any], bool], Iterator[SseEvent]]
    """Split a plain answer into the events of a stream, with or without its usage."""
    ends: Callable[[SseEvent], bool]
    """Whether an event is the last of an answer, good or bad."""
    strip_usage: Callable[[SseBlock], bytes | None] | None = None
    """Remove usage from a block; None drops the block. Set where streams have usage only if the request asks for it."""
    error_name: str = ""
    """The `event` field of an error in the stream. Empty: errors have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerItem:
    """How a format takes requests and answers apart into items, each of which has its own entry."""

    inputs: Callable[[Any], list[Any]]
    """Return the items of a request's `input`."""
    split: Callable[[Mapping[str, Any], Sequence[Any]], list[CompleteAnswer]]
    """Split an answer to these items into one answer an item, in their order. Raises Incomplete."""
    join: Callable[[Sequence[bytes]], bytes]
    """Join stored items into the answer to a request for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The wire format of one endpoint."""

    endpoint: Endpoint
    suffixes: tuple[str, ...]
    """The last one or two segments of the endpoint's paths."""
    other_suffixes: tuple[str, ...] = ()
    """Longer suffixes that belong to other, uncached APIs."""
    operation: str
    """The operation's name in OpenTelemetry's conventions for generative AI."""
    check: Callable[[Mapping[str, Any]], None]
    """Raise Incomplete unless a plain answer is complete."""
    streaming: Streaming | None = None
    """None: the endpoint has no streams."""
    per_item: PerItem | None = None
    """Set where each item of a request's `input` has its own entry."""

    @property
    def usage_on_request(self) -> bool:
        """Whether streams have usage only if the request asks for it."""
        return self.streaming is not None and self.streaming.strip_usage is not None

    def parse(self, body: bytes, request: Mapping[str, Any]) -> CompleteAnswer:
        """Return the plain answer to a request as it is stored, or raise Incomplete. A request has at most one item."""
        answer = read_object(body)
        self.check(answer)
        if self.per_item is None:
            return complete_answer(body, "json", answer)
        (item,) = self.per_item.split(answer, self.per_item.inputs(request.get("input")))
        return item

    def to_plain(self, body: bytes, form: Form) -> bytes:
        """Return a stored answer in plain form."""
        if form == "json":
            return body if self.per_item is None else self.per_item.join([body])
        assert self.streaming is not None
        found = blocks(expanded(body, form))
        return to_json(self.streaming.assemble(block.event for block in found if block.event))

    def to_stream(self, body: bytes, form: Form, usage: bool = False) -> Iterator[bytes]:
        """Yield the blocks of a stored answer as a stream. usage: include it where the format makes it optional."""
        assert self.streaming is not None
        if form == "json":
            return map(serialise, self.streaming.split(read_object(body), usage))
        found = split_blocks(expanded(body, form))
        if usage or self.streaming.strip_usage is None:
            return iter(found)
        return self._without_usage(found)

    def _without_usage(self, found: list[bytes]) -> Iterator[bytes]:
        for k, raw in enumerate(found):
            if b'"usage"' not in raw:  # most blocks: they need not be parsed
                yield raw
            elif (stripped := self.forward(parse_block(raw, first=k == 0), usage=False)) is not None:
                yield stripped

    def forward(self, block: SseBlock, usage: bool) -> bytes | None:
        """Return a block as the caller gets it, or None to drop it. Usage that only we asked for is removed."""
        assert self.streaming is not None
        if usage or self.streaming.strip_usage is None:
            return block.raw
        try:
            return self.streaming.strip_usage(block)
        except Incomplete:
            return block.raw

    def error_event(self, message: str) -> bytes:
        """Return an error event that the SDKs understand, for a stream that breaks off. No terminator follows it."""
        assert self.streaming is not None
        error = {"type": "error", "error": {"message": message, "type": "upstream_failed"}}
        return serialise(json_event(error, self.streaming.error_name))


BLOCK_OVERHEAD = 256
"""Bytes that a collected block takes beside its text."""


class StreamCollector:
    """Parses a stream while it is forwarded, and collects the blocks of its answer.

    max_size   bytes of an answer, with BLOCK_OVERHEAD for each block; None: no limit
    """

    def __init__(self, wire_format: Format, max_size: int | None = None) -> None:
        assert wire_format.streaming is not None
        self._streaming = wire_format.streaming
        self.ended = False
        """The terminator was seen. Later blocks are not part of the answer."""
        self._parser = SseParser(MAX_BLOCK if max_size is None else min(MAX_BLOCK, max_size))
        self._kept: list[SseBlock] = []
        self._size, self._max_size = 0, max_size
        self.overflowed = False
        """The answer is longer than max_size. It was dropped, and later bytes are neither parsed nor collected."""

    def feed(self, data: bytes) -> list[SseBlock]:
        """Return the blocks that these bytes complete."""
        return self._collect(self._parser.feed(data))

    def close(self) -> list[SseBlock]:
        """Return the last block, at the end of the stream."""
        return self._collect(self._parser.close())

    def _collect(self, found: list[SseBlock]) -> list[SseBlock]:
        for block in found:
            self._size += len(block.raw) + BLOCK_OVERHEAD  # comments as well: they are kept for the waiters
            if block.event and not self.ended:
                self._kept.append(block)
                self.ended = self._streaming.ends(block.event)
        if self._parser.oversized or (self._max_size is not None and self._size > self._max_size):
            self.overflowed = True
            self._kept.clear()
            found += self._parser.stop()
        return found

    def complete(self) -> CompleteAnswer:
        """Return the answer as it is stored, or raise Incomplete."""
        if self.overflowed:
            raise Incomplete("the answer is too long")
        answer = self._streaming.assemble(block.event for block in self._kept if block.event)
        body = b"".join(block.raw for block in self._kept[:-1]) + terminated(self._kept[-1])
        return complete_answer(body, "sse", answer)


def compacted(answer: CompleteAnswer) -> CompleteAnswer:
    """Return a streamed answer in compact form; as it is if that is not shorter."""
    body = compact_stream(answer.body)
    return answer if body is None else answer._replace(body=body, form="compact")


def expanded(body: bytes, form: str) -> bytes:
    """Return the bytes of a stored answer as they came, or raise Incomplete if they are damaged."""
    return expand_stream(body) if form == "compact" else body


def stored_length(body: bytes, form: str) -> int:
    """Return the length of a stored answer as it came."""
    return expanded_size(body) if form == "compact" else len(body)


def terminated(block: SseBlock) -> bytes:
    """Return a block with its blank line, which some servers omit after the last one."""
    return block.raw if block.raw.endswith((b"\n\n", b"\r\n\r\n")) or not block.event else serialise(block.event)


def complete_answer(body: bytes, form: Form, answer: Mapping[str, Any]) -> CompleteAnswer:
    """Return a stored answer with the model, usage and service tier that it names. All formats have the same fields."""
    model, usage, tier = answer.get("model"), answer.get("usage"), answer.get("service_tier")
    return CompleteAnswer(
        body=body,
        form=form,
        model=model if isinstance(model, str) and len(model) <= MAX_NAME else "",
        usage=usage if isinstance(usage, dict) else None,
        tier=tier if isinstance(tier, str) and len(tier) <= MAX_NAME else None,
    )


def read_object(text: bytes | str) -> dict[str, Any]:
    """Parse a JSON object. Raises Incomplete for anything else, and for objects that report an error."""
    try:
        found = orjson.loads(text)
    except ValueError as error:
        raise Incomplete(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Incomplete("not a JSON object")
    if found.get("error"):
        raise Incomplete("an error")
    return found


def to_json(value: Any) -> bytes:
    """Return the value as compact JSON."""
    return orjson.dumps(value)


def json_event(value: Mapping[str, Any], name: str = "") -> SseEvent:
    """Return an event whose data is the value as JSON."""
    return SseEvent(to_json(value).decode(), name)


def has_type(event: SseEvent, types: Collection[str]) -> bool:
    """Return whether the `type` of the event's JSON is one of these; True also for broken JSON that names one."""
    if not any(name in event.data for name in types):  # most events are deltas: their JSON need not be parsed
        return False
    try:
        return read_object(event.data).get("type") in types
    except Incomplete:
        return True
