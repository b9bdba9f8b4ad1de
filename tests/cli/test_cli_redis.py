"""`export` and `import` between files and real servers, and `inspect` and `purge` on URLs."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from knapcache import Answer, Cache, Reply
from knapcache.cli.cache_file import FILE_NAME, SECRET_NAME
from knapcache.cli.main import main
from knapcache.proxy.settings.secrets import principal_namespace
from knapcache.store.base import NOT_IN_MEMORY
from knapcache.store.redis.layout import MIN_SIZE_LIMIT, ServerLayout
from knapcache.store.redis.store import RedisStore
from knapcache.store.size_limits import size_limit_of
from knapcache.store.sqlite.layout import DiskLayout
from tests.store.redis.conftest import patience
from tests.support.programs import find_module
from tests.support.redis_servers import RedisProcess
from tests.support.timing import wait_until

__all__ = ["patience"]

find_module("redis", "the extra redis")

SECRET = "5ec2e7" + "0" * 58
PASSWORD = "hunter2"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path_factory.mktemp("engine")) as server:
        with server.client() as client:
            client.acl_setuser("alice", enabled=True, passwords=["+" + PASSWORD], keys="*", channels="*",
                               commands=["+@all"])  # fmt: skip
        yield server


@pytest.fixture
def url(server: RedisProcess, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A URL with a password and a prefix of the test's own."""
    monkeypatch.setenv("KNAPCACHE_SECRET", SECRET)
    prefix = re.sub(r"\W", "", request.node.name)[:40]
    return f"redis://alice:{PASSWORD}@127.0.0.1:{server.port}/0?prefix={prefix}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data directory with a secret and no cache."""
    path = tmp_path / "data"
    path.mkdir(mode=0o700)
    (path / SECRET_NAME).write_text(SECRET + "\n")
    return path


def cache_at(path: str | Path, capacity: str = "2MB", policy: str = "gdsf-cost", **options: Any) -> Cache:
    secret = bytes.fromhex(SECRET)
    return Cache(capacity, path=path, cost="seconds", policy=policy, shadows=(), secret=secret, **options)


def ask(cache: Cache, k: int) -> Answer:
    """Request answer k, which costs k + 1."""
    request = {"model": "m", "messages": [f"question {k}"]}
    return cache.fetch("chat/completions", request, lambda: Reply(b"x" * 3000, "m", cost=k + 1.0))


def store_of(cache: Cache) -> RedisStore:
    store = cache._internal.coordinator.store
    assert isinstance(store, RedisStore)
    return store


def fill(cache: Cache, entries: int = 10) -> None:
    """Add entries. Entry k has k + 1 requests."""
    for k in range(entries):
        for _ in range(k + 1):
            ask(cache, k)


def run(capsys: pytest.CaptureFixture[str], *words: str | Path, code: int = 0) -> str:
    """Run a command. Return what it prints, in one line; the password is never in it."""
    assert main([str(word) for word in words]) == code
    output = capsys.readouterr()
    assert PASSWORD not in output.out + output.err
    return " ".join((output.err if code else output.out).split())


def rows(capsys: pytest.CaptureFixture[str], place: str | Path, *more: str) -> dict[str, tuple[float, float]]:
    """Return requests and cost of each entry, by key."""
    found = json.loads(run(capsys, "inspect", place, "--json", *more))
    return {row["key"]: (round(row["requests"], 3), row["cost"]) for row in found["rows"]}


def outcomes(cache: Cache, entries: int = 10) -> list[str]:
    return [ask(cache, k).outcome for k in range(entries)]


def copy(
    capsys: pytest.CaptureFixture[str], source: str | Path, target: str | Path, file: Path, *more: str, code: int = 0
) -> str:
    """Export one cache and import it into another one. Return what the import prints."""
    run(capsys, "export", source, "-o", file)
    return run(capsys, "import", file, target, *more, code=code)


