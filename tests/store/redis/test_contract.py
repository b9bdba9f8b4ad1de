"""The store on Valkey and Redis passes the contract's checks in every topology."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from knapcache.store.base import Clock, Store
from knapcache.store.redis.store import RedisStore
from knapcache.store.redis.urls import parse
from knapcache.testing import check_store
from tests.support.redis_servers import ClusterProcesses, RedisProcess, SentinelGroup

_prefixes = (f"knapcache:contract{k}" for k in itertools.count())


def build(url: str, query: str = "near=0", **options: object) -> Callable[[Clock], Store]:
    scheme, location = url.split(":", 1)

    def make(clock: Clock) -> Store:
        address = parse(scheme, f"{location}?prefix={next(_prefixes)}&{query}")
        return RedisStore(address, 2 << 20, clock=clock, **options)  # type: ignore[arg-type]

    return make


@pytest.mark.parametrize("query", ["near=0", "near=0&shards=5"])
def test_the_contract_on_a_server(each_engine: RedisProcess, query: str) -> None:
    check_store(build(each_engine.url, query))


def test_the_contract_with_encryption(engine: RedisProcess) -> None:
    check_store(build(engine.url, "near=0&shards=2", encryption_keys=(b"1" * 32, b"2" * 32), secret=b"secret"))


def test_the_contract_under_sentinel(sentinel: SentinelGroup) -> None:
    check_store(build(sentinel.url, "near=0&shards=3"))


def test_the_contract_in_a_cluster(cluster: ClusterProcesses) -> None:
    check_store(build(cluster.url, "near=0&shards=8"))
