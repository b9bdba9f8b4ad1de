"""A flood of keys that never return: the hot set stays, and what the cache remembers is bounded."""

from __future__ import annotations

from tests.support.flood import flood_cache


def test_a_flood_leaves_the_hot_set() -> None:
    assert flood_cache(8000, 16_000, 5000)["hit_rate_in_flood_percent"] > 40
