"""Connections, other processes, counts and snapshots of the store on Valkey and Redis."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from knapcache.errors import MissingExtra, StoreError, install_command
from knapcache.store.base import StoreOptions
from knapcache.store.redis import layout
from knapcache.store.redis.store import RedisStore
from knapcache.store.redis.urls import parse
from knapcache.store.registry import open_store as open_by_url
from tests.store.redis.conftest import OpenStore
from tests.support.certificates import make_certificate
from tests.support.redis_servers import ClusterProcesses, RedisProcess, free_port
from tests.support.stores import entry_of, key_of, spawn
from tests.support.timing import wait_until


def put_and_get(url: str, **options: Any) -> None:
    store = open_by_url(url, StoreOptions(size_limit=1 << 20))
    entry = entry_of(store, 1, **options)
    store.apply(entry).result(60)
    assert store.get(entry.key) == entry
    store.close()


def test_users_passwords_sockets_and_databases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "engine.sock"
    with RedisProcess(tmp_path, "--unixsocket", str(path)) as server:
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "me", "on", ">hunter2", "~{mine:*", "&{mine:*", "+@all", "-@admin")
        put_and_get(f"redis://me:hunter2@127.0.0.1:{server.port}/2?prefix=mine")
        put_and_get(f"redis+unix://me:hunter2@{path}?prefix=mine")
        with server.client(db=2) as client:
            assert client.dbsize() > 0
        with pytest.raises(StoreError, match="user or the password") as raised:
            put_and_get(f"redis://me:hunter3@127.0.0.1:{server.port}")
        assert "hunter3" not in str(raised.value)
        with pytest.raises(StoreError, match="refused a command"):  # the rule allows another prefix only
            put_and_get(f"redis://me:hunter2@127.0.0.1:{server.port}?prefix=yours")
        monkeypatch.setenv("KNAPCACHE_STORE_USER", "me")
        monkeypatch.setenv("KNAPCACHE_STORE_PASSWORD", "hunter2")
        put_and_get(f"redis://127.0.0.1:{server.port}?prefix=mine")


def test_tls_with_certificates_of_both_sides(tmp_path: Path) -> None:
    ours = make_certificate(tmp_path / "ours", "IP:127.0.0.1")
    other = make_certificate(tmp_path / "other", "IP:127.0.0.1")
    port = free_port()
    files = ("--tls-cert-file", str(ours.cert), "--tls-key-file", str(ours.key), "--tls-ca-cert-file", str(ours.cert))
    try:
        server = RedisProcess(tmp_path, "--tls-port", str(port), *files)
    except AssertionError:
        pytest.skip("the server was built without TLS")
    with server:
        client = f"cert={ours.cert}&key={ours.key}"
        put_and_get(f"rediss://127.0.0.1:{port}/0?ca={ours.cert}&{client}")
        for query in (f"ca={ours.cert}", f"ca={other.cert}&{client}"):
            store = RedisStore(parse("rediss", f"//127.0.0.1:{port}?{query}"), 1 << 20)
            assert not store.owner, "connected without a valid certificate"
            store.close()


def test_the_extra_is_named_where_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "redis" or name.startswith("redis.")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=re.escape(install_command("redis"))):
        open_by_url("redis://127.0.0.1:1", StoreOptions(size_limit=1 << 20))


def test_the_package_is_not_imported_without_need() -> None:
    code = "import sys, knapcache, knapcache.store.registry; sys.exit('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_killed_owner_is_replaced(engine: RedisProcess, open_store: OpenStore) -> None:
    reader = open_store(engine.url, own=False)
    code = """
        import sys
        from knapcache.store.redis.store import RedisStore
        from knapcache.store.redis.urls import parse
        from tests.support.stores import entry_of
        store = RedisStore(parse("redis", sys.argv[1]), 2 << 20)
        store.apply(entry_of(store, 1)).result(60)
        print("ready", flush=True)
        sys.stdin.read()
    """
    location = f"//127.0.0.1:{engine.port}/0?prefix={reader.address.prefix}&near=0"
    owner = spawn(code, location)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    assert not reader.own()
    owner.kill()
    owner.communicate()
    wait_until(reader.own, "the takeover", 10.0)
    assert reader.get(key_of(1)) == entry_of(reader, 1)
    reader.check()


def test_a_forked_child_reads_and_the_parent_remains_the_owner(engine: RedisProcess, open_store: OpenStore) -> None:
    store = open_store(engine.url, query="near=1MB")
    entry = entry_of(store, 1)
    store.apply(entry).result(60)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            reader = store.reader()
            reader.hand_over(entry_of(reader, 2))
            if store.get(entry.key) is None and reader.get(entry.key) == entry and not reader.owner:
                status = 0
            reader.close()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.owner
    assert [collected.key for collected in store.collect()] == [key_of(2)]
    assert store.get(entry.key) == entry


def test_snapshots_are_stored_in_chunks(
    engine: RedisProcess, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("knapcache.store.redis.reading.CHUNK", 1000)
    monkeypatch.setattr("knapcache.store.redis.writer.CHUNK", 1000)
    assert layout.CHUNK <= 1_000_000
    store = open_store(engine.url)
    names = store._member.attachment().names
    for length in (4500, 2000, 0, 999):
        snapshot = Random(length).randbytes(length)
        store.apply(snapshot=snapshot).result(60)
        assert store.load_snapshot() == store.reader().load_snapshot() == snapshot
        with engine.client() as client:
            chunks = list(client.scan_iter(names.snapshot.replace(b"{", b"[{]") + b".*"))
            assert len(chunks) == -(-length // 1000)
            assert all(client.ttl(chunk) == -1 for chunk in chunks)
    with engine.client() as client:
        client.delete(chunks[0])
    assert store.load_snapshot() is None


def test_counts_that_may_have_arrived_are_not_reported_as_failed(engine: RedisProcess, open_store: OpenStore) -> None:
    owner, reader = (open_store(engine.url, query="near=0&timeout=0.24") for _ in range(2))
    with engine.client() as client:
        client.execute_command("CLIENT", "PAUSE", 600)
        reader.put_counts({key_of(1): 3})
    assert reader.counters()["counts_lost"] == 1
    with pytest.raises(StoreError):  # known not to have arrived: the caller keeps them
        reader.put_counts({key_of(1): 4})
    wait_until(lambda: reader.get(key_of(1)) is None and reader._member.server.allows(b"x"))
    wait_until(lambda: owner._member.server.allows(b"x"))
    reader.put_counts({key_of(2): 5})
    assert owner.take_counts() in ({key_of(1): 3, key_of(2): 5}, {key_of(2): 5})


def test_space_for_counts_is_limited(engine: RedisProcess, open_store: OpenStore) -> None:
    owner, reader = open_store(engine.url), open_store(engine.url)
    rng = Random(1)
    for _ in range(4):
        reader.put_counts({rng.randbytes(32): 1 for _ in range(reader.max_counted_keys)})
    with pytest.raises(StoreError, match="the space for hit counts is full"):
        reader.put_counts({rng.randbytes(32): 1 for _ in range(reader.max_counted_keys)})
    assert len(owner.take_counts()) == 4 * reader.max_counted_keys
    reader.put_counts({key_of(1): 1})


def test_several_entries_are_read_at_once(
    engine: RedisProcess, cluster: ClusterProcesses, open_store: OpenStore
) -> None:
    for url in (engine.url, cluster.url):
        owner, reader = (open_store(url, 16 << 20, query="near=0&shards=8") for _ in range(2))
        entries = [entry_of(owner, k) for k in range(20)]
        for entry in entries[:10]:
            owner.apply(entry).result(60)
        for entry in entries[10:15]:
            reader.hand_over(entry)
        keys = [entry.key for entry in entries]
        assert reader.read_many(keys) == {e.key: e if k < 15 else None for k, e in enumerate(entries)}
        assert owner.read_many(keys) == {e.key: e if k < 10 else None for k, e in enumerate(entries)}
        assert [reader.read(key) for key in keys] == [*entries[:15], *[None] * 5]
