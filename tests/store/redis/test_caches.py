"""Caches on one server: who decides, what survives an outage, and what a purge reaches."""

from __future__ import annotations

import asyncio
import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import orjson
import pytest

from knapcache import Answer, Cache, Reply
from knapcache.cache import PendingFetch, background_compile, coordinator, owner_requests, restore
from knapcache.cache.admission import AdmissionController
from knapcache.cache.ledger import Ledger
from knapcache.cache.roles import Reader
from knapcache.cli.main import main
from knapcache.store.base import Entry
from knapcache.store.redis.key_leases import KeyLease
from knapcache.store.redis.store import RedisStore
from tests.support.caches import CHAT, keyed, request_of
from tests.support.redis_servers import RedisProcess
from tests.support.timing import DEADLINE, wait_until, within


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    """A server that the tests may stop."""
    with RedisProcess(tmp_path_factory.mktemp("engine")) as server:
        yield server


@pytest.fixture
def url(server: RedisProcess, request: pytest.FixtureRequest) -> str:
    return f"{server.url}?prefix={request.node.name[:60]}&near=100kB"


def open_cache(url: str) -> Cache:
    return Cache("2MB", path=url, policy="lru")


def store_of(cache: Cache) -> RedisStore:
    store = cache._internal.coordinator.store
    assert isinstance(store, RedisStore)
    return store


def answer(cache: Cache, key: object, new: object) -> object:
    return cache.cached(name="answer")(lambda _: new)(key)


