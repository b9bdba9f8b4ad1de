"""Requests of imported entries: evenly distributed, and counted at the end of an import."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from knapcache.cache.entry_index import IMPORTED
from knapcache.cache.imported import MAX_REQUESTS, ImportedRequests, evenly
from tests.support.caches import CHAT, Upstream, admission_of, request_of, small_cache, store_of


def test_requests_are_evenly_distributed() -> None:
    counts = {b"a": 100, b"b": 50, b"c": 50, b"d": 1}
    found = list(evenly(counts))
    assert Counter(found) == counts
    for key, count in counts.items():
        places = [place for place, each in enumerate(found) if each == key]
        gaps = [second - first for first, second in pairwise(places)]
        assert all(0.4 * len(found) <= gap * count <= 2 * len(found) for gap in gaps), (key, gaps)
    assert list(evenly({})) == []


def test_requests_are_counted_when_no_entry_was_added_in_a_round() -> None:
    cache, upstream = small_cache(policy="gdsf-cost"), Upstream()
    for k in range(3):
        cache.fetch(CHAT, request_of(k), upstream(k))
    entries = [entry for info in store_of(cache).scan() if (entry := store_of(cache).get(info.key)) is not None]
    assert len(entries) == 3
    waiting = ImportedRequests(admission_of(cache))

    def counted() -> list[float]:
        return sorted(row.requests for row in cache.entries().rows)

    for entry, requests in zip(entries, (1, 5, 10 * MAX_REQUESTS), strict=True):
        waiting.add(entry._replace(meta={**entry.meta, IMPORTED: requests}))
        waiting.end_round()
    assert counted() == [1, 1, 1], "more entries may follow"
    waiting.end_round()
    assert counted() == [1, 5, MAX_REQUESTS]
    waiting.end_round()
    assert counted() == [1, 5, MAX_REQUESTS]
    cache.check()
