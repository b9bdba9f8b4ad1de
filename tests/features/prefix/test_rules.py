"""The learned rule: the lowest of the expected bills in the docstring of rules.py, and where it places its marks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from knapcache.features.prefix.provider_cache import CachedPrefix, Mark, PrefixCache
from knapcache.features.prefix.request import Position, PrefixRequest
from knapcache.features.prefix.rules import choose, learned
from knapcache.features.prefix.tariff import ANTHROPIC

SHORT, LONG = ANTHROPIC.short, ANTHROPIC.long
POSITIONS = [Position("tiny", 500), Position("system", 2000), Position("before", 4000), Position("end", 5000)]


def curve(short: float, long: float) -> Any:
    """Return a curve of the probability of a continuation within the shorter and the longer time to live."""
    return SimpleNamespace(within=lambda seconds: long if seconds >= LONG else short, ever=max(short, long))


# Of 1,000 tokens without a cached part. A short mark costs 250 more, and saves 1,150 with each continuation that it
# reaches. A long one costs 750 more than that.
@pytest.mark.parametrize(
    ("short", "long", "chosen"),
    [
        (0.0, 0.0, 0.0), (0.217, 0.217, 0.0), (0.218, 0.218, SHORT), (0.218, 0.869, SHORT), (0.218, 0.871, LONG),
        (0.0, 0.869, 0.0), (0.0, 0.870, LONG),
    ],
)  # fmt: skip
def test_a_new_prefix_is_written_if_that_is_expected_to_pay(short: float, long: float, chosen: float) -> None:
    assert choose(ANTHROPIC, curve(short, long), 1000, None, long=True, upgrades=True) == chosen
    only_short = choose(ANTHROPIC, curve(short, long), 1000, None, long=False, upgrades=True)
    assert only_short == (SHORT if short > 0.2174 else 0.0)


# Of the 1,000 tokens, 800 are cached. A short mark costs 50 more and saves 230, a long one 150 more than that, and
# keeps all 1,000 for the longer time.
@pytest.mark.parametrize(
    ("short", "long", "chosen"),
    [(0.217, 0.217, 0.0), (0.218, 0.218, SHORT), (0.218, 0.348, SHORT), (0.218, 0.349, LONG), (0.0, 0.18, LONG)],
)
def test_a_cached_part_is_kept(short: float, long: float, chosen: float) -> None:
    cached = CachedPrefix(800, SHORT, 0.0)
    assert choose(ANTHROPIC, curve(short, long), 1000, cached, long=True, upgrades=True) == chosen
    without = choose(ANTHROPIC, curve(short, long), 1000, cached, long=True, upgrades=False)
    assert without == (SHORT if short > 0.2174 else 0.0), "a long mark behind a short prefix would not live longer"


@pytest.mark.parametrize(
    ("short", "long", "chosen"),
    [(0.217, 0.217, 0.0), (0.218, 0.869, SHORT), (0.218, 0.871, LONG), (0.0, 0.869, 0.0), (0.0, 0.870, LONG)],
)
def test_a_part_that_is_cached_for_long_can_be_continued_for_long(short: float, long: float, chosen: float) -> None:
    cached = CachedPrefix(800, LONG, 0.0)
    assert choose(ANTHROPIC, curve(short, long), 1000, cached, long=True, upgrades=False) == chosen


def test_a_prefix_that_is_written_anyway_is_free() -> None:
    assert choose(ANTHROPIC, curve(0.001, 0.001), 1000, None, long=True, upgrades=True, paid=SHORT) == SHORT
    assert choose(ANTHROPIC, curve(0.0, 0.0), 1000, None, long=True, upgrades=True, paid=SHORT) == 0.0


def placed(
    cache: PrefixCache, *, at: int, returns: Any, system: Any = None, prompt: int = 1, minimum: int = 1024
) -> list[Mark]:
    request = PrefixRequest(100.0, POSITIONS, 5000, prompt, "text", minimum)
    continues: Any = SimpleNamespace(at=at, returns=returns, system=system)
    return learned(long=True)(ANTHROPIC, request, continues, cache)


@pytest.mark.parametrize(
    ("at", "returns", "system", "expected"),
    [
        (-1, curve(0.0, 0.0), None, []),
        (-1, curve(0.0, 0.0), curve(0.5, 0.5), [Mark(1, SHORT)]),
        (-1, curve(0.0, 0.0), curve(0.0, 1.0), [Mark(1, LONG)]),
        (-1, curve(0.5, 0.5), None, [Mark(1, SHORT), Mark(3, SHORT)]),
        (-1, curve(0.5, 0.5), curve(0.0, 1.0), [Mark(1, LONG), Mark(3, SHORT)]),
        (2, curve(0.5, 0.5), None, [Mark(1, SHORT), Mark(2, SHORT), Mark(3, SHORT)]),
        (2, curve(0.0, 1.0), None, [Mark(1, LONG), Mark(2, LONG), Mark(3, LONG)]),
    ],
)
def test_marks_are_at_the_system_prompt_the_continued_request_and_the_end(
    at: int, returns: Any, system: Any, expected: list[Mark]
) -> None:
    assert placed(PrefixCache(ANTHROPIC, upgrades=True), at=at, returns=returns, system=system) == expected


def test_what_is_cached_is_marked_so_that_it_is_read() -> None:
    cache = PrefixCache(ANTHROPIC, upgrades=True)
    cache.insert(POSITIONS[2], SHORT, 50.0)
    assert placed(cache, at=2, returns=curve(0.0, 0.0)) == [Mark(1, SHORT), Mark(2, SHORT)]
    assert placed(cache, at=2, returns=curve(0.0, 0.0), prompt=-1) == [Mark(2, SHORT)]
    longer = [Mark(1, LONG), Mark(2, LONG), Mark(3, LONG)]
    assert placed(cache, at=2, returns=curve(0.0, 1.0)) == longer, "a longer time must not follow a shorter one"
    cache.insert(POSITIONS[3], SHORT, 50.0)
    assert placed(cache, at=2, returns=curve(0.0, 1.0)) == [Mark(1, LONG), Mark(3, SHORT)], "nothing new is written"


def test_prefixes_below_the_minimum_have_no_mark() -> None:
    cache = PrefixCache(ANTHROPIC, upgrades=True)
    assert placed(cache, at=0, returns=curve(0.5, 0.5), prompt=-1) == [Mark(3, SHORT)]
    assert placed(cache, at=-1, returns=curve(0.5, 0.5), minimum=5000) == [Mark(3, SHORT)]
    assert placed(cache, at=-1, returns=curve(0.5, 0.5), minimum=5001) == []
    cache.insert(POSITIONS[0], SHORT, 50.0)
    assert placed(cache, at=0, returns=curve(0.0, 0.0), prompt=-1) == []
