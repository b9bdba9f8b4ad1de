"""Full, failing, locked and slow disks: writes fail with StoreError, no answer is wrong, and the store recovers."""

from __future__ import annotations

import random
import resource
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from knapcache.errors import StoreError
from knapcache.store.sqlite import writer
from knapcache.store.sqlite.recovery import SqliteOptions
from knapcache.store.sqlite.store import SqliteStore
from tests.support.faulty_disk import DiskFaults, FaultyVFS, locked_by_another_process
from tests.support.stores import entry_of, is_right, key_of, spawn
from tests.support.timing import check_seconds, wait_until, within

SIZE_LIMIT = 2 << 20


@pytest.fixture
def disk() -> Iterator[FaultyVFS]:
    disk = FaultyVFS(DiskFaults())
    yield disk
    disk.unregister()


def succeeds(done: Future[None]) -> bool:
    """Whether the write succeeded; it may only fail with StoreError."""
    error = done.exception(60)
    assert error is None or isinstance(error, StoreError), error
    return error is None


@pytest.mark.parametrize("memory_tier", [0, None])
@pytest.mark.parametrize("seed", range(3))
def test_random_io_errors_never_give_a_wrong_or_evicted_entry(
    tmp_path: Path, disk: FaultyVFS, seed: int, memory_tier: int | None
) -> None:
    disk.faults.rng = rng = random.Random(seed)
    names = 40
    with SqliteStore(
        tmp_path / "answers.db", SIZE_LIMIT, SqliteOptions(vfs=disk.name, memory_tier=memory_tier)
    ) as store:
        held: dict[int, int] = {}
        disk.faults.error_rate = 0.02
        kept = 0
        for version in range(1, 400):
            name, gone = rng.randrange(names), rng.randrange(names)
            evict = [] if gone == name else [key_of(gone)]
            done = store.apply(entry_of(store, name, rng.randrange(9000), version), evict)
            held.pop(gone, None)
            held.pop(name, None)
            if succeeds(done):
                held[name] = version
                kept += 1
            for other in rng.sample(range(names), 5):
                entry = store.get(key_of(other))
                if entry is not None:  # None is always allowed: the disk may have failed
                    assert is_right(entry, other)
                    assert entry.meta["version"] == held.get(other), "an older entry, or one that was evicted"
        assert kept > 100
        assert disk.faults.injected > 20
        disk.faults.error_rate = 0.0
        for _ in range(3):
            store.flush()
        assert store.counters().get("quarantined", 0) == 0
        found = {other: entry.meta["version"] for other in range(names) if (entry := store.get(key_of(other)))}
        assert found == held, "when the disk works again, the store differs from the writes that succeeded"
        store.check()


def test_a_full_disk_refuses_puts_and_hides_evictions(tmp_path: Path, disk: FaultyVFS) -> None:
    with SqliteStore(tmp_path / "answers.db", SIZE_LIMIT, SqliteOptions(vfs=disk.name, memory_tier=0)) as store:
        entries = [entry_of(store, name) for name in range(6)]
        for entry in entries[:4]:
            store.apply(entry).result()
        disk.faults.full = True
        with pytest.raises(StoreError, match="write failed"):
            store.apply(entries[4], evict=[entries[0].key], snapshot=b"state").result()
        newer = entry_of(store, 1, version=1)
        assert not succeeds(store.apply(newer))
        assert not succeeds(store.apply(evict=[entries[2].key]))
        # The policy has forgotten these, so they are gone although the disk still has them.
        assert [store.get(entry.key) for entry in entries] == [None, None, None, entries[3], None, None]
        assert store.load_snapshot() is None
        disk.faults.full = False
        store.apply(entries[5]).result()
        assert store.totals() == (2, entries[3].size + entries[5].size), "late evictions were not made"
        assert [store.get(entry.key) for entry in entries] == [None, None, None, entries[3], None, entries[5]]
        assert store.counters()["failed_writes"] == 3
        store.check()


