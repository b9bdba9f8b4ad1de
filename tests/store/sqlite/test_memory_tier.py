"""What is kept in memory besides: never more than its room, never what has changed."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from knapcache.store.base import Entry
from knapcache.store.memory import OVERHEAD, MemoryStore
from knapcache.store.sqlite.memory_tier import MemoryTier
from knapcache.store.sqlite.store import SqliteStore
from tests.support.stores import entry_of, key_of

STORE = MemoryStore(1 << 20)


def entry(name: object, n: int = 0) -> Entry:
    return entry_of(STORE, name, n)


def test_what_was_changed_while_it_was_read_is_not_let_in() -> None:
    hot = MemoryTier(1 << 20)
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
    hot = MemoryTier(room)
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


class Meddled(dict[bytes, Any]):
    """A dict in which something happens right after one of the looks."""

    def then(self, what: Any, after: int = 1) -> Meddled:
        self.what, self.after = what, after
        return self

    def get(self, key: bytes, default: Any = None) -> Any:
        found = super().get(key, default)
        self.after -= 1
        if self.after == 0:
            self.what()
        return found


def test_what_was_changed_while_it_grew_young_again_is_not_let_in() -> None:
    hot = MemoryTier(1 << 20)
    popular = entry("popular")
    hot._old = Meddled({popular.key: popular}).then(lambda: hot.discard([popular.key]))
    assert hot.get(popular.key) == popular  # as it was when the look began
    assert hot.get(popular.key) is None


@pytest.mark.parametrize("evicted", [True, False])
def test_what_was_changed_between_two_looks_is_not_let_in(tmp_path: Path, evicted: bool) -> None:
    """A reader looks at what is on its way; a change sets out and is held up; the reader reads the file."""
    with SqliteStore(tmp_path / "answers.db", 1 << 20) as store:
        writer = store._writer
        assert writer
        older, newer = entry_of(store, "a"), entry_of(store, "a", version=1)
        store.apply(older).result()
        held, commit = threading.Event(), writer._commit
        writer._commit = lambda batch: (held.wait(10), commit(batch))  # type: ignore[assignment]
        writer.pending = Meddled(writer.pending).then(
            lambda: store.apply(None if evicted else newer, [older.key] if evicted else []),
            after=2,  # the first is for those who would not wait for the file
        )
        assert store.get(key_of("a")) == older  # the change came after the look began
        assert store.get(key_of("a")) == (None if evicted else newer)
        held.set()
        store.flush()
        assert store.get(key_of("a")) == (None if evicted else newer)
