"""A store with many entries: requests are served while it is opened."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from knapcache import Cache
from knapcache.cache import coordinator, restore
from knapcache.cache.admission import AdmissionController
from knapcache.cache.cache import internal_of
from knapcache.cache.roles import Owner, Reader
from tests.support.caches import CHAT, Upstream, admission_of, request_of, small_cache
from tests.support.timing import DEADLINE, wait_until

ENTRIES = 30


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with entries."""
    with small_cache(path=tmp_path / "answers.db") as cache:
        for k in range(ENTRIES):
            cache.fetch(CHAT, request_of(k), Upstream()(k))
    return tmp_path / "answers.db"


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The opening of a store waits for this event."""
    event, begin = threading.Event(), restore.open_store

    def open_late(admission: AdmissionController, now: float) -> None:
        assert event.wait(DEADLINE)
        begin(admission, now)

    monkeypatch.setattr(coordinator, "open_store", open_late)
    monkeypatch.setattr(coordinator, "MAX_AT_ONCE", ENTRIES - 1)
    yield event
    event.set()


def outcome(cache: Cache, k: int) -> str:
    return cache.fetch(CHAT, request_of(k), Upstream()(k)).outcome


def role_of(cache: Cache) -> Owner | Reader:
    return internal_of(cache).coordinator.role


def test_requests_are_served_before_the_store_is_open(path: Path, release: threading.Event) -> None:
    with small_cache(path=path) as cache:
        assert isinstance(role_of(cache), Reader)
        assert [outcome(cache, k) for k in (0, 0, 1)] == ["hit"] * 3
        assert outcome(cache, 100) == "miss"
        assert cache.owner
        assert cache.stats().owner
        release.set()
        wait_until(lambda: isinstance(role_of(cache), Owner))
        cache.maintain()
        assert outcome(cache, 100) == "hit"
        cache.check()
        assert cache.stats().entries == ENTRIES + 1
        assert cache.stats().ownership_gained == 0
        assert admission_of(cache).arrived >= 5, "requests during the opening are counted"


def test_what_needs_the_policy_waits_for_it(path: Path, release: threading.Event) -> None:
    with small_cache(path=path) as cache, ThreadPoolExecutor(1) as pool:
        purged = pool.submit(cache.purge)
        assert outcome(cache, 1) == "hit"
        assert not purged.done()
        release.set()
        assert purged.result(DEADLINE) == ENTRIES
        assert cache.stats().entries == 0


def test_a_cache_is_closed_while_it_opens(path: Path, release: threading.Event) -> None:
    cache = small_cache(path=path)
    with ThreadPoolExecutor(1) as pool:
        closed = pool.submit(cache.close)
        release.set()
        closed.result(DEADLINE)
    with small_cache(path=path) as cache:
        wait_until(lambda: isinstance(role_of(cache), Owner))
        cache.check()
        assert cache.stats().entries == ENTRIES


def test_few_entries_are_read_at_once(path: Path, release: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "MAX_AT_ONCE", ENTRIES)
    release.set()
    with small_cache(path=path) as cache:
        assert isinstance(role_of(cache), Owner)
