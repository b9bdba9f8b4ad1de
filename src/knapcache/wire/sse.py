r"""Server-sent events, as bytes and as events. No I/O: bytes come in in any pieces, blocks come out whole.

    stream = block*    block = line* blank line    line = "field: value" | ": comment"    end of line = \n, \r\n or \r

A block is the unit of everything: it is forwarded, kept and replayed byte for byte, so a replay has the boundaries of
the original. What its lines say (`Event`) is only read to know whether the answer is whole. A block without `data` is
no event (a comment that keeps the connection open); it is forwarded, and not kept.

The standard throws away what stands after the last blank line. Some servers forget that line after their last event, so
`close` reads it after all: an answer that was cut off there does not pass for whole, for no proper beginning of a JSON
object is JSON, and a terminator that was cut is none.
"""

from __future__ import annotations

import re
from typing import NamedTuple

EOL = rb"(?:\r\n|\n|\r(?=[^\n]))"  # a \r at the end of what has come may be half of \r\n: wait
BLANK = re.compile(EOL + EOL)
LINES = re.compile("\r\n|\n|\r")
BOM = b"\xef\xbb\xbf"
LARGEST = 64 << 20
"""Bytes of one block: far more than any event, less than a memory. Beyond it nothing is read any more."""


class Event(NamedTuple):
    """What a block says."""

    data: str
    event: str = ""
    id: str | None = None
    retry: int | None = None


class Block(NamedTuple):
    """A block, as it came."""

    raw: bytes
    event: Event | None
    """None for comments."""


class Parser:
    """Cuts bytes into blocks."""

    def __init__(self) -> None:
        self._rest = b""
        self._looked = 0  # no blank line ends before this place: a long block is not searched again and again
        self._started = False
        self.broken = False
        """A block grew beyond LARGEST: the rest is not looked at."""

    def feed(self, piece: bytes) -> list[Block]:
        """The blocks that this piece completes."""
        if self.broken:
            return [Block(piece, None)] if piece else []
        rest = self._rest + piece
        if not self._started:
            if len(rest) < len(BOM) and BOM.startswith(rest):
                self._rest = rest
                return []
            self._started = True
        found = []
        at = 0
        while (end := self._end(rest, at)) is not None:
            found.append(block(rest[at:end]))
            at = end
            self._looked = 0
        self._rest = rest[at:]
        self._looked = max(0, len(self._rest) - 4)
        if len(self._rest) > LARGEST:
            self.broken = True
            found.append(Block(self._rest, None))
            self._rest = b""
        return found

    def close(self) -> list[Block]:
        """What stood after the last blank line, at the end of the stream."""
        rest, self._rest = self._rest, b""
        return [block(rest)] if rest else []

    def _end(self, rest: bytes, at: int) -> int | None:
        """Where the block that starts at `at` ends."""
        start = rest[at : at + 2]
        if start[:1] == b"\n" or start == b"\r\n":
            return at + len(start.partition(b"\n")[0]) + 1
        if len(start) == 2 and start[:1] == b"\r":
            return at + 1
        match = BLANK.search(rest, at + self._looked)
        return match.end() if match else None


def block(raw: bytes) -> Block:
    """A block read."""
    data: list[str] = []
    event, id_, retry = "", None, None
    for line in LINES.split(raw.removeprefix(BOM).decode("utf-8", "surrogateescape")):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "event":
            event = value
        elif name == "id" and "\0" not in value:
            id_ = value
        elif name == "retry" and value.isascii() and value.isdigit() and len(value) < 10:
            retry = int(value)
    return Block(raw, Event("\n".join(data), event, id_, retry) if data else None)


def serialise(event: Event) -> bytes:
    """The bytes of an event; reading them gives it back."""
    lines = []
    if event.event:
        lines.append(f"event: {event.event}")
    if event.id is not None:
        lines.append(f"id: {event.id}")
    if event.retry is not None:
        lines.append(f"retry: {event.retry}")
    lines += [f"data: {line}" for line in LINES.split(event.data)]
    return "\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")


def blocks(stream: bytes) -> list[Block]:
    """The blocks of a whole stream."""
    parser = Parser()
    return parser.feed(stream) + parser.close()


def events(stream: bytes) -> list[Event]:
    """The events of a whole stream."""
    return [found.event for found in blocks(stream) if found.event]
