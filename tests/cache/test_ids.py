"""The table of ids: keys are found, recycled and loaded as in a dict; the clock hand."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache.cache import ids
from knapcache.cache.key_array import KeyArray
from knapcache.policy import registry
from knapcache.store.base import Entry
from knapcache.store.memory import MemoryStore


def key_of(k: int) -> bytes:
    """Return a key. Those of every eight numbers have the same hash."""
    return hashlib.sha256(b"%d" % (k // 8)).digest()[:8] + b"%024d" % k


def table_of(n: int) -> ids.IdTable:
    policy = registry.find("fifo").build(n, n)
    policy.compiled = False
    return ids.IdTable(policy)


@given(st.lists(st.integers(0, 60), max_size=120), st.sampled_from([1, 3, 16]), st.sampled_from([2, ids.RECENT]))
def test_keys_are_found_as_in_a_dict(numbers: list[int], n: int, recent: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids, "RECENT", recent)
        patch.setattr(ids, "FEW_IDS", 2)
        table, expected = table_of(n), dict[bytes, int]()
        for k in numbers:
            key = key_of(k)
            assert table.find(key) == expected.get(key, -1)
            if key not in expected:
                i, recycled, evicted = table.intern(key)
                assert evicted is None, "nothing is resident"
                assert recycled == (len(expected) == n)
                expected = {other: j for other, j in expected.items() if j != i} | {key: i}
        keys = KeyArray.of(map(key_of, range(61)))
        assert table.find_many(keys).tolist() == [expected.get(key, -1) for key in keys]
        assert {key: i for i, key in enumerate(table.keys)} == expected
        assert all(table.holds(i, key) and table.key(i) == key for key, i in expected.items())
        assert [table.find(key) for key in keys] == [expected.get(key, -1) for key in keys]


def test_a_loaded_table_is_that_of_its_keys() -> None:
    keys = KeyArray.of(map(key_of, range(1000)))
    table = table_of(1000)
    table.intern(key_of(2000))
    table.load(keys)
    assert [table.find(key) for key in keys] == list(range(1000))
    assert table.find_many(keys).tolist() == list(range(1000))
    assert (table.find(key_of(2000)), len(table)) == (-1, 1000)
    i, recycled, _ = table.intern(key_of(2000))
    assert (recycled, table.find(key_of(2000)), table.find(keys[i])) == (True, i, -1)
    assert not any(table.holds(j, keys[i]) for j in range(-1, 1001))


def test_a_key_that_occurs_twice_is_noticed() -> None:
    rows = np.zeros((3, 32), np.uint8)
    rows[1, 31] = 1  # the first bytes are equal
    assert KeyArray(rows[:2]).distinct
    assert not KeyArray(rows).distinct


@pytest.mark.parametrize("free", [None, 0, ids.MAX_STEPS - 1, ids.MAX_STEPS])
def test_a_new_key_passes_a_limited_number_of_ids(free: int | None) -> None:
    n = 2 * ids.MAX_STEPS
    policy = registry.find("fifo").build(n, n)
    policy.compiled = False
    for i in range(n):
        policy.settle(i, 1, 1.0)
    if free is not None:
        policy.forget(free)
    table = ids.IdTable(policy)
    table.load(KeyArray.of(map(key_of, range(n))))
    within = free is not None and free < ids.MAX_STEPS
    expected = free if within else ids.MAX_STEPS
    assert table.intern(key_of(n)) == (expected, True, None if within else key_of(ids.MAX_STEPS))
    policy.check()


def test_a_store_of_small_entries_has_an_id_for_each() -> None:
    """Entries in memory take at least 800 bytes, so more of them fit than one for each 1024 bytes."""
    store = MemoryStore(400 << 20)
    smallest = store.entry_size(Entry(bytes(32), "", "", 0, 0.0, 0.0, 0.0, None, {}, b"", b""))
    assert ids.table_size(store) > store.capacity // smallest
    assert ids.table_size(MemoryStore(64 << 10)) == ids.MIN_IDS
    assert ids.table_size(MemoryStore(64 << 30)) == ids.MAX_IDS
