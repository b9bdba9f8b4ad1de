"""Every request is answered whatever happens to the store; the policy forgets what it cannot take."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from knapcache import Cache
from knapcache.cache import admission
from knapcache.errors import StoreError
from knapcache.store.base import C, Done
from knapcache.store.memory import MemoryStore
from knapcache.store.sqlite.store import SqliteStore
from tests.support.caches import (
    CHAT,
    Upstream,
    admission_of,
    is_answer,
    payload_of,
    request_of,
    residents,
    small_cache,
    store_of,
)
from tests.support.capacity import SIZE_LIMIT, fill_with_mixed_sizes
from tests.support.faulty_disk import DiskFaults, stores_on


@pytest.fixture
def faults() -> Iterator[DiskFaults]:
    found = DiskFaults()
    with stores_on(found, keep_damaged=100):
        yield found


def fetch_all(cache: Cache, names: range, n: int = 3000) -> int:
    """Return the number of hits; every answer is verified."""
    hits = 0
    for name in names:
        answer = cache.fetch(CHAT, request_of(name), Upstream()(name, n))
        assert is_answer(answer.payload, name)
        hits += answer.outcome == "hit"
    return hits


def test_a_full_disk(tmp_path: Path, faults: DiskFaults, caplog: pytest.LogCaptureFixture) -> None:
    with small_cache(capacity=SIZE_LIMIT, path=tmp_path / "answers.db") as cache:
        fetch_all(cache, range(100))
        store_of(cache).flush()
        faults.full = True
        fetch_all(cache, range(100, 600))
        cache.maintain()
        store_of(cache).flush()
        stats = cache.stats()
        assert stats.store_errors > 0
        assert faults.injected > 0
        assert len([r for r in caplog.records if "the store cannot write" in r.message]) == 1
        faults.full = False
        fetch_all(cache, range(600, 650))
        store_of(cache).flush()
        assert fetch_all(cache, range(600, 650)) == 50
        cache.check()


def test_a_disk_that_fails_at_random(tmp_path: Path, faults: DiskFaults) -> None:
    with small_cache(capacity=SIZE_LIMIT, path=tmp_path / "answers.db") as cache:
        faults.error_rate = 0.02
        for _ in range(3):
            fetch_all(cache, range(300))
            cache.maintain()
        faults.error_rate = 0.0
        fetch_all(cache, range(300))
        store_of(cache).flush()
        cache.check()


def test_damaged_rows_are_misses(path: Path) -> None:
    with small_cache(capacity=SIZE_LIMIT, path=path) as cache:
        fetch_all(cache, range(200))
    content = bytearray(path.read_bytes())
    rng = random.Random(1)
    for _ in range(60):
        content[rng.randrange(8192, len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    with small_cache(capacity=SIZE_LIMIT, path=path) as cache:
        hits = fetch_all(cache, range(200))
        assert hits < 200
        store_of(cache).flush()
        again = fetch_all(cache, range(200))
        assert again >= hits or cache.stats().store.get("quarantined"), "the tree is damaged, too"
        cache.check()


def test_a_closed_cache_still_answers(tmp_path: Path) -> None:
    for path in (None, tmp_path / "answers.db"):
        cache = small_cache(capacity=SIZE_LIMIT, path=path)
        fetch_all(cache, range(5))
        cache.close()
        cache.close()
        assert fetch_all(cache, range(5)) == 0
        cache.maintain()


def test_the_size_limit_holds_under_mixed_load(tmp_path: Path) -> None:
    counts = fill_with_mixed_sizes(tmp_path / "answers.db", requests=400)
    assert counts["samples"] > 10
    assert counts["evictions"] > 50


def test_a_failed_put_is_forgotten_and_a_newer_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store fails late, when a newer answer may be stored."""
    with small_cache() as cache:
        store, admission = store_of(cache), admission_of(cache)
        assert isinstance(store, MemoryStore)
        apply_all = store.apply_all
        pending: list[Callable[[StoreError], None]] = []

        def late(changes: Sequence[C], done: Done[C]) -> None:
            for change in changes:
                if change.put is not None and change.put.payload.startswith(b"1000 1 "):
                    pending.append(partial(done, change))
                else:
                    apply_all([change], done)

        monkeypatch.setattr(store, "apply_all", late)
        cache.fetch(CHAT, request_of(1), Upstream()(1, version=1))
        cache.fetch(CHAT, request_of(1), Upstream()(1, version=2), refresh=True)
        pending[0](StoreError("too late"))
        assert cache.fetch(CHAT, request_of(1), Upstream()(1, version=3)).payload == payload_of(1, version=2)
        cache.fetch(CHAT, request_of(1), Upstream()(1, version=1), refresh=True)
        assert len(residents(admission)) == 1
        store.apply(evict=[next(iter(residents(admission)))])
        pending[1](StoreError("the newest one"))
        assert not residents(admission)
        cache.check()


def test_forget_returns_after_the_disk_has_removed_the_entry(path: Path, faults: DiskFaults) -> None:
    with small_cache(capacity=SIZE_LIMIT, path=path) as cache:
        keys = [cache.fetch(CHAT, request_of(name), Upstream()(name)).key for name in range(2)]
        store_of(cache).flush()
        faults.write_delay = 0.1
        cache.purge(key=keys[0])
        with SqliteStore(path, SIZE_LIMIT, own=False) as reader:
            assert [info.key.hex() for info in reader.scan()] == [keys[1]]
        faults.full = True
        with pytest.raises(StoreError, match="1 entries are hidden, but not yet removed"):
            cache.purge(key=keys[1])
        faults.full, faults.write_delay = False, 0.0
        store_of(cache).flush()
        cache.check()


def test_a_purge_of_all_entries(path: Path, faults: DiskFaults, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_cache(capacity=SIZE_LIMIT, path=path) as cache:
        fetch_all(cache, range(20))
        store_of(cache).flush()
        faults.full = True
        with pytest.raises(StoreError, match="20 entries are hidden, but not yet removed"):
            cache.purge()
        faults.full = False
        assert fetch_all(cache, range(10)) == 0
        monkeypatch.setattr(admission, "CLEAR_IDS", 1)
        monkeypatch.setattr(time, "sleep", lambda _: fetch_all(cache, range(19, 21)))
        assert cache.purge() == 10
        assert fetch_all(cache, range(21)) == 2, "answers that were paid for during the purge are kept"
        cache.check()
    with small_cache(capacity=SIZE_LIMIT, path=path) as cache:
        assert fetch_all(cache, range(21)) == 21
        cache.check()