def test_a_cache_goes_from_a_data_directory_to_an_engine_and_back(
    folder: Path, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "entries.jsonl"
    with cache_at(folder / FILE_NAME) as running:
        fill(running)
        running.maintain()
        running._internal.coordinator.store.flush()
        assert copy(capsys, folder, url, file) == "10 entries imported."  # the source is in use
        running.check()
        before = rows(capsys, folder)
    header = json.loads(file.read_bytes().splitlines()[0])
    assert (header["policy"], header["capacity"]) == ("gdsf-cost", 2_000_000), "a new cache gets them"
    assert rows(capsys, url) == before
    assert [count for count, _ in before.values()] == list(range(10, 0, -1))
    with cache_at(url) as cache:
        assert outcomes(cache) == ["hit"] * 10
        cache.check()
    counted = rows(capsys, url)
    assert counted == {key: (count + 1, cost) for key, (count, cost) in before.items()}, "the snapshot was not used"
    back = tmp_path / "back"
    back.mkdir(mode=0o700)
    assert copy(capsys, url, back, file) == "10 entries imported."
    assert rows(capsys, back) == counted
    with cache_at(back / FILE_NAME) as cache:
        assert outcomes(cache) == ["hit"] * 10
        cache.check()


def test_an_owner_of_a_shared_store_counts_the_imported_requests(
    folder: Path, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with cache_at(folder / FILE_NAME, policy="adaptive") as cache:
        fill(cache)
        large = {"model": "m", "messages": ["large"]}
        cache.fetch("chat/completions", large, lambda: Reply(b"x" * 100_000, "m", cost=1.0))
    with cache_at(url, policy="adaptive") as owner, cache_at(url, policy="adaptive") as reader:
        text = copy(capsys, folder, url, tmp_path / "entries.jsonl")
        assert text == "10 entries imported through the process that uses the cache; left out: 1 not admitted."
        assert (owner.owner, reader.owner) == (True, False)
        wait_until(lambda: counts_of(owner) == list(range(1, 11)), "the requests of the source", 20.0)
        assert [ask(reader, k).outcome for k in range(10)] == ["hit"] * 10
        owner.check()


def counts_of(cache: Cache) -> list[int]:
    return sorted(round(row.requests) for row in cache.entries().rows)


def test_newer_entries_of_the_target_stay_and_expired_ones_are_not_copied(
    folder: Path, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = time.time()
    with cache_at(folder / FILE_NAME, clock=lambda: now - 100.0) as old:
        fill(old)
        old.cached(name="short-lived", ttl=50.0)(lambda: 1)()
    with cache_at(url, clock=lambda: now - 200.0) as older:
        outcomes(older, 3)
    with cache_at(url) as newer:
        outcomes(newer, 5)
    text = copy(capsys, folder, url, tmp_path / "entries.jsonl")
    assert text == "8 entries imported; left out: 2 as new or newer in the cache."
    with cache_at(url) as cache:
        assert outcomes(cache) == ["hit"] * 10
        assert cache.stats().entries == 10
        cache.check()
    before = rows(capsys, url)
    again = copy(capsys, folder, url, tmp_path / "entries.jsonl")
    assert again == "0 entries imported; left out: 10 as new or newer in the cache."
    assert rows(capsys, url) == before, "a second run must not count the same requests again"


def test_encrypted_caches_are_copied_with_both_keys(
    folder: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = "11" * 32, "22" * 32
    monkeypatch.setenv("ONE", one)
    monkeypatch.setenv("OTHER", other)
    with cache_at(folder / FILE_NAME, encryption_key=one) as cache:
        fill(cache, 3)
    assert "encrypt" in run(capsys, "export", folder, code=2)
    file = tmp_path / "entries.jsonl"
    run(capsys, "export", folder, "-o", file, "--encryption-key-env", "ONE")
    assert "3 entries imported" in run(capsys, "import", file, url, "--encryption-key-env", "OTHER")
    with cache_at(url, encryption_key=other) as cache:
        assert outcomes(cache, 3) == ["hit"] * 3
    assert len(rows(capsys, url, "--encryption-key-env", "OTHER")) == 3


def test_another_secret_and_a_missing_cache_are_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with cache_at(url) as cache:
        fill(cache, 3)
    file = tmp_path / "entries.jsonl"
    run(capsys, "export", url, "-o", file)
    assert "has no cache with this prefix" in run(capsys, "export", url.replace("prefix=", "prefix=unused"), code=2)
    monkeypatch.setenv("KNAPCACHE_SECRET", "7" * 64)
    assert "another secret than the one given" in run(capsys, "export", url, code=2)
    assert "another secret than the one given" in run(capsys, "import", file, url, code=2)


def test_commands_use_the_secret_that_the_proxy_of_the_settings_uses(
    url: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with cache_at(url) as cache:
        fill(cache, 3)
    monkeypatch.delenv("KNAPCACHE_SECRET")
    config = tmp_path / "knapcache.toml"
    config.write_text(f'store = "{url}"\npath = "{folder}"\n')
    assert "3 entries" in run(capsys, "inspect", "--config", config)


def test_entries_of_a_proxy_are_not_imported_without_its_secret(
    url: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "entries.jsonl"
    with cache_at(folder / FILE_NAME) as cache:
        namespace = principal_namespace(bytes.fromhex(SECRET), "anonymous")
        cache.fetch("chat/completions", {"model": "m", "messages": ["question"]}, lambda: Reply(b"x", "m", cost=1.0),
                    namespace=namespace)  # fmt: skip
    run(capsys, "export", folder, "-o", file)
    monkeypatch.delenv("KNAPCACHE_SECRET")
    assert "set KNAPCACHE_SECRET, or give --secret-file" in run(capsys, "import", file, url, code=2)
    assert "has no cache with this prefix" in run(capsys, "inspect", url, code=2), "it was created"
    assert run(capsys, "import", file, url, "--secret-file", folder / SECRET_NAME) == "1 entry imported."


def test_an_engine_that_goes_away_is_one_clear_error(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with cache_at(folder / FILE_NAME) as cache:
        fill(cache, 3)
    file = tmp_path / "entries.jsonl"
    run(capsys, "export", folder, "-o", file)
    monkeypatch.setenv("KNAPCACHE_SECRET", SECRET)
    server = RedisProcess(tmp_path)
    server.kill()
    for words in (["import", file, server.url], ["export", server.url], ["inspect", server.url]):
        text = run(capsys, *words, code=2)
        assert "the server does not answer" in text
        assert text.count("knapcache:") == 1


@pytest.mark.features
def test_inspect_shows_the_engine_and_does_not_become_the_owner(
    url: str, server: RedisProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with cache_at(url) as cache:
        fill(cache)
        cache.maintain()
        cache._internal.coordinator.store.flush()
        text = run(capsys, "inspect", url)
        assert "owned by a process" in text
        assert "one server, no replica, 1 shard," in text
        assert re.search(r"(Redis|Valkey) \d+\.\d+", text)
        assert "10 entries" in text
        assert cache.owner
    assert "no owner" in run(capsys, "inspect", url)
    question = tmp_path / "question.json"
    question.write_text(json.dumps({"model": "m", "messages": ["question 3"]}))
    assert run(capsys, "why", question, url).startswith("Stored: key ")
    engine = json.loads(run(capsys, "inspect", url, "--json"))["engine"]
    layout = ServerLayout.of(2_000_000)
    assert (engine["limit"], engine["nursery_limit"]) == (layout.capacity, layout.nursery)
    assert (engine["entries"], engine["owner"]) == (10, False)
    with server.client() as client:
        before = client.dbsize()
        assert "no cache with this prefix" in run(capsys, "inspect", url.replace("prefix=", "prefix=mistyped"), code=2)
        assert client.dbsize() == before, "inspect created a cache"


def test_commands_wait_longer_than_requests_for_a_busy_engine(
    url: str, server: RedisProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    with cache_at(url) as cache:
        fill(cache, 2)
    server.signal(signal.SIGSTOP)
    try:
        threading.Timer(0.6, lambda: server.signal(signal.SIGCONT)).start()
        assert "2 entries" in run(capsys, "inspect", url)
    finally:
        server.signal(signal.SIGCONT)


def test_purge_on_a_url_without_an_owner(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with cache_at(url) as cache:
        fill(cache)
    key = next(iter(rows(capsys, url)))
    assert "1 entry would be removed" in run(capsys, "purge", url, "--key", key, "--dry-run")
    assert "1 entry removed" in run(capsys, "purge", url, "--key", key)
    assert "0 entries removed" in run(capsys, "purge", url, "--model", "other")
    with cache_at(url) as cache:
        assert cache.stats().entries == 9
        cache.check()
    assert "9 entries removed" in run(capsys, "purge", url, "--all")


def test_purge_on_a_url_in_use_is_made_by_its_owner(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "proxy.toml"
    config.write_text(f'store = "{url}"\nsecret = "{SECRET}"\n')
    with cache_at(url) as owner, cache_at(url) as reader:
        fill(owner)
        key = bytes.fromhex(ask(reader, 9).key)  # its near cache has the entry
        assert (owner.owner, reader.owner) == (True, False)
        assert "10 entries removed" in run(capsys, "purge", "--config", config, "--all")
        assert (owner.owner, owner.stats().entries) == (True, 0)
        wait_until(lambda: store_of(reader).get_nowait(key) is NOT_IN_MEMORY, "the purge in the near cache", 5.0)
        assert ask(reader, 9).outcome == "miss"
        owner.check()


def test_a_purge_without_an_owner_reaches_answers_in_the_nursery(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with cache_at(url) as cache:
        store = store_of(cache).reader()
        key = ask(cache, 0).key
        entry = store_of(cache).get(bytes.fromhex(key))
        assert entry is not None
    for k, model in enumerate(("keep", "drop")):
        other = entry._replace(key=bytes([k]) * 32, model=model)
        store.hand_over(other._replace(size=store.entry_size(other)))
    store.close()
    assert "0 entries removed" in run(capsys, "purge", url, "--model", "drop")
    assert {key[:2] for key in rows(capsys, url)} == {"00", key[:2]}


@pytest.mark.parametrize("size_limit", [MIN_SIZE_LIMIT, 2_000_000, 256_000_000, 1 << 31, 7 * 10**12])
def test_the_size_limit_follows_from_the_capacity(size_limit: int) -> None:
    def engine(n: int) -> int:
        return ServerLayout.of(n).capacity

    def disk(n: int) -> int:
        return DiskLayout.of(n).capacity

    for capacity_of in (engine, disk):
        assert size_limit_of(capacity_of(size_limit), capacity_of, MIN_SIZE_LIMIT) == size_limit
