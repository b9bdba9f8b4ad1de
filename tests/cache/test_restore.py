"""Opening from a snapshot and the change log gives the same as reading all entries, whatever happened before."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest

from knapcache.cache import restore, roles
from knapcache.cache.admission import AdmissionController
from knapcache.cache.entries import columns, rows_of
from knapcache.cache.ledger import Ledger
from knapcache.cache.restore import open_store, save
from knapcache.cache.roles import Owner
from knapcache.store.base import Totals
from knapcache.store.sqlite import layout, snapshot_rows, writer
from knapcache.store.sqlite.change_log import CHANGES_ROW
from knapcache.store.sqlite.recovery import SqliteOptions
from knapcache.store.sqlite.snapshot_rows import SnapshotRow
from knapcache.store.sqlite.store import SqliteStore
from knapcache.testing.stores import ManualClock
from tests.support.caches import CHAT, Upstream, admission_of, request_of, residents, small_cache
from tests.support.examples import examples
from tests.support.stores import entry_of, key_of, run_sql

SIZE_LIMIT = 6 << 20
NAMES = 120
QUOTAS = {"a": 200_000}


class Opened(NamedTuple):
    """State of a cache after it was opened."""

    entries: dict[bytes, dict[str, Any]]
    quotas: dict[str, int]
    totals: Totals
    read_all: bool


@contextmanager
def opened(
    path: Path, clock: ManualClock, policy: str = "gdsf-cost", *, keys: tuple[bytes, ...] = ()
) -> Iterator[AdmissionController]:
    """A controller of a file, without the threads of a cache."""
    options = SqliteOptions(memory_tier=0, encryption_keys=keys, clock=clock)
    with closing(SqliteStore(path, SIZE_LIMIT, options)) as store:
        admission = AdmissionController(store, policy, (), Ledger(), 300, QUOTAS, clock)
        open_store(admission, clock())
        yield admission


def read(path: Path, clock: ManualClock, **options: Any) -> Opened:
    """Open a file, check it, and return what is known."""
    with opened(path, clock, **options) as admission:
        read_all = admission.read_all
        admission.check()
        table = admission.entries()
        found = columns(table, clock())
        del found["per_day"], found["value"], found["density"]
        rows = rows_of(table, found, list(range(len(table.keys))))
        entries = dict(zip(table.keys, rows, strict=True))
        return Opened(entries, dict(admission.quotas._used), admission.store.totals(), read_all)


def copy(path: Path, target: Path) -> Path:
    """Copy a file with its log, as a crash leaves them."""
    target.mkdir(parents=True)
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", target / f"answers.db{suffix}")
    return target / "answers.db"


def compare(path: Path, folder: Path, clock: ManualClock, **options: Any) -> Opened:
    """Open two copies, one of them without its change log. Return what both know."""
    by_log, by_scan = copy(path, folder / "log"), copy(path, folder / "scan")
    run_sql(by_scan, "DELETE FROM state WHERE id = ?", (CHANGES_ROW,))
    found, expected = read(by_log, clock, **options), read(by_scan, clock, **options)
    assert expected.read_all
    assert found._replace(read_all=True) == expected
    shutil.rmtree(folder)
    return found


class Traffic:
    """Random requests, expiries, purges, failures and snapshots."""

    def __init__(self, admission: AdmissionController, clock: ManualClock, rng: random.Random, first: int) -> None:
        self.admission, self.clock, self.rng, self.version = admission, clock, rng, first

    def put(self) -> None:
        rng, self.version = self.rng, self.version + 1
        entry = entry_of(
            self.admission.store,
            rng.randrange(NAMES),
            int(min(60_000, rng.lognormvariate(9, 1.2))),
            self.version,
            created=self.clock() + self.version * 1e-3,
            expires=self.clock() + rng.randrange(1, 400) if rng.random() < 0.3 else None,
            tenant=rng.choice("ab"),
            model=f"model {rng.randrange(5)}",
            cost=rng.random(),
            meta={"usd": rng.random(), "tags": [f"t{rng.randrange(4)}"]} if rng.random() < 0.5 else {},
        )
        i, _ = self.admission.arrive(entry.key)
        self.admission.settle(i, entry)

    def step(self) -> None:
        kind = self.rng.random()
        if kind < 0.75:
            self.put()
        elif kind < 0.85:
            self.admission.arrive(key_of(self.rng.randrange(NAMES)))
        elif kind < 0.9:
            self.admission.forget([key_of(self.rng.randrange(NAMES)) for _ in range(3)])
        elif kind < 0.93:
            self.clock.now += self.rng.randrange(60)
            self.admission.expire()
        elif kind < 0.935:
            self.admission.clear()
        elif kind < 0.96:
            self.fail()
        else:
            save(self.admission)

    def fail(self) -> None:
        """Make changes while the disk is full."""

        def full(*_: object) -> None:
            raise apsw.FullError("disk full")

        with pytest.MonkeyPatch.context() as failing:
            failing.setattr(writer, "write_changes", full)
            for _ in range(self.rng.randrange(1, 4)):
                self.put()
            self.admission.store.flush()


@pytest.fixture(params=["plain", "encrypted", "chunks"])
def keys(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, ...]:
    """Keys of the file. For "chunks", snapshots are written in several transactions."""
    if request.param == "chunks":
        small_chunks(monkeypatch)
    return (b"k" * 32,) if request.param == "encrypted" else ()


def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MAX_SINGLE", 1 << 10), ("CHUNK", 1 << 9), ("MAX_SNAPSHOTS", 100 << 10)):
        monkeypatch.setattr(layout, name, value)


@pytest.mark.parametrize("seed", range(examples(2, 40)))
def test_the_log_and_a_scan_lead_to_the_same_state(
    tmp_path: Path, keys: tuple[bytes, ...], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, clock, by_log, version = random.Random(seed), ManualClock(), 0, 0
    path, policy = tmp_path / "answers.db", rng.choice(["gdsf-cost", "lru"])
    monkeypatch.setattr(layout, "MAX_CHANGES", rng.choice([3_000, 1 << 20]))
    rounds = 12
    for k in range(rounds):
        with opened(path, clock, policy, keys=keys) as admission:
            traffic = Traffic(admission, clock, rng, version)
            for _ in range(rng.randrange(60)):
                traffic.step()
            version = traffic.version
            admission.store.flush()
            found = compare(path, tmp_path / f"crash{k}", clock, policy=policy, keys=keys)
            assert not {"damaged", "quarantined"} & set(admission.store.counters())
            by_log += not found.read_all
            if rng.random() < 0.5:
                save(admission)
    assert by_log > rounds // 4, "most openings should use the log"


@pytest.mark.parametrize("failing", [False, True])
def test_a_crash_between_two_chunks_leaves_the_former_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: bool
) -> None:
    small_chunks(monkeypatch)
    path, clock, copies, put_row = tmp_path / "answers.db", ManualClock(), list[Path](), snapshot_rows.put_row
    with opened(path, clock) as admission:
        traffic = Traffic(admission, clock, random.Random(0), 0)
        for _ in range(30):
            traffic.put()
        save(admission)
        former = admission.store.load_snapshot()
        for _ in range(10):
            traffic.put()
        admission.store.flush()

        def crash_before(connection: apsw.Connection, sealer: Any, row: SnapshotRow) -> None:
            copies.append(copy(path, tmp_path / f"copy{len(copies)}"))
            if failing and row.number == row.chunks[2]:
                raise apsw.FullError("disk full")
            put_row(connection, sealer, row)

        with monkeypatch.context() as crashing:
            crashing.setattr(writer, "put_row", crash_before)
            crashing.setattr(writer.Writer, "_next_batch", lambda _, first: ([first], None, False))
            save(admission)
        assert (admission.store.load_snapshot() == former) == failing
        assert len(copies) > 4
        for k, found in enumerate(copies):
            with closing(SqliteStore(found, SIZE_LIMIT, SqliteOptions(clock=clock))) as store:
                assert store.load_snapshot() == former
            assert not compare(found, tmp_path / f"compare{k}", clock).read_all
        traffic.put()
        save(admission)
        assert admission.store.load_snapshot() != former
        ((chunks,),) = run_sql(path, "SELECT count(*) FROM state WHERE id < 0")
        assert 1 < chunks <= len(copies), "chunks of other snapshots are removed"
        with closing(SqliteStore(copies[3], SIZE_LIMIT, SqliteOptions(clock=clock))) as store:
            store.apply(snapshot=b"small").result()
            assert store.load_snapshot() == b"small"
        assert run_sql(copies[3], "SELECT count(*) FROM state WHERE id < 0") == [(0,)]


def test_chunks_that_no_snapshot_names_are_removed_before_others_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch)
    with closing(SqliteStore(tmp_path / "answers.db", SIZE_LIMIT)) as store:
        largest, counts, failing = random.Random(0).randbytes(store.max_snapshot_size - 1), list[int](), False
        put_row = snapshot_rows.put_row

        def count_rows(connection: apsw.Connection, sealer: Any, row: SnapshotRow) -> None:
            put_row(connection, sealer, row)
            counts.extend(next(connection.execute("SELECT count(*) FROM state WHERE id < 0")))
            if failing and row.number == row.chunks[60]:
                raise apsw.FullError("disk full")

        monkeypatch.setattr(writer, "put_row", count_rows)
        for k, failing in enumerate((False, True, True, False, True, False)):
            assert (store.apply(snapshot=bytes([k]) + largest).exception() is not None) == failing
        assert max(counts) == 200, "two snapshots of 100 chunks have space"
        store.check()


def test_a_snapshot_without_records_is_read_with_a_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, clock = tmp_path / "answers.db", ManualClock()
    with opened(path, clock) as admission:
        traffic = Traffic(admission, clock, random.Random(0), 0)
        for _ in range(30):
            traffic.put()
        monkeypatch.setattr("knapcache.cache.snapshot.MAX_NAMES", 10)
        save(admission)
    assert compare(path, tmp_path / "compare", clock).read_all


def test_a_state_that_does_not_match_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, clock = tmp_path / "answers.db", ManualClock()
    with opened(path, clock) as admission:
        traffic = Traffic(admission, clock, random.Random(0), 0)
        for _ in range(30):
            traffic.put()
        lost = sorted(residents(admission))[0]
        admission.store.flush()
        admission.store.apply(evict=[lost]).result()  # without a decision of the policy
        save(admission)
    with opened(path, clock) as admission:
        assert admission.read_all
        assert lost not in residents(admission)
        admission.check()
    assert "the saved state does not match the store" in caplog.text


def test_many_entries_are_read_with_a_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(restore, "PROGRESS_SECONDS", 0.0)
    path, clock = tmp_path / "answers.db", ManualClock()
    with opened(path, clock) as admission:
        for name in range(20):
            i, _ = admission.arrive(key_of(name))
            admission.settle(i, entry_of(admission.store, name, tenant="b"))
    with opened(path, clock) as admission:
        assert admission.read_all, "it was closed without a snapshot"
    assert "reading entries" not in caplog.text
    monkeypatch.setattr(restore, "MANY", 19)
    with opened(path, clock) as admission:
        assert admission.read_all
    assert [record.getMessage() for record in caplog.records][:3] == [f"reading entries: {k} %" for k in (5, 10, 15)]


def as_format_2(path: Path) -> None:
    """Make a file look as one of the format before the change log."""
    from tests.store.sqlite.test_database import set_format

    run_sql(path, "DELETE FROM state WHERE id >= ?", (CHANGES_ROW,))
    set_format(path, 2)


def test_a_file_of_the_former_format_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    with small_cache(path=path) as cache:
        for name in range(20):
            cache.fetch(CHAT, request_of(name), Upstream()(name))
        before = residents(cache)
    as_format_2(path)
    for read_all in (True, False):  # there was no request in between
        with small_cache(path=path) as cache:
            assert admission_of(cache).read_all == read_all
            assert residents(cache) == before
            cache.check()


@pytest.mark.parametrize("ids", [100, 300_000])
def test_snapshots_of_many_ids_are_rarer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: int) -> None:
    clock, saved = ManualClock(), list[float]()
    with opened(tmp_path / "answers.db", clock) as admission:
        admission.read_all = False
        owner = Owner(admission.store, admission, Ledger(), clock)
        monkeypatch.setattr(type(admission.ids), "__len__", lambda _: ids)
        monkeypatch.setattr(roles, "save", lambda _: saved.append(clock.now))
        begin = clock.now
        for _ in range(60):
            clock.now += 10
            admission.arrived += 1
            owner.maintain(sweep=False)
        assert [at - begin for at in saved] == (list(range(60, 601, 60)) if ids == 100 else [180, 360, 540])
        admission.arrived += 1
        owner.maintain(sweep=True)
        assert len(saved) == (11 if ids == 100 else 4)


def test_what_was_written_before_a_snapshot_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "GATHER_SECONDS", 0.5)  # changes are queued when the snapshot is made
    path, clock = tmp_path / "answers.db", ManualClock()
    with opened(path, clock) as admission:
        traffic = Traffic(admission, clock, random.Random(1), 0)
        for _ in range(50):
            traffic.put()
        save(admission)
    read_again: list[int] = []
    infos_since = SqliteStore.infos_since

    def counted(store: SqliteStore, position: bytes) -> Any:
        found = infos_since(store, position)
        read_again.append(-1 if found is None else len(found))
        return found

    monkeypatch.setattr(SqliteStore, "infos_since", counted)
    with opened(path, clock):
        assert read_again == [0]


def test_a_snapshot_has_the_costs_that_were_paid(tmp_path: Path) -> None:
    """Prices of the moment are not saved, nor anything for an entry that is gone."""
    clock = ManualClock()
    with opened(tmp_path / "answers.db", clock) as admission:
        for k in range(3):
            entry = entry_of(admission.store, k, 500, created=clock(), cost=2.0 + k)
            assert admission.settle(admission.arrive(entry.key)[0], entry)
        admission.arrive(key_of(0))
        paid = admission.policy.rows["paid"][:3].tolist()
        admission.reprice({key_of(0): 50.0, key_of(1): 60.0})
        admission.forget([key_of(1)])
        assert admission.repriced[:3].tolist() == [True, True, False]
        gone = admission.policy.rows["paid"][1]
        save(admission)
    with opened(tmp_path / "answers.db", clock) as admission:
        assert not admission.read_all
        assert admission.policy.rows["resident"][:3].tolist() == [True, False, True]
        assert admission.policy.rows["paid"][:3].tolist() == [paid[0], gone, paid[2]]