def test_requests_are_served_while_the_policy_reads_all_entries(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_cache(url) as cache:
        assert [answer(cache, k, k) for k in range(5)] == list(range(5))
    release, begin = threading.Event(), restore.open_store

    def open_late(admission: AdmissionController, now: float) -> None:
        assert release.wait(DEADLINE)
        begin(admission, now)

    monkeypatch.setattr(coordinator, "open_store", open_late)
    monkeypatch.setattr(coordinator, "MAX_AT_ONCE", 4)
    with open_cache(url) as first, open_cache(url) as second:
        for cache in (first, second):
            assert isinstance(cache._internal.coordinator.role, Reader)
            assert [answer(cache, k, "new") for k in range(5)] == list(range(5))
        assert (first.owner, second.owner) == (True, False)
        assert answer(first, 5, "of the first") == "of the first"
        assert answer(second, 6, "of the second") == "of the second"
        release.set()
        wait_until(lambda: not isinstance(first._internal.coordinator.role, Reader))
        first.maintain()
        wait_until(lambda: first.stats().entries == 7)
        for cache in (first, second):
            assert [answer(cache, k, "new") for k in (5, 6)] == ["of the first", "of the second"]
        assert first.stats().ownership_gained == 0
        first.check()


def test_caches_share_answers(url: str) -> None:
    with open_cache(url) as first, open_cache(url) as second:
        assert (first.owner, second.owner) == (True, False)
        assert answer(second, "key", 1) == 1
        assert answer(second, "key", 2) == 1, "not in the nursery"
        assert answer(first, "key", 3) == 1, "neither collected nor found by its lease"
        second.maintain()
        first.maintain()
        assert first.stats().reported_hits == 1
        first.close()
        second.maintain()
        assert second.owner
        assert answer(second, "key", 4) == 1
        second.check()


def test_the_owner_settles_at_once_what_others_hand_over(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "TICK", 60.0)  # without the periodic collection
    with open_cache(url) as owner, open_cache(url) as reader:
        wait_until(lambda: store_of(owner)._near.subscribed)
        for key in range(5):
            answer(reader, key, key)
        wait_until(lambda: owner.stats().entries == 5)


def test_a_purge_and_requests_about_keys_work_in_every_process(url: str) -> None:
    with open_cache(url) as owner, open_cache(url) as reader:
        for key in range(3):
            answer(owner, key, key)
        answer(reader, "handed over", 1)
        wait_until(lambda: len(reader.entries().rows) == 4)
        (one, *_) = (row.key for row in reader.entries().rows)
        assert reader.purge(key=one) == 1
        assert reader.purge(model="none") == 0
        assert reader.purge() == 3
        assert owner.stats().entries == 0
        records, since = reader._internal.browser.records(bytes.fromhex(one))
        assert [record.cause for record in records] == ["purged"]
        assert (records, since) == owner._internal.browser.records(bytes.fromhex(one))
        assert reader._internal.coordinator.role.settled() == owner._internal.coordinator.role.settled() != {}
        request = reader._internal.browser.request(bytes.fromhex(one))
        assert request is not None
        assert request == owner._internal.browser.request(bytes.fromhex(one))


def test_a_purge_by_tag_works_in_every_process(url: str) -> None:
    with open_cache(url) as owner, open_cache(url) as reader:
        for key, tags in (("a", ("red", "blue")), ("b", ("blue",)), ("c", ("green",)), ("d", ())):
            owner.cached(name="one", tags=tags)(lambda _: 1)(key)
        reader.cached(name="one", tags="blue")(lambda _: 1)("e")
        wait_until(lambda: reader.entries().total == 5)
        assert sorted(row.tags for row in reader.entries().rows) == [
            [], ["blue"], ["blue"], ["blue", "red"], ["green"],
        ]  # fmt: skip
        assert reader.purge(tags=["red", "green"], dry_run=True) == reader.purge(tags=["red", "green"]) == 2
        assert reader.purge(tags="blue") == 2
        assert owner.stats().entries == 1
        owner.check()


def test_entries_are_exported_and_imported_while_the_owner_runs(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Cache("2MB", path=url, policy="gdsf-cost", shadows=("lru",)) as owner:
        for key in range(3):
            for _ in range(key + 1):
                answer(owner, key, key)
        owner.maintain()  # the snapshot has the requests
        store_of(owner).flush()
        assert main(["export", url]) == 0
        (tmp_path / "entries.jsonl").write_text(capsys.readouterr().out, "utf-8")
        assert owner.purge() == 3
        spent = owner.stats().shadows
        assert main(["import", str(tmp_path / "entries.jsonl"), url]) == 0
        assert "3 entries imported through the process that uses the cache." in capsys.readouterr().out
        owner.maintain()
        assert sorted(round(row.requests) for row in owner.entries().rows) == [1, 2, 3]
        assert owner.stats().shadows == spent, "imported requests are not paid for"
        assert [answer(owner, key, -1) for key in range(3)] == [0, 1, 2]
        owner.check()


def test_an_owner_refuses_conditions_that_it_does_not_know(url: str) -> None:
    with open_cache(url) as owner, open_cache(url) as reader:
        answer(owner, "key", 1)
        store = store_of(reader)
        for request in (
            {"ask": "purge", "key": None, "model": None, "tenant": None, "older_than": None},
            {"ask": "purge_where", "conditions": {"shape": "round"}},
        ):
            assert b"another version of knapcache" in store.ask(orjson.dumps(request), 10)
        assert owner.stats().entries == 1


def test_entries_show_the_requests_of_all_processes_in_every_process(url: str) -> None:
    with Cache("2MB", path=url, policy="adaptive") as owner, Cache("2MB", path=url, policy="adaptive") as reader:
        for key, times in (("often", 5), ("once", 1)):
            for _ in range(times):
                answer(owner, key, 1)
        wait_until(lambda: reader.entries().total == 2)
        for cache in (owner, reader):
            assert sorted(round(row.requests) for row in cache.entries().rows) == [1, 5]


def test_without_an_owner_entries_are_listed_after_a_moment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_requests, "READ_SECONDS", 0.1)
    with open_cache(url) as owner:
        answer(owner, "key", 1)
        store = store_of(owner).reader()
    with closing(store):
        reader = Reader(store, Ledger(), lambda: None, True)
        assert reader.records(b"k" * 32) == ([], math.inf)
        assert reader.entries().requests.tolist() == [1.0]


def test_a_burst_at_three_caches_makes_one_call(url: str) -> None:
    """Also if the owner makes the call and does not store the answer, which costs nothing."""
    calls: Counter[int] = Counter()
    caches = [Cache("2MB", path=url, policy="adaptive") for _ in range(3)]

    def call(k: int) -> Reply:
        calls[k] += 1
        time.sleep(0.02)
        return Reply(b"answer %d" % k, model="m", cost=float(k % 2))

    async def call_async(k: int) -> Reply:
        return await asyncio.to_thread(call, k)

    async def burst(k: int) -> list[bytes]:
        blocking = [asyncio.to_thread(c.fetch, CHAT, request_of(k), lambda: call(k)) for c in caches]
        coroutines = [cache.afetch(CHAT, request_of(k), lambda: call_async(k)) for cache in caches]
        return [found.payload for found in await asyncio.gather(*blocking, *coroutines)]

    try:
        for k in range(10):
            assert asyncio.run(burst(k)) == [b"answer %d" % k] * 6
    finally:
        for cache in caches:
            cache.close()
    assert calls == dict.fromkeys(range(10), 1)


def test_only_a_request_that_waited_for_a_call_is_coalesced(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_cache(url) as caller, open_cache(url) as other, ThreadPoolExecutor() as pool:
        lead, refused = store_of(other).lead, set()

        def lead_and_note(key: bytes) -> Entry | KeyLease | None:
            found = lead(key)
            refused.add(key)
            return found

        monkeypatch.setattr(store_of(other), "lead", lead_and_note)
        outcomes = []
        for ended_before in (True, False):
            request = keyed(caller, request_of(ended_before))
            pending = caller._internal.begin(request)
            assert isinstance(pending, PendingFetch)
            if ended_before:  # the caller of the first request has its answer now; the store does not
                pending.note_end()
            found = pool.submit(other._internal.begin, request)
            wait_until(partial(refused.__contains__, request.key.digest))  # it waits for the lease
            pending.complete(Reply(b"{}"))
            answer = found.result(60)
            assert isinstance(answer, Answer)
            outcomes.append(answer.outcome)
        assert outcomes == ["hit", "coalesced"]
        assert (other.stats().hits, other.stats().coalesced) == (1, 1)


def test_an_answer_that_the_owner_has_not_decided_is_a_hit_in_every_process(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "TICK", 60.0)
    monkeypatch.setattr(coordinator, "ARRIVALS_TICK", 60.0)
    with open_cache(url) as owner, open_cache(url) as reader:
        outcomes = [
            cache.fetch(CHAT, request_of("hello"), lambda: Reply(b"answer")).outcome
            for cache in (reader, owner, reader)
        ]
        assert outcomes == ["miss", "hit", "hit"]
        assert (owner.stats().hits, owner.stats().entries) == (1, 0)


def test_a_failed_call_lets_another_process_call(url: str) -> None:
    with open_cache(url) as first, open_cache(url) as second:
        started, go_on = threading.Event(), threading.Event()

        def fail(_: str) -> object:
            started.set()
            go_on.wait(10)
            raise OSError("upstream away")

        with ThreadPoolExecutor(2) as pool:
            failing = pool.submit(lambda: first.cached(name="answer")(fail)("key"))
            started.wait(10)
            waiting = pool.submit(lambda: answer(second, "key", 2))
            go_on.set()
            assert waiting.result(60) == 2
            assert isinstance(failing.exception(), OSError)


def test_an_answer_that_may_not_be_stored_ends_the_lease(url: str) -> None:
    with open_cache(url) as first, open_cache(url) as second:
        for cache in (first, second, first):
            with within(5.0, "a call that waits for no lease"):
                cache.fetch(CHAT, request_of("hello"), lambda: Reply(b"error", cacheable=False))


def test_a_reader_loads_its_kernels_before_it_takes_over(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[str] = []
    monkeypatch.setattr(background_compile, "prepare_for_takeover", lambda policy, _shadows: prepared.append(policy))
    with open_cache(url):
        assert prepared == [], "the owner has loaded them"
        with open_cache(url):
            assert prepared == ["lru"]


def test_a_replaced_owner_reads_on(url: str, server: RedisProcess) -> None:
    with open_cache(url) as first, open_cache(url) as second:
        assert answer(first, "key", 1) == 1
        first.maintain()
        with server.client() as client:  # as if the first had been stopped for longer than its lease
            client.delete(store_of(first)._member.attachment().names.owner)
        second.maintain()
        assert second.owner
        assert answer(first, "late", 1) == 1
        wait_until(lambda: not first.owner)
        first.maintain()
        assert first.stats().ownership_lost == 1
        assert answer(first, "key", 2) == 1
        assert answer(first, "new", 3) == 3
        second.maintain()
        assert answer(second, "new", 4) == 3
        second.check()


def test_an_outage_makes_misses_and_forgets_no_entry(url: str, server: RedisProcess) -> None:
    with open_cache(url) as cache:
        for key in range(20):
            answer(cache, key, key)
        cache.maintain()
        server.signal(signal.SIGSTOP)
        try:
            assert [answer(cache, key, "new") for key in range(5)] == ["new"] * 5
        finally:
            server.signal(signal.SIGCONT)
        wait_until(lambda: not store_of(cache).write_backlog_full)
        assert [answer(cache, key, "new") for key in range(5, 20)] == list(range(5, 20))
        assert cache.stats().missing_entries == 0
        cache.check()


def test_a_purge_reaches_near_caches_and_undecided_answers(url: str) -> None:
    with open_cache(url) as owner, open_cache(url) as reader:
        answer(owner, "decided", 1)
        wait_until(lambda: store_of(reader)._near.subscribed)
        assert [answer(reader, key, 1) for key in ("decided", "undecided", "undecided")] == [1, 1, 1]
        assert owner.purge() == 2
        wait_until(lambda: answer(reader, "decided", 2) == 2)
        wait_until(
            lambda: answer(reader, "undecided", 2) == 2
        )  # the server publishes each shard's removals by themselves


def test_a_closed_cache_leaves_no_threads_of_leases(url: str) -> None:
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("knapcache-lease")]

    async def ask(cache: Cache) -> str:
        async with cache:

            @cache.cached
            async def shout(text: str) -> str:
                return text.upper()

            found = await shout("a")
            assert len(threads()) > before
            return found

    before = len(threads())  # of caches that other tests have left to the collector
    cache = open_cache(url)  # referred to until the end: the collector would end the threads, too
    assert asyncio.run(ask(cache)) == "A"
    wait_until(lambda: len(threads()) <= before, "the end of the threads")
