"""The files never exceed the size limit, measured continuously from outside, under many kinds of load."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from knapcache.errors import StoreError
from knapcache.store.base import Entry
from knapcache.store.sqlite import layout
from knapcache.store.sqlite.recovery import SqliteOptions
from knapcache.store.sqlite.rows import FIXED_BYTES
from knapcache.store.sqlite.store import SqliteStore
from tests.support.stores import DiskUsageMonitor, entry_of, files_bytes, key_of, spawn

MB = 1 << 20


class TinyCache:
    """A minimal cache above a store: it evicts the oldest or a random entry to stay within the capacity."""

    def __init__(self, store: SqliteStore, rng: random.Random) -> None:
        self.store, self.rng = store, rng
        self.held: dict[bytes, int] = {}
        self.used = 0

    def put(self, entry: Entry, snapshot: bytes | None = None) -> None:
        self.used -= self.held.pop(entry.key, 0)
        gone = []
        while self.used + entry.size > self.store.capacity:
            keys = list(self.held)[:50]
            key = self.rng.choice(keys) if self.rng.random() < 0.5 else keys[0]
            gone.append(key)
            self.used -= self.held.pop(key)
        self.held[entry.key] = entry.size
        self.used += entry.size
        self.done = self.store.apply(entry, gone, snapshot)


Sizes = Callable[[random.Random], int]
LOADS: dict[str, Sizes] = {
    "small": lambda rng: rng.randint(0, 900),
    "typical": lambda rng: int(rng.lognormvariate(8, 1)),
    "mixed": lambda rng: int(10 ** rng.uniform(2, 4.7)),
    # Cells that leave much of a leaf empty: one per page, three per page, pairs that do not share a page.
    "halves": lambda _: 900,
    "thirds": lambda _: 540,
    "pairs": lambda rng: rng.choice([1300, 420]),
}


def load(store: SqliteStore, sizes: Sizes, volume: float, seed: int) -> int:
    """Write `volume` times the capacity; return the bytes of requests and payloads stored in the end."""
    rng = random.Random(seed)
    cache = TinyCache(store, rng)
    kept: dict[bytes, int] = {}
    written = number = 0
    while written < volume * store.capacity:
        expires = None if rng.random() < 0.5 else 4e9
        entry = entry_of(store, rng.randrange(10**6), sizes(rng), number, expires=expires)
        if entry.size > store.max_entry_size:
            continue
        cache.put(entry, rng.randbytes(rng.randrange(store.max_snapshot_size)) if rng.random() < 0.003 else None)
        kept[entry.key] = len(entry.request) + len(entry.payload)
        if number % 20 == 0:
            cache.done.result()
        written += entry.size
        number += 1
    store.flush()
    assert store.totals() == (len(cache.held), cache.used)
    return sum(kept[key] for key in cache.held)


@pytest.mark.parametrize("shape", LOADS)
def test_files_never_exceed_the_size_limit(path: Path, shape: str) -> None:
    with SqliteStore(path, 2 * MB) as store, DiskUsageMonitor(path) as usage:
        load(store, LOADS[shape], 4, 0)
        assert not {"refused", "failed_writes"} & set(store.counters()), (
            "the file was full before the entries reached the capacity"
        )
        store.check()
    assert usage.samples > 10
    assert 1.25 * MB < usage.max_bytes <= 2 * MB


@pytest.mark.long
@pytest.mark.parametrize("size_limit", [1 * MB, 8 * MB, 64 * MB])
@pytest.mark.parametrize("shape", LOADS)
def test_files_never_exceed_the_size_limit_for_long(path: Path, shape: str, size_limit: int) -> None:
    with SqliteStore(path, size_limit) as store, DiskUsageMonitor(path) as usage:
        held = load(store, LOADS[shape], 6 if size_limit < 64 * MB else 1.5, 1)
        assert not {"refused", "failed_writes"} & set(store.counters())
        store.check()
    assert usage.max_bytes <= size_limit
    assert shape != "typical" or size_limit < 64 * MB or held > 0.7 * size_limit


def test_writes_are_refused_while_a_long_read_keeps_the_log_from_being_emptied(path: Path) -> None:
    with SqliteStore(path, 2 * MB, SqliteOptions(busy_timeout=0.05)) as store:
        store.apply(entry_of(store, "first")).result()
        reader = spawn(
            """
            import sys, apsw
            connection = apsw.Connection(sys.argv[1])
            connection.execute("BEGIN; SELECT count(*) FROM entries").fetchall()
            print("reading", flush=True)
            sys.stdin.readline()
            """,
            path,
        )
        assert reader.stdout
        assert reader.stdout.readline() == "reading\n"
        failed = 0
        for name in range(40):
            failed += store.apply(entry_of(store, name, 20_000)).exception() is not None
            assert files_bytes(path) <= 2 * MB
        assert failed
        assert store.get(key_of("first")) is not None
        reader.communicate("stop\n")
        entry = entry_of(store, "after", 20_000)
        store.apply(entry).result()
        assert store.get(entry.key) == entry
        store.check()


def test_a_smaller_size_limit_keeps_the_youngest_entries(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with SqliteStore(path, 8 * MB) as store:
        for name in range(300):
            store.apply(entry_of(store, name, 15_000, version=name), snapshot=b"state")
    with SqliteStore(path, 2 * MB) as store:
        assert files_bytes(path) <= 2 * MB
        held = {info.meta["version"] for info in store.scan()}
        assert held == set(range(300 - len(held), 300))
        assert len(held) * 15_000 > 0.8 * store.capacity
        assert store.load_snapshot() == b"state"
        store.check()
    assert f"its size limit; {len(held)} of its entries were kept" in caplog.text
    with SqliteStore(path, 8 * MB) as store:
        assert store.totals().entries == len(held)


def test_more_evictions_than_the_log_can_hold_are_split(path: Path) -> None:
    with SqliteStore(path, 2 * MB) as store, DiskUsageMonitor(path) as usage:
        entries = [entry_of(store, name, 100) for name in range(1500)]
        for entry in entries:
            store.apply(entry)
        newer = entry_of(store, "newer")
        store.apply(newer, [entry.key for entry in entries]).result()
        assert store.totals() == (1, newer.size)
        store.check()
    assert usage.max_bytes <= 2 * MB


def test_pages_and_cell_agrees_with_sqlite() -> None:
    plain = apsw.Connection(":memory:")
    plain.pragma("page_size", layout.PAGE)
    for n in [*range(0, 9000, 61), *range(1990, 2030), *range(4040, 4110), 100_000, 1_000_003]:
        plain.execute("DROP TABLE IF EXISTS t; CREATE TABLE t (id INTEGER PRIMARY KEY, x BLOB)")
        plain.execute("INSERT INTO t VALUES (-1, zeroblob(?))", (n,))
        record = next(size for size in range(n, n + 8) if size - n == _record_header(n))
        report = "SELECT pagetype, sum(payload), count(*), sum(unused) FROM dbstat WHERE name = 't' GROUP BY 1"
        found = {kind: (payload, count, unused) for kind, payload, count, unused in plain.execute(report)}
        pages, cell = layout.pages_and_cell(record)
        assert found.get("overflow", (0, 0, 0))[1] == pages
        assert found["leaf"][0] == cell - layout._CELL
        length = 1 if record < 1 << 7 else 2 if record < 1 << 14 else 3
        used = layout.PAGE - 8 - found["leaf"][2]  # 8: the leaf's header
        assert used + (5 - length) + (0 if pages else 4) == cell, "a length of 5 bytes and an overflow page are charged"


def _record_header(n: int) -> int:
    kind = 2 * n + 12
    length = 1 if kind < 1 << 7 else 2 if kind < 1 << 14 else 3 if kind < 1 << 21 else 4
    return 1 + 1 + length


@pytest.mark.parametrize("file_bytes", [0, 1, MB // 2, 2 * MB, 100 * MB + 1])
def test_the_smallest_layout_for_a_file(file_bytes: int) -> None:
    found = layout.DiskLayout.for_file(file_bytes)
    assert found.pages * layout.PAGE >= file_bytes
    if found.size_limit > layout.MIN_SIZE_LIMIT:
        assert layout.DiskLayout.of(found.size_limit - 1).pages * layout.PAGE < file_bytes


@pytest.mark.parametrize("size_limit", [MB, 2 * MB, 5 * MB, 64 * MB, 1 << 30, 1 << 36])
def test_the_parts_add_up_to_the_size_limit(size_limit: int) -> None:
    parts = layout.DiskLayout.of(size_limit)
    index = 32768 * (1 + parts.log // layout.FRAME // 4062)
    assert parts.pages * layout.PAGE + parts.log + index + parts.spool + 4096 <= size_limit
    assert parts.frames * layout.FRAME < parts.log
    assert parts.fixed > 2 + parts.pages // 504, "a page of the free list names 504 pages (SQLite's file format)"
    assert parts.capacity >= (0.68 if size_limit < 2 * MB else 0.7 if size_limit < 64 * MB else 0.84) * size_limit
    whole = layout.operation_frames(parts.max_entry_size) + layout.snapshot_frames(parts.snapshot_chunk)
    assert whole + 2 * layout.operation_frames() <= parts.frames_per_transaction, (
        "the largest apply is not one transaction"
    )
    assert 30_000 < parts.max_entry_size <= parts.capacity


@pytest.mark.parametrize("size_limit", [MB, 5 * MB, 64 * MB, 768 * MB])
def test_one_snapshot_of_a_small_store_is_one_row(size_limit: int) -> None:
    parts = layout.DiskLayout.of(size_limit)
    assert parts.max_snapshot_size == parts.snapshot_chunk == size_limit // 48
    pages = parts.pages - 8 - layout.snapshot_frames(parts.max_snapshot_size)
    assert parts.capacity == pages * layout.PAGE * 97 // 100, "snapshots of other capacities are not loaded"


@pytest.mark.parametrize("size_limit", [1 << 30, 3000 * 10**6, 1 << 36])
def test_two_snapshots_of_a_large_store_have_space(size_limit: int) -> None:
    parts = layout.DiskLayout.of(size_limit)
    chunks = parts.max_snapshot_size // parts.snapshot_chunk
    assert chunks * parts.snapshot_chunk == parts.max_snapshot_size
    reserved = parts.pages - parts.capacity * 100 // 97 // layout.PAGE
    assert 2 * chunks * layout.snapshot_frames(parts.snapshot_chunk) <= reserved + parts.pages // 200
    assert parts.max_snapshot_size >= (16 * MB if size_limit < 3e9 else 104 * MB)


def test_the_capacity_rises_with_the_size_limit() -> None:
    limits = [*range(760 * MB, 2600 * MB, MB)]
    capacities = [layout.DiskLayout.of(size_limit).capacity for size_limit in limits]
    assert capacities == sorted(capacities)


def test_a_full_table_is_refused(path: Path) -> None:
    """If sizes were ever charged too low, `max_page_count` would still limit the file."""
    with SqliteStore(path, 2 * MB) as store:
        store.capacity = 100 * MB
        object.__setattr__(store.layout, "capacity", store.capacity)
        done = [store.apply(entry_of(store, name, 20_000)) for name in range(200)]
        errors = [future.exception() for future in done]
        assert errors[0] is None
        assert isinstance(errors[-1], StoreError)
        assert files_bytes(path) <= 2 * MB
        store.apply(evict=[key_of(name) for name in range(20)]).result()
        store.apply(entry_of(store, "again", 20_000)).result()
        store.check()


def test_pages_that_an_operation_changes() -> None:
    assert layout.operation_frames() == layout.operation_frames(0) == 12
    for content in (1, 100, 5000, 100_000):
        overflow, cell = layout.pages_and_cell(FIXED_BYTES + content)
        assert layout.operation_frames(content) == 13 + overflow
        plain = layout.PAGE * overflow + min(layout.PAGE, 2 * cell) + layout._TREE + layout._ID
        assert layout.entry_size(content, False) == plain
        assert layout.entry_size(content, True) == plain + layout._EXPIRY
