"""Server-sent events survive a round trip however the bytes are split, and no input breaks the parser."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache.wire import sse
from knapcache.wire.sse import SseBlock, SseEvent, SseParser

line = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=30)
event = st.builds(
    SseEvent,
    data=st.lists(line, min_size=1, max_size=4).map("\n".join),
    event=line,
    id=st.none() | line.filter(lambda text: "\0" not in text),
    retry=st.none() | st.integers(0, 10**6),
)


def parse(pieces: list[bytes]) -> list[SseBlock]:
    parser = SseParser()
    return [block for piece in pieces for block in parser.feed(piece)] + parser.close()


def split(data: st.DataObject, stream: bytes) -> list[bytes]:
    places = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    return [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]


@given(st.lists(event, max_size=6), st.data())
def test_events_survive_a_round_trip_however_they_are_split(events: list[SseEvent], data: st.DataObject) -> None:
    stream = b"".join(map(sse.serialise, events))
    found = parse(split(data, stream))
    assert [block.event for block in found] == events
    assert b"".join(block.raw for block in found) == stream


PARTS = [b"data: x", b"data", b":c", b"event: e", b"\r", b"\n", b"\r\n", b"\xff", b" "]


@given(st.lists(st.sampled_from(PARTS)), st.data())
def test_blocks_do_not_depend_on_splits_and_no_byte_is_lost(parts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(parts)
    found = parse(split(data, stream))
    assert b"".join(block.raw for block in found) == stream
    assert [b for b in found if b.event] == [b for b in sse.blocks(stream) if b.event]


@given(st.binary(max_size=200), st.data())
def test_any_bytes_are_parsed(stream: bytes, data: st.DataObject) -> None:
    assert b"".join(block.raw for block in parse(split(data, stream))) == stream


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_end_of_line_in_the_standard(end: bytes) -> None:
    stream = end.join([b"event: a", b"data: 1", b"data:2", b"", b": only a comment", b"", b"data: 3", b"", b""])
    assert sse.events(stream) == [SseEvent("1\n2", "a"), SseEvent("3")]


def test_a_byte_order_mark_and_unknown_fields_are_skipped() -> None:
    assert sse.events(b"\xef\xbb\xbfdata: 1\nsurprise: 2\nretry: soon\nid: 7\n\n") == [SseEvent("1", "", "7")]


def test_a_byte_order_mark_later_in_the_stream_is_part_of_a_name() -> None:
    assert sse.events(b"data: 1\n\n\xef\xbb\xbfdata: 2\n\ndata: 3\n\n") == [SseEvent("1"), SseEvent("3")]


def test_a_last_event_without_its_blank_line_is_parsed() -> None:
    assert sse.events(b"data: 1\n\ndata: [DONE]") == [SseEvent("1"), SseEvent("[DONE]")]


def test_an_endless_block_does_not_fill_the_memory() -> None:
    parser = SseParser(max_block=100)
    passed = b"".join(block.raw for _ in range(50) for block in parser.feed(b"data: 123456789"))
    assert parser.oversized
    assert passed == b"data: 123456789" * 50
    assert parser.feed(b"\n\ndata: 1\n\n")[0].event is None


def test_invalid_utf8_is_preserved() -> None:
    raw = b'data: {"a": "\xff"}\n\n'
    (block,) = sse.blocks(raw)
    assert block.event
    assert sse.serialise(block.event) == raw
