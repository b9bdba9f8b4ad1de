"""The listed entries are those of the store."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from knapcache import Cache, EntryListing, InvalidInput
from knapcache.cache.entries import SORTS
from knapcache.cache.entry_index import MIN_NAMES, EntryIndex, NameTable
from knapcache.cache.purging import purge_conditions
from knapcache.errors import CorruptState
from knapcache.store.base import EntryInfo
from tests.support.caches import CHAT, Upstream, payload_of, request_of, small_cache, store_of
from tests.support.clock import Clock


def filled(**options: Any) -> Cache:
    """Return a cache with ten answers, of models m0 and m1 and tenants a and b; the k-th costs k + 1."""
    cache = small_cache(**{"policy": "gdsf-cost", "clock": Clock(), **options})
    for k in range(10):
        tags = (f"t{k % 3}", "few")[: 1 + (k == 4)] if k < 6 else ()
        call = Upstream()(
            k, 100 * k, model=f"m{k % 2}", cost=k + 1.0, seconds=float(k), ttl=None if k else 50.0, tags=tags
        )
        cache.fetch(CHAT, request_of(k), call, namespace="ab"[k >= 5])
    return cache


@pytest.fixture(params=["memory", "file"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with filled(path=tmp_path / "answers.db" if request.param == "file" else None) as cache:
        yield cache
        cache.check()


def test_rows_are_the_entries(cache: Cache) -> None:
    cache.fetch(CHAT, request_of(3), Upstream()(3), namespace="a")
    store_of(cache).flush()
    found = cache.entries(limit=1000)
    infos = {info.key.hex(): info for info in store_of(cache).scan()}
    assert found.total == len(found.rows) == len(infos) == 10
    for row in found.rows:
        info = infos[row.key]
        assert (row.model, row.tenant, row.size, row.cost, row.seconds) == (
            info.model, info.tenant, info.size, info.cost, info.seconds,
        )  # fmt: skip
        assert row.usd is None
        assert row.value == row.requests * row.cost
        assert row.density == pytest.approx(row.value / row.size)
        assert row.requests == (2 if row.cost == 4.0 else 1)
        assert row.expires_in == (50.0 if row.cost == 1.0 else None)
    least = sorted(found.rows, key=lambda row: row.density)
    filled, tenth = 0, sum(row.size for row in least) / 10
    last = [row for row in least if (filled := filled + row.size) - row.size < tenth]
    price = sum(row.value for row in last) / sum(row.size for row in last)
    assert found.least_value_per_mb == pytest.approx(1e6 * price)
    for tenant, size in cache.entries(model="m1", limit=0).tenants.items():  # of all entries, whatever the conditions
        assert size == sum(row.size for row in found.rows if row.tenant == tenant) > 0
    assert found.tenants.keys() == {row.tenant for row in found.rows}


def test_conditions(cache: Cache) -> None:
    assert cache.entries(model="m1").total == 5
    assert cache.entries(model="m1", tenant="a").total == 2
    assert cache.entries(tenant="other").total == 0
    assert cache.entries(search="M1").total == 5
    (row,) = cache.entries(search=cache.entries(sort="cost", limit=1).rows[0].key[10:40]).rows
    assert row.cost == 10.0
    assert cache.entries(search="nothing like it").rows == []


@pytest.mark.parametrize("sort", SORTS)
def test_order_and_pages(cache: Cache, sort: str) -> None:
    for descending in (True, False):
        rows = cache.entries(sort=sort, descending=descending).rows
        column = [number for row in rows if (number := getattr(row, sort)) is not None]
        assert column == sorted(column, reverse=descending)
        pages = [cache.entries(sort=sort, descending=descending, offset=k, limit=3).rows for k in range(0, 12, 3)]
        assert [row.key for page in pages for row in page] == [row.key for row in rows]


def test_removed_and_expired_entries_are_not_listed(cache: Cache) -> None:
    clock = cache._internal.clock
    assert isinstance(clock, Clock)
    clock.now += 60.0
    assert cache.entries().total == 9
    cache.purge(tenant="b")
    assert {row.tenant for row in cache.entries().rows} == {"a"}
    cache.purge()
    assert cache.entries() == EntryListing(total=0, rows=[], least_value_per_mb=0.0, tenants={})


@pytest.mark.parametrize(
    "conditions",
    [{}, {"model": "m1"}, {"tenant": "a"}, {"tenant": "a", "model": "m0"}, {"tenant": "other"}, {"older_than": 30.0},
     {"older_than": 90.0}, {"key": True}, {"key": True, "tenant": "b"}, {"tags": "t1"}, {"tags": ["few", "t2"]},
     {"tags": "t0", "tenant": "a"}, {"tags": "t"}],
)  # fmt: skip
def test_the_preview_of_a_purge_is_what_the_purge_removes(cache: Cache, conditions: dict[str, Any]) -> None:
    clock = cache._internal.clock
    assert isinstance(clock, Clock)
    clock.now += 40.0
    cache.fetch(CHAT, request_of(3), Upstream()(3, cost=9.0), namespace="a", refresh=True)  # this one is new
    store_of(cache).flush()
    rows = {row.key: row for row in cache.entries().rows}
    if conditions.get("key"):
        conditions = conditions | {"key": next(key for key, row in rows.items() if row.tenant == "a")}
    preview = cache._internal.browser.purge_preview(purge_conditions(**conditions))
    assert cache.purge(**conditions, dry_run=True) == preview["entries"]
    assert cache.entries().total == 10
    purged = cache.purge(**conditions)
    removed = [row for key, row in rows.items() if key not in {row.key for row in cache.entries().rows}]
    assert (preview["entries"], preview["bytes"]) == (purged, sum(row.size for row in removed))
    assert preview["value"] == pytest.approx(sum(row.value for row in removed))
    removed.sort(key=lambda row: -row.value)
    assert [row["value"] for row in preview["rows"]] == [row.value for row in removed[:5]]
    assert {row["key"] for row in preview["rows"]} <= {row.key for row in removed}


def test_a_preview_refuses_a_negative_age(cache: Cache) -> None:
    with pytest.raises(InvalidInput, match="older_than"):
        cache.purge(older_than=-1.0, dry_run=True)


def test_one_entry(cache: Cache) -> None:
    row = cache.entries(sort="cost", limit=1).rows[0]
    found = cache.entry(row.key)
    assert found is not None
    assert found.payload == payload_of(9, 900)
    assert b"question 9" in found.request
    assert found.meta == {}
    assert found.created == 1_700_000_000.0
    content = {"created": found.created, "request": found.request, "payload": found.payload, "meta": {}}
    assert asdict(row) | content == asdict(found)
    assert cache.entry("00" * 32) is None
    requests = cache.stats().requests
    cache.purge(key=row.key)
    assert cache.entry(row.key) is None
    assert cache.stats().requests == requests


@pytest.mark.parametrize(
    "bad", [{"sort": "colour"}, {"limit": -1}, {"offset": 1.5}, {"offset": "1"}], ids=lambda bad: str(bad)
)
def test_bad_input(cache: Cache, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(bad))):
        cache.entries(**bad)
    with pytest.raises(InvalidInput, match="hex digits"):
        cache.entry("no key")


def test_a_reader_and_the_next_owner_list_the_same(path: Path) -> None:
    with filled(path=path, policy="adaptive") as owner:
        owner.maintain()
        store_of(owner).flush()
        with small_cache(path=path, clock=Clock()) as reader:
            assert reader.entries(limit=1000) == owner.entries(limit=1000)
            key = owner.entries().rows[0].key
            assert reader.entry(key) == owner.entry(key)
        before = owner.entries()
    with small_cache(path=path, policy="adaptive", clock=Clock()) as again:
        assert again.entries() == before
        again.check()


def test_statistics_of_oracle_and_disk(tmp_path: Path) -> None:
    with small_cache(capacity="64KiB", policy="vsocb", ids=50) as cache:
        assert cache.stats().oracle_seconds == 0.0
        for k in range(60):
            cache.fetch(CHAT, request_of(k % 15), Upstream()(k % 15, 10_000, cost=float(k % 15)))
        stats = cache.stats()
        assert stats.oracle_calls > 0
        assert 0.0 < stats.oracle_seconds < 60.0
        assert (stats.disk_bytes, stats.size_limit) == (0, 1 << 16)
    with filled(path=tmp_path / "answers.db") as cache:
        cache.maintain()
        stats = cache.stats()
        assert 0 < stats.bytes < stats.disk_bytes <= stats.size_limit == 1 << 20


def test_names_are_renumbered() -> None:
    names, used = NameTable(), np.zeros(3, np.int32)
    for k in range(5 * MIN_NAMES):
        used[k % 3] = names.number(f"name {k}", used)
        assert names.names[used[k % 3]] == f"name {k}"
        assert [names.names[j] for j in used if k >= 2] == [f"name {j}" for j in sorted_last(k) if k >= 2]
    assert len(names.names) <= MIN_NAMES
    assert (names.find("name 0"), names.find(f"name {5 * MIN_NAMES - 1}") >= 0) == (-1, True)


def sorted_last(k: int) -> list[int]:
    """Return the last three numbers up to k, by their position."""
    return sorted(range(k - 2, k + 1), key=lambda j: j % 3)


def test_check_finds_a_wrong_record() -> None:
    index = EntryIndex(4)
    info = EntryInfo(
        key=b"k" * 32,
        tenant="tenant",
        model="model",
        size=10,
        cost=1.0,
        seconds=2.0,
        created=3.0,
        expires=None,
        meta={},
    )
    index.record(2, info)
    index.check({2: info})
    changes: tuple[dict[str, Any], ...] = ({"tenant": "another"}, {"model": "another"}, {"cost": 2.0})
    for wrong in changes:
        with pytest.raises(CorruptState):
            index.check({2: info._replace(**wrong)})


def test_no_rate_is_extrapolated_from_less_than_a_day_or_ten_requests() -> None:
    clock = Clock()
    with small_cache(policy="gdsf-cost", clock=clock) as cache:
        for k, requests in enumerate((1, 9, 12)):
            for _ in range(requests):
                cache.fetch(CHAT, request_of(k), Upstream()(k, 100))
        for age, rates in ((85.0, [None] * 3), (86_399.0, [None] * 3), (2 * 86_400.0, [None, None, 6.0])):
            clock.now = Clock().now + age
            rows = cache.entries(sort="per_day", descending=False).rows
            assert [row.per_day for row in rows] == rates
            assert getattr(cache.entry(rows[-1].key), "per_day", 0.0) == rates[-1]
            preview = cache._internal.browser.purge_preview(purge_conditions())["rows"]
            found = sorted((row["requests"], row["per_day"]) for row in preview)
            assert found == [*zip((1, 9, 12), rates, strict=True)]
