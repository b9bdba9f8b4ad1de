"""What an entry takes in memory is what it is charged."""

from __future__ import annotations

import tracemalloc
from types import MappingProxyType

from knapcache.store.memory import MemoryStore
from tests.support.stores import content, entry_of


def test_an_entry_takes_no_more_than_its_charge() -> None:
    store = MemoryStore(64 << 20)
    meta = {"usage": {"prompt": 10_001, "completion": 20_002}, "finish": "stop", "tags": ["a", "b"]}
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for name in range(2000):
            store.apply(entry_of(store, name, 100, tenant=f"tenant {name}", model=f"model {name}", meta=meta))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    charged = store.totals().size
    assert 0.4 * charged < taken <= charged


def test_nobody_can_change_what_is_kept() -> None:
    store = MemoryStore(1 << 20)
    meta = {"n": 5, "version": 0}
    entry = entry_of(store, "a", 5, meta=meta)
    store.apply(entry)
    meta["n"] = 6
    kept = store.get(entry.key)
    assert kept is not None
    assert isinstance(kept.meta, MappingProxyType)
    assert kept.meta["n"] == 5
    assert kept.payload == content(("a", 0), 5)
