"""What is kept in memory besides: never more than its room, never what has changed."""

from __future__ import annotations

import random

import pytest

from knapcache.store.contract import Entry
from knapcache.store.hot import Hot
from knapcache.store.memory import OVERHEAD, MemoryStore

from .helpers import entry_of

STORE = MemoryStore(1 << 20)


def entry(name: object, n: int = 0) -> Entry:
    return entry_of(STORE, name, n)


def test_what_was_changed_while_it_was_read_is_not_let_in() -> None:
    hot = Hot(1 << 20)
    stamp = hot.stamp  # a reader begins …
    hot.discard([entry("a").key])  # … the entry is evicted …
    hot.add(entry("a"), stamp)  # … and the reader comes back with it.
    assert hot.get(entry("a").key) is None
    hot.add(entry("a"), hot.stamp)
    assert hot.get(entry("a").key) == entry("a")
    hot.clear()
    assert hot.get(entry("a").key) is None


@pytest.mark.parametrize("room", [0, 4000, 20_000])
def test_room_is_kept_to_and_the_used_stay(room: int) -> None:
    hot = Hot(room)
    rng = random.Random(0)
    popular = entry("popular")
    hot.add(popular, hot.stamp)
    for name in range(300):
        hot.add(entry(name, rng.randrange(1500)), hot.stamp)
        if rng.random() < 0.3:
            hot.discard([entry(rng.randrange(name + 1)).key])
        assert (hot.get(popular.key) == popular) == (room >= 4000)
        young, old = hot._young.values(), hot._old.values()
        assert sum(e.size for e in young) == hot._size <= room // 2
        assert sum(e.size for e in old) <= room // 2
    assert OVERHEAD < popular.size <= 2000
