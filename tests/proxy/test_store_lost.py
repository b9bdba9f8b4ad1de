"""If the store cannot be opened, answers are stored in memory, and the log and the admin API report it."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest

from knapcache import Cache, InvalidInput
from knapcache.proxy.proxy import Proxy
from knapcache.proxy.settings import Settings
from knapcache.proxy.storage import MAX_MEMORY_FALLBACK
from knapcache.testing import FakeUpstream
from tests.support.proxy_fixtures import Start

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


def make_directory(path: Path) -> None:
    path.mkdir()


def make_foreign_database(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE customers (name TEXT)")
    database.close()


def make_cache_with_another_secret(path: Path) -> None:
    Cache("2MiB", path=path, cost="seconds", policy="lru", shadows=(), secret=b"not the proxy's own").close()


@pytest.mark.parametrize("make", [make_directory, make_foreign_database, make_cache_with_another_secret])
def test_requests_are_answered_from_memory(
    make: Any, start: Start, upstream: FakeUpstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    make(folder / "cache.sqlite")
    before = None if make is make_directory else (folder / "cache.sqlite").read_bytes()
    proxy = start()
    (line,) = [line for line in caplog.records if "STORE NOT OPENED" in line.message]
    assert line.levelno == logging.ERROR
    assert "memory (20000000 bytes)" in line.message
    with httpx.Client(base_url=proxy.url) as client:
        assert client.get("/readyz").status_code == 200
        answers = [client.post("/v1/chat/completions", json=BODY) for _ in range(3)]
        assert [(each.status_code, each.headers["x-knapcache"]) for each in answers] == [
            (200, "miss"),
            (200, "hit"),
            (200, "hit"),
        ]
        bearer = {"authorization": f"Bearer {proxy.proxy.admin_token}"}
        found = client.get("/admin/v1/summary", headers=bearer).json()
    assert found["health"]["store"] == "memory"
    assert found["storage"]["entries"] == 1
    assert upstream.count() == 1
    proxy.proxy.cache.check()
    if before is not None:
        assert (folder / "cache.sqlite").read_bytes() == before, "a foreign file must not be changed"


def test_a_request_log_that_cannot_be_written_is_reported(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "requests").write_text("a file in place of the folder")
    proxy = start(request_log=True)
    assert httpx.post(f"{proxy.openai_url}/chat/completions", json=BODY).status_code == 200
    assert "No request log until the next start" in caplog.text


def test_the_memory_that_replaces_a_large_file_is_limited(tmp_path: Path) -> None:
    (tmp_path / "cache.sqlite").mkdir()
    proxy = Proxy(Settings(path=tmp_path, capacity="500GB", policy="lru", shadows=()))
    assert proxy.cache.stats()["size_limit"] == MAX_MEMORY_FALLBACK
    proxy.cache.close()


def test_invalid_settings_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"capacity \(size_limit\) is at least"):
        Proxy(Settings(path=tmp_path, capacity=1000, policy="lru", shadows=()))


def test_the_setting_synchronous_reaches_the_store(tmp_path: Path) -> None:
    proxy = Proxy(Settings(path=tmp_path, capacity="2MiB", synchronous="full", policy="lru", shadows=()))
    store: Any = proxy.cache.coordinator.store
    assert store._options.synchronous == "full"
    assert not proxy.storage.memory_fallback
    proxy.cache.close()
