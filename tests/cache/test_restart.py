"""Snapshots and restarts: a reopened cache has its entries and the policy's state."""

from __future__ import annotations

import hashlib
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.lib.recfunctions as rfn
import orjson
import pytest

from knapcache import Cache
from knapcache.cache.admission import AdmissionController
from knapcache.cache.entry_index import EntryIndex
from knapcache.cache.ids import IdTable
from knapcache.cache.key_array import KeyArray
from knapcache.cache.ledger import Ledger
from knapcache.cache.restore import open_store
from knapcache.cache.snapshot import copy_state, pack, unpack
from knapcache.kernel import COMPILED
from knapcache.policy import registry
from knapcache.policy.base import Policy
from knapcache.store.base import EntryInfo
from knapcache.store.sqlite.store import SqliteStore
from tests.support.caches import CHAT, Upstream, admission_of, request_of, residents, small_cache, store_of

ROUNDS = 3000 if COMPILED else 300


def keys_of(many: int) -> KeyArray:
    return KeyArray.of(hashlib.sha256(b"%d" % k).digest() for k in range(many))


def trained(name: str, ids: int = 500, capacity: int = 100_000, rounds: int = ROUNDS, seed: int = 0) -> Policy:
    """Return a policy that has seen requests."""
    policy = registry.find(name).build(capacity, ids)
    run(policy, rounds, seed)
    return policy


def run(policy: Policy, rounds: int, seed: int) -> list[tuple[bool, Any]]:
    """Send requests to a policy. Return its decisions."""
    rng = np.random.default_rng(seed)
    seen: list[tuple[bool, Any]] = []
    for i in (rng.zipf(1.3, rounds) % policy.ids).tolist():
        hit = policy.arrive(i)
        seen.append((hit, None if hit else policy.settle(i, 500 + 37 * (i % 90), 1.0 + i % 7)))
    return seen


def unpacked_keys(name: str, policy: Policy, packed: bytes) -> list[bytes]:
    """Load a snapshot into a policy. Return its keys."""
    saved = unpack(name, policy, packed)
    assert saved is not None
    return list(saved.keys)


