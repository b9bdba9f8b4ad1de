"""A store that cannot be opened: requests are answered, answers are kept in memory, and everybody is told."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest

from knapcache import Cache, InvalidInput
from knapcache.serve.proxy import MAX_MEMORY_FALLBACK, Proxy
from knapcache.serve.settings import Settings
from knapcache.testing import FakeUpstream
from tests.serve.conftest import Start

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


def a_directory(path: Path) -> None:
    path.mkdir()


def somebody_elses(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE customers (name TEXT)")
    database.close()


def of_another_secret(path: Path) -> None:
    Cache("2MiB", path=path, cost="seconds", policy="lru", shadows=(), secret=b"not the proxy's own").close()


@pytest.mark.parametrize("spoil", [a_directory, somebody_elses, of_another_secret])
def test_requests_are_answered_all_the_same(
    spoil: Any, start: Start, upstream: FakeUpstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    spoil(folder / "cache.sqlite")
    before = None if spoil is a_directory else (folder / "cache.sqlite").read_bytes()
    proxy = start()
    (line,) = [line for line in caplog.records if "STORE NOT OPENED" in line.message]
    assert line.levelno == logging.ERROR
    assert "memory (20000000 bytes)" in line.message
    with httpx.Client(base_url=proxy.url) as client:
        assert client.get("/readyz").status_code == 200
        asked = [client.post("/v1/chat/completions", json=BODY) for _ in range(3)]
        assert [(one.status_code, one.headers["x-knapcache"]) for one in asked] == [
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
        assert (folder / "cache.sqlite").read_bytes() == before, "what is not ours stays as it is"


def test_a_request_log_that_cannot_be_written(start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "requests").write_text("in the way")
    proxy = start(request_log=True)
    assert httpx.post(f"{proxy.openai}/chat/completions", json=BODY).status_code == 200
    assert "No request log until the next start" in caplog.text


def test_a_large_file_does_not_become_a_large_memory(tmp_path: Path) -> None:
    (tmp_path / "cache.sqlite").mkdir()
    proxy = Proxy(Settings(path=tmp_path, capacity="500GB", policy="lru", shadows=()))
    assert proxy.cache.stats()["size_limit"] == MAX_MEMORY_FALLBACK
    proxy.cache.close()


def test_settings_that_cannot_be_used_are_no_lost_store(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="size_limit must be"):
        Proxy(Settings(path=tmp_path, capacity=1000, policy="lru", shadows=()))


def test_the_file_is_as_sure_as_the_settings_say(tmp_path: Path) -> None:
    proxy = Proxy(Settings(path=tmp_path, capacity="2MiB", synchronous="full", policy="lru", shadows=()))
    store: Any = proxy.cache._coordinator.store
    assert store._settings["synchronous"] == "full"
    assert not proxy.memory_fallback
    proxy.cache.close()
