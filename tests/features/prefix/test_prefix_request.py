"""The lengths of prefixes: estimated by bytes, corrected by what the provider has counted, and bounded in number."""

from __future__ import annotations

import pytest

from knapcache.features.prefix import request as subject
from knapcache.features.prefix.blocks import BodyBlocks
from knapcache.features.prefix.request import FIRST_RATIO, WEIGHT, Position, PrefixLengths, PrefixRequest


def blocks(*sizes: int, marks: tuple[tuple[int, float], ...] = ()) -> BodyBlocks:
    """Return blocks with the ids 1, 2, … that end at these bytes."""
    ids = list(range(1, len(sizes) + 1))
    return BodyBlocks(ids, list(sizes), [True] * len(sizes), 1, "text", marks, bool(marks))


FIRST = blocks(400, 800, 1200, 2000)
LONGER = blocks(400, 800, 1200, 2000, 3000)


def known() -> PrefixLengths:
    """Return lengths after a first request to a model with half a token per byte."""
    lengths = PrefixLengths()
    lengths.correct(lengths.request(FIRST, 2, 0, "m", 1024, 5.0), 2000, 1000, "m")
    return lengths


def test_the_first_lengths_are_those_of_an_average_text() -> None:
    request = PrefixLengths().request(FIRST, 2, 0, "m", 1024, 5.0)
    assert FIRST_RATIO == 0.25
    assert request == PrefixRequest(5.0, [Position(1, 100, 0), Position(3, 300, 2)], 500, 0, "text", 1024)
    alone = PrefixLengths().request(FIRST, 3, -1, "m", 1024, 5.0)
    assert (alone.positions, alone.tokens, alone.system) == ([Position(4, 500, 3)], 500, -1)


def test_blocks_with_marks_are_positions() -> None:
    marked = FIRST._replace(marks=((1, 300.0), (2, 300.0)))
    request = PrefixLengths().request(marked, 2, -1, "m", 1024, 5.0)
    assert (request.positions, request.system) == ([Position(2, 200, 1), Position(3, 300, 2)], -1)


def test_a_report_corrects_the_lengths_of_its_request_and_of_later_ones() -> None:
    lengths = PrefixLengths()
    first = lengths.request(FIRST, 2, 0, "m", 1024, 5.0)
    corrected = lengths.correct(first, 2000, 1000, "m")
    assert corrected == first._replace(positions=[Position(1, 200, 0), Position(3, 600, 2)], tokens=1000)
    second = lengths.request(LONGER, 4, 0, "m", 1024, 6.0)
    assert second.positions == [Position(1, 200, 0), Position(3, 600, 2), Position(5, 1500, 4)]
    assert lengths.correct(second, 3000, 1700, "m").positions[1:] == [Position(3, 600, 2), Position(5, 1700, 4)]
    ratio = (1.0 - WEIGHT) * 0.5 + WEIGHT * 1700 / 3000
    other = lengths.request(BodyBlocks([9], [8000], [True], 0, "text", (), False), 0, -1, "m", 1024, 7.0)
    assert other.tokens == round(8000 * ratio)
    assert lengths.request(FIRST, 3, -1, "another model", 1024, 8.0).tokens == 600 + 800 * FIRST_RATIO


def test_a_report_below_a_known_length_shortens_it() -> None:
    lengths = known()
    second = lengths.request(LONGER, 4, 0, "m", 1024, 6.0)
    assert [each.tokens for each in lengths.correct(second, 3000, 500, "m").positions] == [200, 500, 500]


def test_without_a_report_prefixes_are_known_and_their_lengths_are_not() -> None:
    lengths = PrefixLengths()
    first = lengths.request(FIRST, 2, 0, "m", 1024, 5.0)
    assert lengths.correct(first, 2000, 0, "m") is first
    assert lengths.request(LONGER, 4, -1, "m", 1024, 6.0).positions == [
        Position(1, 100, 0), Position(3, 300, 2), Position(5, 750, 4),
    ]  # fmt: skip


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_RATIOS", 1)
    monkeypatch.setattr(subject, "MAX_KNOWN", 2)
    lengths = known()
    lengths.correct(lengths.request(blocks(400), 0, -1, "other", 1024, 6.0), 400, 400, "other")
    assert (lengths._ratios, lengths._known) == ({"m": 0.5}, {3: 600, 1: 400})
    lengths.correct(lengths.request(LONGER, 4, -1, "m", 1024, 7.0), 3000, 1500, "m")
    assert lengths._ratios == {"m": 0.5}
    assert list(lengths._known) == [3, 5]
