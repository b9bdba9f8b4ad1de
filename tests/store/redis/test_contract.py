"""The store on Valkey and Redis passes the contract's checks in every topology, and with the documented permissions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from knapcache.errors import StoreError
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


# Users of the server.

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "cluster.md"


def documented_rule() -> list[str]:
    """Return the arguments of ACL SETUSER in the guide, without the additional one for a cluster."""
    (rule,) = re.findall(r"^ACL SETUSER knapcache (.*)$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    return str(rule).replace("PASSWORD", "hunter2").split()


def check_with(url: str, servers: list[RedisProcess], rule: list[str]) -> None:
    for server in servers:
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "knapcache", "reset", *rule)
            client.execute_command("ACL", "LOG", "RESET")
    check_store(build(url.replace("://", "://knapcache:hunter2@"), "near=100kB"))
    for server in servers:
        with server.client() as client:
            assert client.execute_command("ACL", "LOG") == [], "a command was refused"


def test_the_documented_permissions_suffice_on_a_server(engine: RedisProcess) -> None:
    check_with(engine.url, [engine], documented_rule())
    with engine.client(username="knapcache", password="hunter2") as client:
        for refused in (["FLUSHALL"], ["KEYS", "*"], ["CONFIG", "GET", "*"], ["GET", "other"]):
            with pytest.raises(Exception, match=r"(?i)no permissions"):
                client.execute_command(*refused)


def test_the_documented_permissions_suffice_in_a_cluster(cluster: ClusterProcesses) -> None:
    check_with(cluster.url, cluster.servers, [*documented_rule(), "+cluster|slots"])
    assert "`+cluster|slots`" in GUIDE.read_text(encoding="utf-8")


def test_a_user_without_a_permission_is_told_which_one(engine: RedisProcess) -> None:
    with engine.client() as client:
        client.execute_command("ACL", "SETUSER", "weak", "reset", "on", ">hunter2", "~*", "&*", "+@all", "-evalsha")
    address = parse("redis", f"//weak:hunter2@127.0.0.1:{engine.port}?prefix=weak")
    with pytest.raises(StoreError, match="evalsha"):
        RedisStore(address, 2 << 20)