def test_late_evictions_are_retried_without_another_write(tmp_path: Path, disk: FaultyVFS) -> None:
    with SqliteStore(tmp_path / "answers.db", SIZE_LIMIT, SqliteOptions(vfs=disk.name)) as store:
        entry = entry_of(store, 0)
        store.apply(entry).result()
        disk.faults.full = True
        assert not succeeds(store.apply(evict=[entry.key]))
        disk.faults.full = False
        wait_until(lambda: not store.totals().entries, "the eviction")
        assert store.totals() == (0, 0)


def test_a_slow_disk_fills_the_backlog_and_then_refuses(tmp_path: Path, disk: FaultyVFS) -> None:
    with SqliteStore(tmp_path / "answers.db", 8 << 20, SqliteOptions(vfs=disk.name)) as store:
        disk.faults.write_delay = 0.002
        began = time.monotonic()
        done = [store.apply(entry_of(store, name % 8, 200_000, name)) for name in range(120)]
        enqueued = time.monotonic() - began
        disk.faults.write_delay = 0.0
        errors = [future.exception() for future in done]
        check_seconds(enqueued, 6.0, "writes to the queue")  # those to the disk take 12 seconds
        assert errors[0] is None
        assert any(isinstance(error, StoreError) and "too slow" in str(error) for error in errors)
        entry = entry_of(store, "after")
        store.apply(entry).result()
        assert store.get(entry.key) == entry
        store.check()


def test_a_damaged_file_on_a_full_disk_is_replaced_when_there_is_space(tmp_path: Path, disk: FaultyVFS) -> None:
    with SqliteStore(tmp_path / "answers.db", SIZE_LIMIT, SqliteOptions(vfs=disk.name, memory_tier=0)) as store:
        store.apply(entry_of(store, "before")).result()
        disk.faults.full = True
        assert store._writer
        store._writer.report_damage()
        assert not succeeds(store.apply(entry_of(store, 0)))
        assert not succeeds(store.apply(entry_of(store, 1)))
        assert store._writer._connection.filename == "", "another file was opened in place of the damaged one"
        assert store.get(key_of(0)) is None
        disk.faults.full = False
        entry = entry_of(store, 2)
        store.apply(entry).result()
        assert store.get(entry.key) == entry
        assert store.totals() == (1, entry.size)
        store.check()


def test_writes_fail_when_the_file_may_not_grow(tmp_path: Path) -> None:
    """RLIMIT_FSIZE in a process of its own: writes fail with EFBIG."""
    child = spawn(
        """
        import resource, signal, sys
        from knapcache.errors import StoreError
        from knapcache.store.sqlite.store import SqliteStore
        from tests.support.stores import entry_of, is_right, key_of
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        store = SqliteStore(sys.argv[1], 8 << 20)
        first = entry_of(store, "first")
        store.apply(first).result()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
        errors = [store.apply(entry_of(store, name, 30_000)).exception() for name in range(100)]
        assert all(error is None or isinstance(error, StoreError) for error in errors)
        assert errors[-1] is not None, "nothing failed"
        assert store.get(first.key) == first
        for name, error in enumerate(errors):
            entry = store.get(key_of(name))
            assert (entry is None) if error else (entry is None or is_right(entry, name)), name
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        store.apply(entry_of(store, "after", 30_000)).result()
        assert store.get(key_of("after")) is not None
        store.check()
        store.close()
        print(sum(error is None for error in errors))
        """,
        tmp_path / "answers.db",
    )
    out, err = child.communicate()
    assert child.returncode == 0, err
    assert 5 < int(out) < 100
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_a_database_locked_by_another_process_can_be_read(path: Path) -> None:
    with SqliteStore(path, SIZE_LIMIT, SqliteOptions(busy_timeout=0.1, memory_tier=0)) as store:
        entry, other = entry_of(store, 0), entry_of(store, 1)
        store.apply(entry).result()
        with locked_by_another_process(path), within(3.0, "writes of which not each waits for the lock"):
            done = [store.apply(entry_of(store, name)) for name in range(2, 40)]
            assert store.get(entry.key) == entry, "a reader waited for the lock"
            assert not any(succeeds(future) for future in done)
        store.apply(other).result()
        assert store.get(other.key) == other
        store.check()


