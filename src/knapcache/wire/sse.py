r"""Server-sent events: bytes to blocks and events, and back. No I/O.

    stream = block*    block = line* blank line    line = "field: value" | ": comment"    end of line = \n, \r\n or \r

The parser accepts bytes in pieces of any size and returns whole blocks. Blocks are forwarded, stored and replayed byte
for byte, so a replay has the same boundaries as the original. The fields of a block (`SseEvent`) are only read to find
out whether the answer is complete. A block without `data` is a comment (keep-alive): it is forwarded and not stored.

The standard discards bytes after the last blank line. Some servers omit that line after their last event, so `close`
parses the rest anyway. A truncated answer still does not pass for a complete one: no proper prefix of a JSON object is
JSON, and a truncated terminator is not a terminator.
"""

from __future__ import annotations

import re
from typing import NamedTuple

EOL = rb"(?:\r\n|\n|\r(?=[^\n]))"  # a \r at the end of the buffer may be the first half of \r\n
BLANK = re.compile(EOL + EOL)
LINES = re.compile("\r\n|\n|\r")
BOM = b"\xef\xbb\xbf"
LOOK_BACK = 4
"""Bytes of the longest blank line."""
MAX_BLOCK = 64 << 20
"""Bytes of one block. Larger blocks are forwarded unparsed."""


class SseEvent(NamedTuple):
    """The fields of a block."""

    data: str
    event: str = ""
    id: str | None = None
    retry: int | None = None


class SseBlock(NamedTuple):
    """The bytes of a block, and its fields."""

    raw: bytes
    event: SseEvent | None
    """None for comments."""


class SseParser:
    """Incremental parser: bytes in, blocks out. max_block: bytes of one block."""

    def __init__(self, max_block: int = MAX_BLOCK) -> None:
        self._max_block = max_block
        self._kept = bytearray()  # a block that is not complete
        self._started = False
        self._first = True  # no block was parsed yet
        self.oversized = False
        """A block exceeded max_block, or `stop` was called. Later bytes are returned unparsed."""

    def feed(self, data: bytes) -> list[SseBlock]:
        """Return the blocks that these bytes complete."""
        if self.oversized:
            return [SseBlock(data, None)] if data else []
        found: list[SseBlock] = []
        kept = len(self._kept)
        if kept >= LOOK_BACK and not BLANK.search(bytes(self._kept[-LOOK_BACK:]) + data):
            self._kept += data  # a long block in many pieces: copying all of it each time would take quadratic time
        else:
            buffer = bytes(self._kept) + data if kept else data
            if not self._started and len(buffer) < len(BOM) and BOM.startswith(buffer):
                self._kept[:] = buffer
                return []
            self._started = True
            start, searched = 0, max(0, kept - LOOK_BACK)
            block_end = plain_block_end if b"\r" not in buffer else any_block_end
            while (end := block_end(buffer, start, searched)) is not None:
                found.append(parse_block(buffer[start:end], self._first))
                self._first = False
                start, searched = end, 0
            if kept or start < len(buffer):
                self._kept[:] = buffer[start:]
        if len(self._kept) > self._max_block:
            found += self.stop()
        return found

    def stop(self) -> list[SseBlock]:
        """Return what followed the last blank line, unparsed, and parse no more."""
        self.oversized = True
        rest = bytes(self._kept)
        self._kept.clear()
        return [SseBlock(rest, None)] if rest else []

    def close(self) -> list[SseBlock]:
        """Return what followed the last blank line, at the end of the stream."""
        buffer = bytes(self._kept)
        self._kept.clear()
        return [parse_block(buffer, self._first)] if buffer else []


def any_block_end(buffer: bytes, start: int, searched: int) -> int | None:
    """Return the end of the block at `start`, or None if it is not complete. No end is before `searched`."""
    first = buffer[start : start + 2]
    if first[:1] == b"\n" or first == b"\r\n":
        return start + len(first.partition(b"\n")[0]) + 1
    if len(first) == 2 and first[:1] == b"\r":
        return start + 1
    match = BLANK.search(buffer, start + searched)
    return match.end() if match else None


def plain_block_end(buffer: bytes, start: int, searched: int) -> int | None:
    """Return the same for a buffer in which every line ends with a line feed, in a quarter of the time."""
    if buffer.startswith(b"\n", start):
        return start + 1
    end = buffer.find(b"\n\n", start + searched)
    return end + 2 if end >= 0 else None


def parse_block(raw: bytes, first: bool) -> SseBlock:
    """Parse the lines of one block. Only the first of a stream may begin with a byte order mark."""
    if raw.startswith(b"data: ") and raw.find(b"\n") == len(raw) - 2 and b"\r" not in raw:  # one line: most blocks
        return SseBlock(raw, SseEvent(raw[6:-2].decode("utf-8", "surrogateescape")))
    data: list[str] = []
    event, id_, retry = "", None, None
    for line in LINES.split((raw.removeprefix(BOM) if first else raw).decode("utf-8", "surrogateescape")):
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
    return SseBlock(raw, SseEvent("\n".join(data), event, id_, retry) if data else None)


def serialise(event: SseEvent) -> bytes:
    """Return the bytes of an event. Parsing them returns an equal event."""
    lines = []
    if event.event:
        lines.append(f"event: {event.event}")
    if event.id is not None:
        lines.append(f"id: {event.id}")
    if event.retry is not None:
        lines.append(f"retry: {event.retry}")
    lines += [f"data: {line}" for line in LINES.split(event.data)]
    return "\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")


def blocks(stream: bytes) -> list[SseBlock]:
    """Return the blocks of a whole stream."""
    parser = SseParser()
    return parser.feed(stream) + parser.close()


def split_blocks(stream: bytes) -> list[bytes]:
    """Return the bytes of the blocks of a whole stream. Without unusual line ends this takes a tenth of `blocks`."""
    if b"\r" in stream or b"\n\n\n" in stream or stream[:1] == b"\n":
        return [block.raw for block in blocks(stream)]
    *found, rest = stream.split(b"\n\n")
    found = [raw + b"\n\n" for raw in found]
    return [*found, rest] if rest else found


def events(stream: bytes) -> list[SseEvent]:
    """Return the events of a whole stream."""
    return [block.event for block in blocks(stream) if block.event]
