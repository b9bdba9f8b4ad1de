"""Entries whose requests have the form of an older version leave when the file is opened, and the others stay."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path

import pytest

from knapcache import Cache, Reply
from knapcache.cache.options import seal_secret
from knapcache.keys.canonical import netstring
from knapcache.model import REQUEST_VERSION
from knapcache.store.sqlite.database import VERSION_ROW, is_outdated
from knapcache.store.sqlite.recovery import SqliteOptions
from knapcache.store.sqlite.store import SqliteStore
from tests.support.stores import entry_of, run_sql

CHAT = "chat/completions"
CAPACITY = 1 << 20
OLD = b"19:knapcache request 1,16:chat/completions,0:,0:,{}"


def fetch(cache: Cache, name: str) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": name}]}
    return cache.fetch(CHAT, body, lambda: Reply(b"answer", model="m", cost=1.0, seconds=1.0)).outcome


def make_old(path: Path, old: int) -> None:
    """Add entries in the old form, and make the file look as one that was never converted."""
    with closing(SqliteStore(path, CAPACITY, SqliteOptions(secret=seal_secret(None)))) as store:
        for name in range(old):
            store.apply(entry_of(store, name, 300, request=OLD if name % 2 else netstring(OLD))).result()
    run_sql(path, "DELETE FROM state WHERE id = ?", (VERSION_ROW,))


@pytest.mark.parametrize("others", [3, 0])
def test_entries_that_can_never_be_hit_leave(tmp_path: Path, caplog: pytest.LogCaptureFixture, others: int) -> None:
    path = tmp_path / "cache.db"
    with closing(Cache(CAPACITY, path=path, policy="lru")) as cache:
        for name in range(others):
            fetch(cache, str(name))
    make_old(path, 40)
    with closing(SqliteStore(path, CAPACITY, SqliteOptions(secret=seal_secret(None)), own=False)) as reader:
        assert len(list(reader.scan())) == 40 + others
        caplog.set_level(logging.WARNING)
        with closing(Cache(CAPACITY, path=path, policy="lru")) as cache:
            assert cache.stats().entries == others
            assert [fetch(cache, str(name)) for name in range(others + 1)] == ["hit"] * others + ["miss"]
            cache.check()
        assert len(list(reader.scan())) == others + 1, "a reader of before goes on"
    assert [record.getMessage().count("40 entries of an older version") for record in caplog.records] == [1]
    caplog.clear()
    with closing(Cache(CAPACITY, path=path, policy="lru")) as cache:
        assert cache.stats().entries == others + 1
    assert caplog.records == [], "the file is converted once"


@pytest.mark.parametrize(
    ("request_bytes", "outdated"),
    [(OLD, True), (netstring(OLD), True), (netstring(REQUEST_VERSION), False), (b"request 1", False), (b"", False)],
)
def test_only_requests_that_name_another_version_are_outdated(request_bytes: bytes, outdated: bool) -> None:
    assert is_outdated(request_bytes) == outdated
