"""The change log: which entries have changed since a position, and the totals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from knapcache.store.base import Totals
from knapcache.store.sqlite import writer
from knapcache.store.sqlite.change_log import CHANGES_ROW, FIRST_CHANGE
from knapcache.store.sqlite.recovery import SqliteOptions
from knapcache.store.sqlite.store import SqliteStore
from tests.support.stores import entry_of, key_of, run_sql

SIZE_LIMIT = 4 << 20
LOG = "FROM state WHERE id >= 1000"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(path, SIZE_LIMIT, SqliteOptions(memory_tier=0)) as store:
        yield store


def put(store: SqliteStore, *names: object, n: int = 100) -> None:
    for name in names:
        store.apply(entry_of(store, name, n)).result()


def changed(store: SqliteStore, position: bytes) -> set[bytes] | None:
    infos = store.infos_since(position)
    if infos is None:
        return None
    for key, info in infos.items():
        entry = store.peek(key)
        assert info == (None if entry is None else entry.info)
    return set(infos)


def keys_of(*names: object) -> set[bytes]:
    return {key_of(name) for name in names}


def test_puts_and_evictions_since_a_position(store: SqliteStore) -> None:
    begin = store.position()
    put(store, 1, 2)
    position = store.position()
    put(store, 2, 3)
    store.apply(entry_of(store, 4), [key_of(1)]).result()
    assert changed(store, begin) == keys_of(1, 2, 3, 4)
    assert changed(store, position) == keys_of(1, 2, 3, 4), "1 is gone, 2 is newer"
    assert changed(store, store.position()) == set()


def test_positions_outlive_the_process(path: Path, store: SqliteStore) -> None:
    put(store, 1)
    position = store.position()
    put(store, 2)
    store.close()
    with SqliteStore(path, SIZE_LIMIT) as again:
        assert again.totals().entries == 2
        assert changed(again, position) == keys_of(2)
        put(again, 3)
        assert changed(again, position) == keys_of(2, 3)
        again.check()


@pytest.mark.parametrize("position", [b"", bytes(16), b"x" * 15, b"x" * 17])
def test_other_positions_are_not_known(store: SqliteStore, position: bytes) -> None:
    put(store, 1)
    assert store.infos_since(position) is None
    assert store.infos_since(store.position()[:8] + (FIRST_CHANGE + 9).to_bytes(8, "little")) is None, "it is ahead"
    assert store.infos_since(bytes(8) + store.position()[8:]) is None, "it is of another log"


def test_a_reader_has_the_totals_of_the_log(path: Path, store: SqliteStore) -> None:
    put(store, 1, 2, 3)
    with SqliteStore(path, SIZE_LIMIT, own=False) as reader:
        assert reader.totals() == store.totals() == (3, 3 * entry_of(store, 1, 100).size)
        assert (reader.position(), reader.infos_since(store.position())) == (b"", None)
        run_sql(path, "DELETE FROM entries WHERE key = ?", (key_of(1),))
        assert reader.totals().entries == 3, "it does not count the rows"
        run_sql(path, "UPDATE state SET seal = zeroblob(16) WHERE id = ?", (CHANGES_ROW,))
        assert reader.totals().entries == 2, "without a log it does"


def test_a_change_that_fails_is_in_the_next_row(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, 1)

    def full(*_: object) -> None:
        raise apsw.FullError("disk full")

    with monkeypatch.context() as failing:
        failing.setattr(writer, "write_changes", full)
        assert store.apply(entry_of(store, 2), [key_of(1)]).exception()
    position = store.position()  # a state that was copied before the failure was known
    put(store, 3)
    assert changed(store, position) == keys_of(1, 2, 3)
    assert store.totals().entries == 1
    store.check()


def test_a_change_that_is_refused_is_in_the_next_row(store: SqliteStore) -> None:
    refused = entry_of(store, 1, store.max_entry_size + 1)
    assert store.apply(refused).exception()
    position = store.position()
    put(store, 2)
    assert changed(store, position) == keys_of(1, 2)


def test_a_transaction_without_changes_of_entries_writes_nothing(path: Path, store: SqliteStore) -> None:
    put(store, 1)
    before = run_sql(path, f"SELECT count(*), max(id) {LOG}")
    store.flush()
    store.apply(snapshot=b"state").result()
    assert run_sql(path, f"SELECT count(*), max(id) {LOG}") == before


def test_saved_changes_are_dropped(path: Path, store: SqliteStore) -> None:
    put(store, *range(20))
    old = store.position()
    put(store, 20)
    position = store.position()
    store.drop_changes(old)  # not the last one
    put(store, 21)
    assert changed(store, old) == keys_of(20, 21)
    store.drop_changes(position)
    put(store, 22)
    assert run_sql(path, f"SELECT count(*) {LOG}") == [(2,)]
    assert changed(store, position) == keys_of(21, 22)
    assert changed(store, old) is None
    store.close()
    with SqliteStore(path, SIZE_LIMIT) as again:
        assert changed(again, position) == keys_of(21, 22)


def test_the_log_is_bounded(path: Path, store: SqliteStore) -> None:
    position, limit = store.position(), store.layout.max_changes
    for name in range(200):
        put(store, name % 7)
        ((size,),) = run_sql(path, f"SELECT sum(length(value) + 128) {LOG}")
        assert size <= limit
    assert changed(store, position) is None
    position = store.position()
    put(store, 1)
    assert changed(store, position) == keys_of(1), "a new log has begun"
    store.drop_changes(position)
    for _ in range(30):  # dropped rows no longer count
        put(store, 2)
    assert changed(store, position) == keys_of(1, 2)


@pytest.mark.parametrize(
    "damage",
    [
        f"DELETE FROM state WHERE id = {FIRST_CHANGE + 2}",
        f"UPDATE state SET value = zeroblob(32) WHERE id = {FIRST_CHANGE + 2}",
        f"UPDATE state SET id = {FIRST_CHANGE - 1} WHERE id = {FIRST_CHANGE + 1}",
        f"UPDATE state SET (seal, value) = (SELECT seal, value FROM state WHERE id = {FIRST_CHANGE + 1})"
        f" WHERE id = {FIRST_CHANGE + 2}",
    ],
)
def test_a_damaged_row_is_noticed(path: Path, store: SqliteStore, damage: str) -> None:
    position = store.position()
    put(store, 1, 2, 3)
    assert changed(store, position) == keys_of(1, 2, 3)
    run_sql(path, damage)
    assert store.infos_since(position) is None


def test_a_damaged_entry_is_left_to_a_scan(path: Path, store: SqliteStore) -> None:
    position = store.position()
    put(store, 1, 2)
    run_sql(path, "UPDATE entries SET tenant = x'00' WHERE key = ?", (key_of(1),))
    assert store.infos_since(position) is None


def test_entries_that_the_cache_cannot_know_of(path: Path, store: SqliteStore) -> None:
    put(store, 1, 2)
    position = store.position()
    run_sql(path, "UPDATE entries SET payload = x'00', size = 1 WHERE key = ?", (key_of(1),))
    assert store.get(key_of(1)) is None
    store.flush()
    assert store.position() == b"", "the policy above still holds the entry"
    assert store.infos_since(position) is None
    put(store, 3)
    store.close()
    with SqliteStore(path, SIZE_LIMIT) as again:
        assert again.infos_since(position) is None
        assert again.totals() == Totals(2, 2 * entry_of(again, 2, 100).size), "the rows were counted"
        assert again.position() != b""
        again.check()


def test_a_store_that_is_full_counts_its_rows_when_it_is_opened_again(path: Path, store: SqliteStore) -> None:
    put(store, "lost", n=50_000)
    run_sql(path, "DELETE FROM entries")
    name = 0
    while store.apply(entry_of(store, name, 30_000)).exception() is None:
        name += 1
    store.close()
    with SqliteStore(path, SIZE_LIMIT) as again:
        assert again.totals().entries == name
        again.check()
        put(again, "now it fits", n=30_000)


def test_a_file_that_was_replaced_gives_no_positions(path: Path, store: SqliteStore) -> None:
    put(store, 1)
    position = store.position()
    store._handle_damage(None)
    put(store, 2)
    assert store.counters()["quarantined"] == 1
    assert (store.position(), store.infos_since(position)) == (b"", None)
    assert store.totals().entries == 1
    store.check()
    store.close()
    with SqliteStore(path, SIZE_LIMIT) as again:
        assert again.position() != b""


def test_a_smaller_size_limit_counts_the_entries_that_were_kept(path: Path) -> None:
    with SqliteStore(path, 8 << 20) as store:
        for name in range(300):
            store.apply(entry_of(store, name, 15_000, version=name))
        position = store.position()
    with SqliteStore(path, 2 << 20) as store:
        assert 0 < store.totals().entries < 300
        assert store.infos_since(position) is None
        store.check()


def test_keys_are_encrypted(path: Path) -> None:
    pytest.importorskip("cryptography")
    options = SqliteOptions(encryption_keys=(b"k" * 32,))
    with SqliteStore(path, SIZE_LIMIT, options) as store:
        position = store.position()
        put(store, *range(10))
        assert changed(store, position) == keys_of(*range(10))
    assert not any(key in path.read_bytes() for key in keys_of(*range(10)))
    with SqliteStore(path, SIZE_LIMIT, options) as store:
        assert changed(store, position) == keys_of(*range(10))
        assert store.totals().entries == 10
