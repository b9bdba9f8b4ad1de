"""Attacks on a shared store by someone who can write to the server and does not know the secret.

Values of every kind are damaged, and leases, owners and epochs are forged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from knapcache.store.redis.key_leases import KeyLease
from knapcache.store.redis.store import RedisStore
from knapcache.store.redis.urls import parse
from tests.proxy.test_shared_store import SharedProxy
from tests.support.programs import find_module
from tests.support.recording_upstream import RecordingUpstream
from tests.support.redis_servers import RedisProcess
from tests.support.stores import entry_of, key_of
from tests.support.timing import wait_until, within

find_module("redis", "the extra redis")

NUMBERS = (b"", b"abc", b"-1", b"9" * 30, b"\xff\xfe", b"nan")
FORGED_EPOCHS = (b"9" * 15, b"9" * 16, b"9" * 30, b"1e300", b"inf", b"nan", b"-1", b"abc", b"")
MESSAGES = (b"", b"x", b"\xff" * 33, b"a" * 100_000, b"9" * 5000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path_factory.mktemp("engine")) as server:
        yield server


@pytest.fixture
def engine(server: RedisProcess) -> RedisProcess:
    """A server without data."""
    with server.client() as client:
        client.flushall()
    return server


def text_of(proxy: SharedProxy, prompt: str) -> str:
    """Return the answer to a prompt."""
    answer: str = proxy.ask(prompt).json()["choices"][0]["message"]["content"]
    return answer


def replace_by_text(client: Any, key: bytes) -> None:
    client.set(key, b"garbage")


def replace_by_hash(client: Any, key: bytes) -> None:
    client.delete(key)
    client.hset(key, mapping={"used": "abc", "count": "-5", "limit": "1e400", "nused": b"\xff", "chunks": "x"})


def replace_by_list(client: Any, key: bytes) -> None:
    client.delete(key)
    client.rpush(key, *[b"x"] * 10)


def damage_in_place(client: Any, key: bytes) -> None:
    """Change values and keep their types."""
    kind = client.type(key)
    if kind == b"hash":
        for number, field in enumerate(client.hkeys(key)):
            client.hset(key, field, NUMBERS[number % len(NUMBERS)])
    elif kind == b"string":
        value = client.get(key)
        client.set(key, value[: len(value) // 2] + b"\xff" + value[len(value) // 2 + 1 :])
    elif kind == b"zset":
        client.zadd(key, {b"\xff\xfe" * 20: float("inf"), b"": -1})
    elif kind == b"stream":
        client.xadd(key, {b"zz": b"\xff"})


@pytest.mark.parametrize("damage", [replace_by_text, replace_by_hash, replace_by_list, damage_in_place])
def test_damage_serves_no_wrong_answer_and_ends_with_its_removal(
    damage: Callable[[Any, bytes], None], engine: RedisProcess, upstream: RecordingUpstream, tmp_path: Path
) -> None:
    client = engine.client()
    with SharedProxy(tmp_path, upstream.openai_url, engine.url) as proxy:
        for k in range(5):
            assert text_of(proxy, f"{k}") == f"You said: {k}"
        wait_until(lambda: not proxy.misses("0"))
        for _ in range(3):  # what the proxy has repaired is damaged again
            for key in client.scan_iter():
                damage(client, key)
            for channel in client.pubsub_channels():
                for message in MESSAGES:
                    client.publish(channel, message)
            for k in range(5):
                assert text_of(proxy, f"{k}") == f"You said: {k}"
            for path in ("/summary", "/entries", "/proxies"):
                assert proxy.client.get(f"/admin/v1{path}").status_code in (200, 503)
        client.flushall()
        wait_until(lambda: not proxy.misses("after the damage"))


# Forged leases, owners and epochs.


def open_store(engine: RedisProcess) -> RedisStore:
    scheme, location = engine.url.split(":", 1)
    return RedisStore(parse(scheme, f"{location}?near=0&shards=2&timeout=5"), 2 << 20, secret=b"secret")


def write_wrong_type(client: Any, key: bytes) -> None:
    client.delete(key)
    client.rpush(key, b"x")


def test_a_lease_that_no_process_gave_does_not_block_a_key(engine: RedisProcess) -> None:
    with engine.client() as client, open_store(engine) as store:
        client_key = store._member.attachment().reader.lease_key
        for number, life in enumerate((None, 3_600_000, 11_000)):
            key = key_of(f"{number}")
            client.set(client_key(key), b"forged" * 3, px=life)
            lease = store.lead(key)
            assert isinstance(lease, KeyLease)
            assert lease._key, "other processes do not respect it"
            lease.end()
        key = key_of("a plausible one")
        client.set(client_key(key), b"forged", px=300)
        assert store.lead(key) is None, "it may be a lease of another process"
        wait_until(lambda: store.lead(key) is not None)
        held, other = store.lead(key_of("held")), store.lead(key_of("other"))
        assert isinstance(held, KeyLease)
        assert isinstance(other, KeyLease)
        write_wrong_type(client, client_key(key_of("held")))
        held.renewed = other.renewed = other.renewed - 5.0  # both are due
        store._member.key_leases.renew_due()
        assert not other.is_due, "a damaged lease kept another from being renewed"


def test_an_owner_recovers_from_forged_owners_and_epochs(engine: RedisProcess) -> None:
    with engine.client() as client, open_store(engine) as store:
        names = store._member.attachment().names
        seconds = int(client.time()[0])
        ahead = str((seconds + 3600) * 1_000_000).encode()
        assert store.owner

        def stores_again(number: int) -> None:
            wait_until(store.own)
            store.apply(entry_of(store, number)).result(60)
            assert store.get(key_of(number)) is not None
            store.check()

        for number, epoch in enumerate((*FORGED_EPOCHS, ahead)):
            client.set(names.epoch, epoch)
            for key in names.totals:
                client.hset(key, "epoch", epoch)
            store.apply(entry_of(store, "meanwhile")).exception(60)
            stores_again(number)
        client.set(names.owner, b"forged")  # without an end
        stores_again(101)
        write_wrong_type(client, names.owner)
        stores_again(102)
        write_wrong_type(client, names.epoch)
        stores_again(103)
        wait_until(lambda: client.type(names.owner) == b"string")  # the owner has renewed its lease
        with open_store(engine) as other:
            assert not other.own(), "two processes own the store"


def test_answers_are_right_while_leases_are_forged(
    engine: RedisProcess, upstream: RecordingUpstream, tmp_path: Path
) -> None:
    client = engine.client()
    with SharedProxy(tmp_path, upstream.openai_url, engine.url) as proxy:
        assert text_of(proxy, "before") == "You said: before"
        wait_until(lambda: not proxy.misses("before"))
        tag = b"{knapcache:o}"
        for k in range(5):
            client.set(tag + b":owner", b"forged", px=2500)
            client.set(tag + b":epoch", str((int(client.time()[0]) + k) * 1_000_000))
            for key in client.scan_iter(b"*:b"):
                client.hset(key, "epoch", b"9" * 16)
            with within(20, "a request"):
                assert text_of(proxy, f"{k}") == f"You said: {k}"
            assert text_of(proxy, "before") == "You said: before"
        wait_until(lambda: proxy.proxy.cache.owner)
        wait_until(lambda: not proxy.misses("after the forging"))
        proxy.proxy.cache.check()