@pytest.mark.parametrize("name", ["adaptive", "lru", "gdsf-cost", "s3-fifo", "camp"])
def test_a_restored_policy_decides_the_same(name: str) -> None:
    old = trained(name)
    state = copy_state(old, keys_of(old.ids))
    packed = pack(name, old, state, 10**9)
    assert packed is not None
    new = registry.find(name).build(old.capacity, old.ids)
    assert unpacked_keys(name, new, packed) == list(keys_of(old.ids))
    assert new.residents == old.residents
    assert run(new, ROUNDS // 3, 1) == run(old, ROUNDS // 3, 1)


@pytest.mark.parametrize("limit", [25_000, 20_000, 15_000])
def test_a_state_that_does_not_fit_is_compacted(limit: int) -> None:
    old = trained("adaptive")
    packed = pack("adaptive", old, copy_state(old, keys_of(old.ids)), limit)
    assert packed is not None
    assert len(packed) <= limit
    new = registry.find("adaptive").build(old.capacity, old.ids)
    keys = unpacked_keys("adaptive", new, packed)
    assert keys
    assert len(keys) < old.ids
    known = list(keys_of(old.ids))
    numbers = [known.index(key) for key in keys]
    restored = {numbers[i] for i in new.residents}
    assert restored <= old.residents
    assert len(restored) == min(len(old.residents), len(keys))  # residents first
    for i, number in enumerate(numbers):
        for field in ("entry_size", "misses", "paid", "last", "recent", "requests", "priority"):
            assert np.array_equal(new.rows[field][i], old.rows[field][number]), field
    assert new.head["leader"] == old.head["leader"]
    run(new, 100, 5)
    new.check()


def test_a_limit_that_is_too_small() -> None:
    old = trained("adaptive", rounds=50)
    assert pack("adaptive", old, copy_state(old, keys_of(old.ids)), 100) is None
    lru = trained("lru", rounds=50)
    assert pack("lru", lru, copy_state(lru, keys_of(lru.ids)), 100) is None


def test_a_large_state_is_packed_in_chunks() -> None:
    """Memory allocated for the state as a whole is not returned by the allocator."""
    policy = registry.find("adaptive").build(1_000_000, 80_000)
    keys = keys_of(80_000)
    state = copy_state(policy, keys)
    tracemalloc.start()
    try:
        packed = pack("adaptive", policy, state, 1 << 30)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert packed is not None
    assert state.rows.nbytes > 8 << 20
    assert peak < 2.5 * len(packed) + (2 << 20) < state.rows.nbytes
    new = registry.find("adaptive").build(1_000_000, 80_000)
    assert unpacked_keys("adaptive", new, packed) == list(keys)


def test_an_invalid_snapshot_is_rejected_and_changes_nothing() -> None:
    old = trained("gdsf-cost")
    packed = pack("gdsf-cost", old, copy_state(old, keys_of(old.ids)), 10**9)
    assert packed
    rng = np.random.default_rng(0)
    bad = [b"", b"nonsense", packed[:-1], packed + b"x", packed[: len(packed) // 2]]
    for _ in range(50):
        flipped = bytearray(packed)
        flipped[rng.integers(len(packed))] ^= 1 << rng.integers(8)
        bad.append(bytes(flipped))
    for snapshot in bad:
        new = registry.find("gdsf-cost").build(old.capacity, old.ids)
        assert unpack("gdsf-cost", new, snapshot) is None
        assert new.rows.tobytes() == registry.find("gdsf-cost").build(old.capacity, old.ids).rows.tobytes()
    for other in (registry.find("lru").build(old.capacity, old.ids), registry.find("gdsf-cost").build(99, old.ids)):
        assert unpack("gdsf-cost", other, packed) is None


def test_an_inconsistent_snapshot_is_rejected() -> None:
    old = trained("gdsf-cost")
    state = copy_state(old, keys_of(old.ids))
    state.head["used"] += 1
    packed = pack("gdsf-cost", old, state, 10**9)
    assert packed
    new = registry.find("gdsf-cost").build(old.capacity, old.ids)
    assert unpack("gdsf-cost", new, packed) is None
    assert not new.residents
    assert new.used == 0
    twice = copy_state(old, KeyArray.of([bytes(32)] * old.ids))
    packed = pack("gdsf-cost", old, twice, 10**9)
    assert packed
    assert unpack("gdsf-cost", new, packed) is None


# Snapshots of 0.2 before the change log: rows one after the other, keys at the end, and wider fields.

ADDED = {"uncontested"}
"""Fields of the header that the older version did not have."""
OLDER_TYPES = {"victim": "<i8", "misses": "<i8", "requests": "<i4", "size_class": "<i4", "shadow": "<i4"}


def older_snapshot(name: str, policy: Policy, row: str | None = None, victim: int = 0) -> bytes:
    """Return a snapshot as the older version wrote it. row: another type of rows; victim: of the first row."""
    fields = [(field, OLDER_TYPES.get(field, policy.rows.dtype[field])) for field in reversed(policy.rows.dtype.names)]
    rows = np.zeros(len(policy.rows), np.dtype(fields, align=True))
    for field in policy.rows.dtype.names:
        rows[field] = policy.rows[field]
    rows["victim"][0] = victim or rows["victim"][0]
    before = [field for field in policy.head.dtype.names if field not in ADDED]
    head = rfn.repack_fields(policy.head[before], align=True)
    form = {
        "policy": name,
        "capacity": policy.capacity,
        "ids": policy.ids,
        "spare": policy.spare,
        "head": str(head.dtype.descr),
        "row": str(rows.dtype.descr) if row is None else row,
        "used": policy.ids,
    }
    keys = keys_of(policy.ids).rows
    rest = b"%b\n%b" % (orjson.dumps(form), zlib.compress(head.tobytes() + rows.tobytes() + keys.tobytes()))
    return b"knapcache state 1\n%d %d\n%b" % (len(rest), zlib.crc32(rest), rest)


@pytest.mark.parametrize("name", ["adaptive", "gdsf-cost", "lru"])
def test_an_older_snapshot_is_converted(name: str) -> None:
    old = trained(name)
    packed = older_snapshot(name, old)
    assert str(old.rows.dtype.descr).encode() not in packed
    new = registry.find(name).build(old.capacity, old.ids)
    saved = unpack(name, new, packed)
    assert saved is not None
    assert (list(saved.keys), saved.entries, saved.position) == (list(keys_of(old.ids)), None, b"")
    for field in old.rows.dtype.names:
        assert np.array_equal(new.rows[field], old.rows[field]), field
    for field in ADDED & set(old.head.dtype.names):
        old.head[field] = 0
    assert np.array_equal(new.head, old.head)
    assert run(new, ROUNDS // 3, 1) == run(old, ROUNDS // 3, 1)


@pytest.mark.parametrize("victim", [-1, 2**32])
def test_a_value_that_does_not_fit_is_rejected(victim: int) -> None:
    old = trained("gdsf-cost")
    new = registry.find("gdsf-cost").build(old.capacity, old.ids)
    empty = new.rows.tobytes(), new.head.tobytes()
    assert unpack("gdsf-cost", new, older_snapshot("gdsf-cost", old, victim=victim)) is None
    assert (new.rows.tobytes(), new.head.tobytes()) == empty
    assert unpack("gdsf-cost", new, older_snapshot("gdsf-cost", old, victim=2**32 - 1)) is not None


@pytest.mark.parametrize(
    "row", ["", "nonsense", "[(", "[" * 10_000, "1 + 1", "[]", "[('entry_size', '<i8')]", "OBJECTS", "HUGE", "SHORT"]
)
def test_types_that_are_not_ours_are_rejected(row: str) -> None:
    old = trained("gdsf-cost", rounds=50)
    kinds = {"OBJECTS": ("O",), "HUGE": ("<f8", (10**6,)), "SHORT": ("<i1",)}
    if row in kinds:
        row = str([(name, *kinds[row]) for name in old.rows.dtype.names])
    new = registry.find("gdsf-cost").build(old.capacity, old.ids)
    assert unpack("gdsf-cost", new, older_snapshot("gdsf-cost", old, row)) is None
    assert not new.residents


# Records of the entries.


def index_of(policy: Policy, rng: np.random.Generator) -> EntryIndex:
    """Return an index with a record for every id."""
    index = EntryIndex(policy.ids)
    for i in range(policy.ids):
        index.record(
            i,
            EntryInfo(
                key=bytes(32),
                tenant=f"tenant {i % 3}",
                model=f"model {i % 5}",
                size=1,
                cost=rng.random(),
                seconds=rng.random(),
                created=float(i),
                expires=None if i % 2 else 1e9 + i,
                meta={"usd": rng.random()} if i % 7 else {"tags": ["x"], "system": f"{i:016x}"},
            ),
        )
    return index


def test_records_of_residents_are_saved_with_a_position() -> None:
    old = trained("gdsf-cost")
    index, residents = index_of(old, np.random.default_rng(0)), np.flatnonzero(old.rows["resident"])
    packed = pack("gdsf-cost", old, copy_state(old, keys_of(old.ids), index, b"position"), 10**9)
    assert packed
    new, loaded = registry.find("gdsf-cost").build(old.capacity, old.ids), EntryIndex(old.ids)
    saved = unpack("gdsf-cost", new, packed)
    assert saved is not None
    assert saved.entries is not None
    assert saved.position == b"position"
    assert loaded.load(residents, saved.entries)
    assert loaded.records[residents].tobytes() == index.records[residents].tobytes()
    assert not loaded.records[~old.rows["resident"][: old.ids]].view(np.uint8).any()
    assert [table.names for table in loaded._tables] == [table.names for table in index._tables]
    assert loaded.tenants.find("tenant 2") == index.tenants.find("tenant 2")
    small = pack("gdsf-cost", old, copy_state(old, keys_of(old.ids), index, b"position"), len(packed) - 1)
    assert small
    saved = unpack("gdsf-cost", registry.find("gdsf-cost").build(old.capacity, old.ids), small)
    assert saved is not None
    assert saved.entries is None
    assert copy_state(old, keys_of(old.ids), index).entries is None, "without a position they would not be read"


@pytest.mark.parametrize(
    ("field", "value"),
    [("model", 5), ("model", -1), ("tenant", 3), ("tags", 2), ("cost", np.nan), ("cost", -1.0), ("created", np.inf),
     ("seconds", np.nan), ("expires", np.nan)],
)  # fmt: skip
def test_invalid_records_are_rejected(field: str, value: float) -> None:
    policy = trained("gdsf-cost", rounds=50)
    saved, index = index_of(policy, np.random.default_rng(0)).copy(policy.ids), EntryIndex(policy.ids)
    assert EntryIndex(policy.ids).load(np.arange(policy.ids), saved)
    assert not index.load(np.arange(policy.ids - 1), saved)
    saved.records[field][7] = value
    assert not index.load(np.arange(policy.ids), saved)
    assert not index.records.view(np.uint8).any()
    assert index.models.names == []


def fill(cache: Cache, names: range, n: int = 4000) -> None:
    for name in names:
        cache.fetch(CHAT, request_of(name), Upstream()(name, n))


def test_entries_and_state_survive(path: Path) -> None:
    with small_cache(path=path, policy="gdsf-cost") as cache:
        fill(cache, range(300))
        fill(cache, range(290, 300))
        before, seen = residents(cache), admission_of(cache).policy.rows["requests"].sum()
        assert cache.stats().evictions > 0
    with small_cache(path=path, policy="gdsf-cost") as cache:
        assert residents(cache) == before
        assert admission_of(cache).policy.rows["requests"].sum() == seen
        upstream = Upstream()
        answer = cache.fetch(CHAT, request_of(299), upstream(299))
        assert (answer.outcome, upstream.calls) == ("hit", 0)
        cache.check()


@pytest.mark.parametrize(
    "change", [{"policy": "lru"}, {"capacity": "2MiB"}, {"policy": "lru", "capacity": "3MiB"}, {"ids": 1000}]
)
def test_another_policy_or_capacity_starts_from_the_entries(path: Path, change: dict[str, Any]) -> None:
    with small_cache(path=path, policy="gdsf-cost", capacity="1MiB") as cache:
        fill(cache, range(200))
        before = residents(cache)
    with small_cache(**{"path": path, "policy": "gdsf-cost", "capacity": "1MiB", **change}) as cache:
        assert residents(cache) == before
        cache.check()


def test_a_smaller_capacity_keeps_the_entries_that_fit(path: Path) -> None:
    with small_cache(path=path, capacity="3MiB") as cache:
        fill(cache, range(400))
        before = residents(cache)
    with small_cache(path=path, capacity="1MiB") as cache:
        assert residents(cache) < before
        cache.check()


def test_a_damaged_snapshot_loses_the_state_and_no_entries(path: Path) -> None:
    with small_cache(path=path) as cache:
        fill(cache, range(50))
        before = residents(cache)
    for wrong in (b"knapcache state 1\n5 5\nhello", b"", zlib.compress(b"x" * 1000)):
        with SqliteStore(path, 1 << 20) as store:
            store.apply(snapshot=wrong).result()
        with small_cache(path=path) as cache:
            assert residents(cache) == before
            cache.check()


def test_entries_newer_than_the_snapshot_are_settled(path: Path) -> None:
    with small_cache(path=path) as cache:
        fill(cache, range(20))
    with SqliteStore(path, 1 << 20) as store:
        snapshot = store.load_snapshot()
    with small_cache(path=path) as cache:
        fill(cache, range(20, 40))
        cache.purge(key=cache.fetch(CHAT, request_of(3), Upstream()(3)).key)
        before = residents(cache)
    with SqliteStore(path, 1 << 20) as store:
        store.apply(snapshot=snapshot).result()  # as if the process had been killed before it wrote the next one
    with small_cache(path=path) as cache:
        assert residents(cache) == before
        assert len(before) == 39
        cache.check()


def test_entries_that_the_policy_rejects_are_removed() -> None:
    with small_cache() as cache:
        fill(cache, range(10))
        fill(cache, range(10, 11), 30_000)
        store = store_of(cache)
        admission = AdmissionController(store, "lru", (), Ledger(), 100)
        admission.policy = registry.find("lru").build(20_000, 100)  # less capacity than the store has
        admission.ids = IdTable(admission.policy)
        open_store(admission, 0.0)
        assert 1 <= len(residents(admission)) <= 4
        assert {info.key for info in store.scan()} == residents(admission)
        admission.check()


def test_expired_entries_are_removed(path: Path) -> None:
    with small_cache(path=path, clock=lambda: 1000.0, ttl=10.0) as cache:
        fill(cache, range(10))
    with small_cache(path=path, clock=lambda: 2000.0) as cache:
        cache.check()
        assert cache.stats().entries == 0 == len(residents(cache))
