"""Servers for the tests of the store on Valkey and Redis: one of each kind for all tests of a worker."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from knapcache.store.redis.store import RedisStore
from knapcache.store.redis.urls import Address, parse
from tests.support.programs import find_module, skip_without
from tests.support.redis_servers import ENGINES, ClusterProcesses, RedisProcess, SentinelGroup, find_engine

find_module("redis", "the extra redis")

_numbers = itertools.count()
PATIENCE = 5.0
IMPATIENT = ("test_failovers", "test_failures", "test_urls")
"""Test files in which a server does not answer, or whose subject is the timeout."""


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer for replies than the 0.24 s of the product: a busy machine may delay a server that works."""
    defaults = Address.__init__.__kwdefaults__
    if defaults is not None and request.path.stem not in IMPATIENT:
        monkeypatch.setitem(defaults, "timeout", PATIENCE)


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    """A standalone server that tests do not stop."""
    with RedisProcess(tmp_path_factory.mktemp("engine")) as server:
        yield server


@pytest.fixture(scope="session")
def sentinel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelGroup]:
    with closing(SentinelGroup(tmp_path_factory.mktemp("sentinel"), down_after=60)) as group:
        yield group


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with closing(ClusterProcesses(tmp_path_factory.mktemp("cluster"), down_after=60)) as servers:
        yield servers


@pytest.fixture(params=["engine", "sentinel", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a server, of one under Sentinel, and of a cluster."""
    servers: RedisProcess | SentinelGroup | ClusterProcesses = request.getfixturevalue(request.param)
    return servers.url


@pytest.fixture(params=ENGINES)
def each_engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    """A fresh server of each program that is installed."""
    program = find_engine(request.param)
    if program is None:
        skip_without(f"{request.param}-server", f"{request.param}-server")
    with RedisProcess(tmp_path_factory.mktemp(request.param), program=program) as server:
        yield server


OpenStore = Callable[..., RedisStore]


@pytest.fixture
def open_store() -> Iterator[OpenStore]:
    """Open stores under a prefix of this test's own; all are closed at its end."""
    prefix, opened = f"test{next(_numbers)}", []

    def open_one(url: str, size_limit: int = 2 << 20, *, query: str = "near=0", **options: Any) -> RedisStore:
        scheme, location = url.split(":", 1)
        opened.append(RedisStore(parse(scheme, f"{location}?prefix={prefix}&{query}"), size_limit, **options))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()
