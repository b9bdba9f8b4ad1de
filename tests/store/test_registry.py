"""Stores by URL and path."""

from __future__ import annotations

from pathlib import Path

import pytest

from knapcache.errors import InvalidInput
from knapcache.store import registry
from knapcache.store.base import StoreOptions
from knapcache.store.memory import MemoryStore
from knapcache.store.registry import open_store, split_url
from knapcache.store.sqlite.store import SqliteStore
from tests.support.stores import entry_of

OPTIONS = StoreOptions(size_limit=1 << 20)


@pytest.mark.parametrize(
    ("url", "scheme", "location"),
    [
        ("memory:", "memory", ""),
        ("sqlite:answers.db", "sqlite", "answers.db"),
        ("SQLite:answers.db", "sqlite", "answers.db"),
        ("sqlite:///var/answers.db", "sqlite", "///var/answers.db"),
        ("redis://host:6379/0", "redis", "//host:6379/0"),
        ("redis+cluster://host", "redis+cluster", "//host"),
        ("answers.db", "sqlite", "answers.db"),
        ("/var/answers.db", "sqlite", "/var/answers.db"),
        ("//var/answers.db", "sqlite", "/var/answers.db"),
        ("a:b.db", "sqlite", "a:b.db"),
        ("C:\\answers.db", "sqlite", "C:\\answers.db"),
        ("./redis:1.db", "sqlite", "./redis:1.db"),
        ("v2:answers.db", "sqlite", "v2:answers.db"),
        (":memory:", "sqlite", ":memory:"),
        (Path("redis:1.db"), "sqlite", "redis:1.db"),
        (Path("memory:"), "sqlite", "memory:"),
    ],
)
def test_schemes_are_letters_before_a_colon(url: str | Path, scheme: str, location: str) -> None:
    assert split_url(url) == (scheme, location)


def test_memory() -> None:
    store = open_store("memory:", OPTIONS)
    assert isinstance(store, MemoryStore)
    assert store.size_limit == 1 << 20


@pytest.mark.parametrize("form", ["{}", "sqlite:{}", "sqlite://{}"])
def test_sqlite_by_absolute_path(form: str, path: Path) -> None:
    store = open_store(form.format(path), OPTIONS)
    assert isinstance(store, SqliteStore)
    assert store.path == path
    store.close()


@pytest.mark.parametrize("form", ["answers.db", "sqlite:answers.db", "a:b.db", "sqlite:a:b.db", Path("redis:1.db")])
def test_sqlite_by_relative_path(form: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_store(form, OPTIONS).close()
    assert (tmp_path / str(form).removeprefix("sqlite:")).is_file()


def test_the_first_opens_as_owner_and_the_second_as_reader(path: Path) -> None:
    options = StoreOptions(size_limit=1 << 20, secret=b"secret", synchronous="full", clock=lambda: 1e9)
    owner, reader = open_store(path, options), open_store(f"sqlite:{path}", options)
    assert (owner.owner, reader.owner) == (True, False)
    entry = entry_of(owner, "a", expires=1e9 + 1)
    owner.apply(entry).result()
    assert reader.get(entry.key) == entry
    owner.close()
    assert reader.own()
    reader.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mongo://user:password@host/0", "unknown store mongo:, known are memory:, sqlite:, redis:, .*; a file of"),
        ("answers:1.db", "unknown store answers:"),
        ("memory:answers", "memory: takes no path, not 'answers'"),
        ("sqlite:", "a SQLite store needs a path"),
        ("", "a SQLite store needs a path"),
        ("sqlite://host/answers.db", "a SQLite URL is sqlite:PATH or sqlite:///ABSOLUTE/PATH"),
    ],
)
def test_bad_urls_are_refused(url: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as raised:
        open_store(url, OPTIONS)
    assert "password" not in str(raised.value)


@pytest.mark.parametrize("url", ["memory:", "answers.db"])
def test_bad_options_are_refused_for_every_store(url: str) -> None:
    with pytest.raises(InvalidInput, match="synchronous must be 'normal' or 'full', not 'off'"):
        open_store(url, StoreOptions(size_limit=1 << 20, synchronous="off"))


def test_another_store_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def open_other(location: str, options: StoreOptions) -> MemoryStore:
        opened.append((location, options.size_limit))
        return MemoryStore(options.size_limit)

    monkeypatch.setitem(registry.STORES, "other", open_other)
    assert isinstance(open_store("other://host/1", OPTIONS), MemoryStore)
    assert opened == [("//host/1", 1 << 20)]
