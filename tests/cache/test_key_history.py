"""The record of what became of keys says what really happened to their entries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from knapcache import Cache
from knapcache.cache import key_history
from knapcache.cache.key_history import MAX_FOUND, MAX_REQUEST, MAX_REQUEST_BYTES, KeyRecord
from knapcache.errors import CorruptState
from tests.support.caches import CHAT, Upstream, admission_of, request_of, small_cache, store_of
from tests.support.clock import Clock


def fetch(cache: Cache, name: object, n: int = 1000, tenant: str = "", **more: Any) -> str:
    return cache.fetch(CHAT, request_of(name), Upstream()(name, n, **more), namespace=tenant).key


def records(cache: Cache, key: str) -> list[KeyRecord]:
    return cache._internal.browser.records(bytes.fromhex(key))[0]


def causes(cache: Cache, key: str) -> list[str]:
    return [record.cause for record in records(cache, key)]


@pytest.fixture(params=["memory", "file"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    path = tmp_path / "answers.db" if request.param == "file" else None
    with small_cache(path=path, clock=Clock(step=0.001), quotas={"small": 20_000}) as cache:
        yield cache
        cache.check()


def test_an_evicted_entry_is_recorded_with_the_answer_that_took_its_place(cache: Cache) -> None:
    first = fetch(cache, "first", 15_000, cost=3.0)
    assert causes(cache, first) == []
    size = cache.entries().rows[0].size
    newer = 0
    while store_of(cache).get(bytes.fromhex(first)) is not None:
        newer += 1
        fetch(cache, newer, 15_000, cost=5.0)
    (record,) = records(cache, first)
    assert (record.cause, record.size, record.cost) == ("evicted", size, 3.0)
    assert record.rival_size == pytest.approx(size, rel=0.1)
    assert record.rival_cost == 5.0
    assert record.created < record.time <= cache._internal.clock()
    fetch(cache, "first", 15_000)
    assert causes(cache, first) == ["evicted"], "it is stored again; its history stays"


def test_the_record_of_an_eviction_has_the_requests_of_both_answers() -> None:
    with small_cache(policy="gdsf-cost", clock=Clock(step=0.001)) as cache:
        first = fetch(cache, "first", 15_000, cost=0.001)
        assert fetch(cache, "first", 15_000, cost=0.001) == first
        newer = 0
        while not records(cache, first):
            newer += 1
            fetch(cache, newer, 15_000, cost=5.0)
        (record,) = records(cache, first)
        assert (record.cause, record.requests, record.rival_requests) == ("evicted", 2, 1)


def test_an_entry_whose_id_is_reused_is_recorded() -> None:
    with small_cache(ids=8, clock=Clock(step=0.001)) as cache:
        keys = [fetch(cache, name) for name in range(9)]
        (record,) = records(cache, keys[0])
        assert (record.cause, record.size) == ("id reused", 0.0)
        assert record.created < record.time <= cache._internal.clock()
        assert [causes(cache, key) for key in keys[1:]] == [[]] * 8


def test_expired_purged_and_replaced_entries_are_recorded(cache: Cache) -> None:
    clock = cache._internal.clock
    assert isinstance(clock, Clock)
    keys = [fetch(cache, name, ttl=10.0 if name == "expires" else None) for name in ("expires", "purged", "replaced")]
    stored = clock.now
    cache.purge(key=keys[1])
    cache.fetch(CHAT, request_of("replaced"), Upstream()("replaced"), refresh=True)
    clock.now += 20.0
    fetch(cache, "expires")  # the miss finds out
    assert [causes(cache, key) for key in keys] == [["expired"], ["purged"], ["replaced"]]
    assert records(cache, keys[0])[0].time == pytest.approx(stored + 10.0, abs=0.1)
    cache.purge()
    assert causes(cache, keys[0]) == ["purged", "expired"], "the newest comes first"


def test_expired_entries_that_a_sweep_removes_are_recorded(cache: Cache) -> None:
    clock = cache._internal.clock
    assert isinstance(clock, Clock)
    key = fetch(cache, "expires", ttl=10.0)
    clock.now += 20.0
    cache.maintain()
    if not store_of(cache).shared:
        admission_of(cache).expire()
    assert causes(cache, key) == ["expired"]


def test_rejected_answers_are_recorded_with_the_reason(cache: Cache) -> None:
    assert causes(cache, fetch(cache, "too large", 2 << 20)) == ["too large"]
    assert causes(cache, fetch(cache, "over quota", 30_000, tenant="small")) == ["larger than quota"]
    first = fetch(cache, 1, 9_900, tenant="small")
    fetch(cache, 2, 9_900, tenant="small")
    assert causes(cache, first) == ["over quota"]


def test_an_answer_that_the_policy_refuses_is_recorded() -> None:
    with small_cache(policy="w-tinylfu", clock=Clock(step=0.001)) as cache:
        for name in range(30):
            for _ in range(3):
                fetch(cache, name, 50_000, cost=100.0)
        refused = fetch(cache, "cheap", 50_000, cost=1e-9)
        (record,) = records(cache, refused)
        assert (record.cause, record.cost, record.requests) == ("not admitted", 1e-9, 1.0)
        assert cache._internal.browser.request(bytes.fromhex(refused)) is not None, "its request is kept for a while"


def test_a_lost_entry_is_recorded(tmp_path: Path) -> None:
    with small_cache(path=tmp_path / "answers.db") as cache:
        key = fetch(cache, "lost")
        store_of(cache).apply(evict=[bytes.fromhex(key)]).result()
        fetch(cache, "lost")
        assert causes(cache, key) == ["lost"]


def test_entries_that_do_not_fit_at_the_start_are_recorded(tmp_path: Path) -> None:
    with small_cache(path=tmp_path / "answers.db") as cache:
        keys = [fetch(cache, name, 10_000, tenant="a") for name in range(10)]
    with small_cache(path=tmp_path / "answers.db", quotas={"a": 50_000}) as cache:
        gone = [key for key in keys if store_of(cache).get(bytes.fromhex(key)) is None]
        assert len(gone) > 5
        assert {cause for key in gone for cause in causes(cache, key)} == {"at start"}
        (record,) = admission_of(cache).history.find(bytes.fromhex(gone[0]))
        assert record[5:] == (0.0, 0.0, 0.0, 0.0), "there are no requests yet, and no answer took its place"


def test_the_record_is_bounded_and_keeps_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    assert key_history.MAX_RECORDS * key_history.RECORD.itemsize < 700_000
    monkeypatch.setattr(key_history, "MAX_RECORDS", 4 * MAX_FOUND)
    with small_cache(ids=100) as cache:
        history = admission_of(cache).history
        began = history.since
        keys = [fetch(cache, name, 10) for name in range(3)]
        for _ in range(2 * MAX_FOUND):
            for key in keys[:2]:
                fetch(cache, keys.index(key), 10)
                cache.purge(key=key)
        fetch(cache, 2, 10)
        cache.purge(key=keys[2])
        assert history.written == 4 * MAX_FOUND + 1
        assert len(history._records) == 4 * MAX_FOUND
        assert causes(cache, keys[2]) == ["purged"]
        found = records(cache, keys[0])
        assert len(found) == MAX_FOUND
        assert [record.time for record in found] == sorted((record.time for record in found), reverse=True)
        assert history.since > began
        history._request_bytes += 1
        with pytest.raises(CorruptState, match="kept requests"):
            history.check()


def test_kept_requests_are_bounded() -> None:
    with small_cache(capacity="64MiB") as cache:
        history = admission_of(cache).history
        for name in range(60):
            request = {"model": "m", "messages": [{"role": "user", "content": f"{name} " + "x" * 100_000}]}
            cache.fetch(CHAT, request, Upstream()(name, 10))
        assert sum(len(request) for _, request in history.settled().values()) <= MAX_REQUEST_BYTES
        assert 30 < len(history._requests) < 42
        long = {"model": "m", "messages": [{"role": "user", "content": "x" * MAX_REQUEST}]}
        answer = cache.fetch(CHAT, long, Upstream()("long", 10))
        assert history.request(bytes.fromhex(answer.key)) is None
        assert cache._internal.browser.request(bytes.fromhex(answer.key)) is not None, "it is read from the store"
        history.check()


def test_a_hit_writes_no_record() -> None:
    with small_cache() as cache:
        fetch(cache, 1)
        written = admission_of(cache).history.written
        for _ in range(10):
            fetch(cache, 1)
        assert admission_of(cache).history.written == written == 0


def test_a_reader_knows_stored_requests_and_no_records(path: Path) -> None:
    with small_cache(path=path) as owner, small_cache(path=path) as reader:
        key = fetch(owner, 1)
        store_of(owner).flush()
        assert not reader.owner
        assert reader._internal.browser.request(bytes.fromhex(key)) == owner._internal.browser.request(
            bytes.fromhex(key)
        )
        assert records(reader, key) == []