def test_a_dead_writer_thread_fails_all_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exceptions: list[object] = []
    monkeypatch.setattr(threading, "excepthook", exceptions.append)
    with SqliteStore(tmp_path / "answers.db", SIZE_LIMIT) as store:
        assert store._writer
        monkeypatch.setattr(store._writer, "_commit", lambda _batch: 1 / 0)
        done = [store.apply(entry_of(store, name, 10)) for name in range(5)]
        assert all(isinstance(future.exception(60), StoreError) for future in done)
        assert isinstance(store.apply(entry_of(store, 9)).exception(60), StoreError)
        assert [store.get(key_of(name)) for name in range(5)] == [None] * 5, "a write that failed is still seen"
    assert len(exceptions) == 1


def test_failed_writes_leave_the_backlog(tmp_path: Path, disk: FaultyVFS) -> None:
    with SqliteStore(tmp_path / "answers.db", 8 << 20, SqliteOptions(vfs=disk.name)) as store:
        assert store._writer
        disk.faults.full = True
        for name in range(1 + store._writer._max_backlog_bytes // 200_000):
            assert not succeeds(store.apply(entry_of(store, name, 200_000)))
        assert not store.write_backlog_full
        disk.faults.full = False
        store.apply(entry_of(store, "after", 200_000)).result()
        assert store._writer._backlog_bytes == 0
        store.check()


def test_late_evictions_are_made_when_the_store_is_closed(
    path: Path, disk: FaultyVFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RETRY_SECONDS", 1e6)
    with SqliteStore(path, SIZE_LIMIT, SqliteOptions(vfs=disk.name)) as store:
        store.apply(entry_of(store, "kept")).result()
        store.apply(entry_of(store, "evicted")).result()
        disk.faults.full = True
        assert not succeeds(store.apply(evict=[key_of("evicted")]))
        disk.faults.full = False
    with SqliteStore(path, SIZE_LIMIT) as store:
        assert store.get(key_of("evicted")) is None
        assert store.totals() == (1, entry_of(store, "kept").size)


def test_a_key_that_a_queued_put_evicts_reads_as_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pending` maps the keys that a change evicts to that change, which also holds the entry of another key."""
    with SqliteStore(tmp_path / "answers.db", SIZE_LIMIT, SqliteOptions(memory_tier=0)) as store:
        old, new = entry_of(store, "old"), entry_of(store, "new")
        store.apply(old).result()
        assert store._writer
        gate, commit = threading.Event(), store._writer._commit
        monkeypatch.setattr(store._writer, "_commit", lambda batch: (gate.wait(30), commit(batch)))
        try:
            done = store.apply(new, evict=[old.key])
            assert (store.get(old.key), store.read(old.key), store.get_nowait(old.key)) == (None, None, None)
            assert (store.get(new.key), store.read(new.key), store.get_nowait(new.key)) == (new, new, new)
            assert not done.done()
        finally:
            gate.set()
        done.result(60)
        assert (store.read(old.key), store.read(new.key)) == (None, new)


def test_late_evictions_end_with_the_file_that_is_replaced(
    tmp_path: Path, disk: FaultyVFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RETRY_SECONDS", 1e6)
    with SqliteStore(tmp_path / "answers.db", SIZE_LIMIT, SqliteOptions(vfs=disk.name)) as store:
        store.apply(entry_of(store, "evicted")).result()
        assert store._writer
        disk.faults.full = True
        assert not succeeds(store.apply(evict=[key_of("evicted")]))
        assert list(store._writer.pending) == [key_of("evicted")]
        disk.faults.full = False
        store._writer.report_damage()
        store.flush()
        assert store.counters()["quarantined"] == 1
        assert store._writer._late_evictions == {}
        assert store._writer.pending == {}
