"""The usage in responses of Amazon Bedrock, read while they pass.

    plain JSON     field `usage`: of Converse in Bedrock's names, of invoke in Anthropic's
    event stream   Converse: the event `metadata` at the end
                   invoke: Anthropic's `message_start` at the start, in base64

A message of an event stream:

    4 bytes total length │ 4 bytes length of headers │ 4 bytes CRC │ headers │ payload │ 4 bytes CRC

Checksums are not verified: the client does that, and a wrong usage only makes a wrong prediction.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from typing import Any, Protocol

import orjson

from knapcache.exchange.exchange import parse_request
from knapcache.keys.parse import SHORT, ParsedBody
from knapcache.model import Endpoint
from knapcache.price.input_tokens import InputTokens, input_tokens

EVENT_STREAM = "application/vnd.amazon.eventstream"
MAX_ANSWER = 1 << 20
"""Bytes of a plain answer whose usage is read. The longest that Anthropic's models write have half of that."""
PRELUDE, CHECKSUM = 12, 4
"""Bytes before the headers of a message, and after its payload."""
MAX_MESSAGE = 1 << 20
"""Bytes of a message of an event stream. In a stream with a longer one, the usage is not looked for."""


class UsageReader(Protocol):
    """Finds the usage in the body of a response."""

    size: int
    """Bytes that `tokens` parses."""

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the body."""

    def tokens(self) -> InputTokens | None:
        """Return the input tokens after the last piece; None: unknown."""


def usage_reader(headers: Mapping[str, str]) -> UsageReader | None:
    """Return a reader for a response with these headers, by lower-case name; None: its usage is not read."""
    kind = headers.get("content-type", "").lower()
    if "content-encoding" in headers:
        return None
    if kind.startswith(EVENT_STREAM):
        return StreamUsage()
    return PlainUsage() if "json" in kind else None


class PlainUsage:
    """The usage of a plain answer, which is kept until its end."""

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[bytes] = []

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the body."""
        self.size += len(piece)
        if self.size > MAX_ANSWER:
            self._pieces.clear()
        else:
            self._pieces.append(piece)

    def tokens(self) -> InputTokens | None:
        """Return the input tokens after the last piece; None: unknown."""
        body = parse_request(b"".join(self._pieces))
        return reported_tokens(body.get("usage")) if isinstance(body, ParsedBody) else None


class StreamUsage:
    """The usage of an event stream. One message of it is kept at a time."""

    size = 0

    def __init__(self) -> None:
        self._rest = bytearray()
        self._found: InputTokens | None = None
        self._ended = False

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the body."""
        if self._ended:
            return
        rest = self._rest
        rest += piece
        start = 0
        while len(rest) - start >= PRELUDE:
            length, headers = struct.unpack_from(">II", rest, start)
            if not PRELUDE + headers + CHECKSUM <= length <= MAX_MESSAGE:
                self._ended = True
                break
            if len(rest) - start < length:
                break
            self._read(bytes(rest[start + PRELUDE + headers : start + length - CHECKSUM]))
            start += length
            if self._found is not None:
                self._ended = True
                break
        del rest[: len(rest) if self._ended else start]

    def tokens(self) -> InputTokens | None:
        """Return the input tokens after the last piece; None: unknown."""
        return self._found

    def _read(self, payload: bytes) -> None:
        """Look for the usage in one message. Inside a text, its name would have backslashes before the quotes."""
        of_invoke = payload.startswith(b'{"bytes"')
        if len(payload) > SHORT or not (of_invoke or b'"usage"' in payload):
            return
        try:
            event = orjson.loads(payload)
            if of_invoke:
                event = orjson.loads(base64.b64decode(event["bytes"]))["message"]
            self._found = reported_tokens(event["usage"])
        except (LookupError, TypeError, ValueError):
            pass  # another event


def reported_tokens(usage: Any) -> InputTokens | None:
    """Return the input tokens of a usage, in Bedrock's names or in Anthropic's; None: unknown."""
    if not isinstance(usage, dict):
        return None
    if "inputTokens" in usage:
        usage = {
            "input_tokens": usage["inputTokens"],
            "cache_read_input_tokens": usage.get("cacheReadInputTokens"),
            "cache_creation_input_tokens": usage.get("cacheWriteInputTokens"),
        }
    return input_tokens(Endpoint.MESSAGES, usage)
