"""Events: written and read is the same, however the bytes are cut; nothing a server sends makes the parser fail."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache.wire import sse
from knapcache.wire.sse import Event, Parser

line = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=30)
event = st.builds(
    Event,
    data=st.lists(line, min_size=1, max_size=4).map("\n".join),
    event=line,
    id=st.none() | line.filter(lambda text: "\0" not in text),
    retry=st.none() | st.integers(0, 10**6),
)


def fed(pieces: list[bytes]) -> list[sse.Block]:
    parser = Parser()
    return [block for piece in pieces for block in parser.feed(piece)] + parser.close()


def cut(data: st.DataObject, stream: bytes) -> list[bytes]:
    places = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    return [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]


@given(st.lists(event, max_size=6), st.data())
def test_what_is_written_is_read_however_it_is_cut(given_events: list[Event], data: st.DataObject) -> None:
    stream = b"".join(map(sse.serialise, given_events))
    found = fed(cut(data, stream))
    assert [block.event for block in found] == given_events
    assert b"".join(block.raw for block in found) == stream


PARTS = [b"data: x", b"data", b":c", b"event: e", b"\r", b"\n", b"\r\n", b"\xff", b" "]


@given(st.lists(st.sampled_from(PARTS)), st.data())
def test_cuts_never_matter_and_no_byte_is_lost(parts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(parts)
    found = fed(cut(data, stream))
    assert b"".join(block.raw for block in found) == stream
    assert [b for b in found if b.event] == [b for b in sse.blocks(stream) if b.event]


@given(st.binary(max_size=200), st.data())
def test_any_bytes_are_survived(stream: bytes, data: st.DataObject) -> None:
    assert b"".join(block.raw for block in fed(cut(data, stream))) == stream


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_end_of_line_of_the_standard(end: bytes) -> None:
    stream = end.join([b"event: a", b"data: 1", b"data:2", b"", b": only a comment", b"", b"data: 3", b"", b""])
    assert sse.events(stream) == [Event("1\n2", "a"), Event("3")]


def test_a_byte_order_mark_and_unknown_fields_are_skipped() -> None:
    assert sse.events(b"\xef\xbb\xbfdata: 1\nsurprise: 2\nretry: soon\nid: 7\n\n") == [Event("1", "", "7")]


def test_a_last_event_without_its_blank_line_is_read() -> None:
    assert sse.events(b"data: 1\n\ndata: [DONE]") == [Event("1"), Event("[DONE]")]


def test_a_block_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "LARGEST", 100)
    parser = Parser()
    passed = b"".join(block.raw for _ in range(50) for block in parser.feed(b"data: 123456789"))
    assert parser.broken
    assert passed == b"data: 123456789" * 50
    assert parser.feed(b"\n\ndata: 1\n\n")[0].event is None


def test_bytes_that_are_no_text_are_kept_as_they_are_and_are_no_json() -> None:
    raw = b'data: {"a": "\xff"}\n\n'
    (block,) = sse.blocks(raw)
    assert block.event
    assert sse.serialise(block.event) == raw
