"""Fuzzer of the parser of server-sent events: any split of the bytes gives the events of the reference.

The reference is a transcription of the standard's rules, line by line, for the whole stream. Two differences are by
design: what follows the last blank line is an event too, and `retry` has at most nine digits.
"""

from __future__ import annotations

import re

from knapcache.wire import sse
from knapcache.wire.sse import SseEvent, SseParser
from tests.support.fuzzing import Mutator, Progress, no_progress, pieces

SMALL_BLOCK = 40
CORPUS = (
    b'data: {"id":"c","choices":[{"delta":{"content":"Hi"}}]}\n\ndata: [DONE]\n\n',
    b'event: message_start\ndata: {"type":"message_start"}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n',
    b"\xef\xbb\xbfdata: a\r\n\r\n: keep-alive\r\n\r\ndata:b\r\ndata: c\r\n\r\n",
    b"id: 7\nretry: 100\ndata: x\n\nid\ndata\n\ndata:\n\n",
    b"data: a\r\rdata: b\r\revent: e\rdata: c\r\r",
    b": only a comment\n\n\n\n\ndata: 1\n\n\ndata: 2",
    b"data: caf\xc3\xa9 \xff\xfe\n\ndata:  two blanks\n\n",
    b"data: 1\n\n\xef\xbb\xbfdata: 2\n\n",
    b"",
)
TOKENS = (
    *(
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"\r\r",
        b"\r\n\r\n",
        b"\n\r",
        b"data",
        b"data:",
        b"data: ",
        b":",
        b" ",
        b"\xef\xbb",
    ),
    *(b"event: e\n", b"id: 1\n", b"id: \0\n", b"retry: 5\n", b"retry: 99999999999\n", b"retry: -1\n", b"\xef\xbb\xbf"),
    *(
        b"\0",
        b"\x85",
        b"\xe2\x80\xa8",
        b"\x0b",
        b"\x0c",
        b"\x1c",
        b"\xff",
        b"[DONE]",
        b"data: [DONE]\n\n",
        b"dat",
        b"\xc2\x85",
    ),
)


def reference(stream: bytes) -> list[SseEvent]:
    """Return the events of a stream, by the rules of the standard."""
    text = stream.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    lines = re.split("\r\n|\n|\r", text)
    found: list[SseEvent] = []
    data: list[str] = []
    event, id_, retry = "", None, None
    for line in [*lines, ""]:  # the end of the stream dispatches, too
        if line == "":
            if data:
                found.append(SseEvent("\n".join(data), event, id_, retry))
            data, event, id_, retry = [], "", None, None
            continue
        name, colon, value = line.partition(":")
        if colon and value.startswith(" "):
            value = value[1:]
        if name == "data":
            data.append(value)
        elif name == "event":
            event = value
        elif name == "id":
            id_ = id_ if "\0" in value else value
        elif name == "retry" and re.fullmatch("[0-9]{1,9}", value):
            retry = int(value)
    return found


def fuzz_sse(cases: int, seed: int, progress: Progress = no_progress) -> dict[str, int]:
    """Return how many streams and events were compared, and how many blocks were too large."""
    mutator = Mutator(CORPUS, TOKENS, seed)
    counts = {"cases": cases, "events": 0, "oversized": 0}
    for number, stream in enumerate(mutator.cases(cases), 1):
        parts = pieces(mutator.rng, stream)
        try:
            counts["events"] += compare(stream, parts)
            if number % 10 == 0:
                counts["oversized"] += bounded(stream * 4, pieces(mutator.rng, stream * 4))
        except Exception as error:
            raise AssertionError(f"case {number} of seed {seed}: {parts!r}") from error
        if number % 500 == 0:
            progress(number)
    return counts


def compare(stream: bytes, parts: list[bytes]) -> int:
    """Return the number of events."""
    parser = SseParser()
    blocks = [block for part in parts for block in parser.feed(part)] + parser.close()
    assert b"".join(block.raw for block in blocks) == stream, "bytes were lost or added"
    found, expected = [block.event for block in blocks if block.event], reference(stream)
    assert found == expected, f"{found} instead of {expected}"
    assert sse.events(stream) == expected
    return len(expected)


def bounded(stream: bytes, parts: list[bytes]) -> int:
    """Return whether a block was too large; what is held back is never longer than the limit."""
    parser, passed, fed = SseParser(SMALL_BLOCK), b"", 0
    for part in parts:
        passed += b"".join(block.raw for block in parser.feed(part))
        fed += len(part)
        assert fed - len(passed) <= SMALL_BLOCK, "too many bytes are held back"
    passed += b"".join(block.raw for block in parser.close())
    assert passed == stream
    return parser.oversized
