"""Attacks on a shared store by someone who can write to the server and does not know the secret."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.proxy.test_shared_store import SharedProxy
from tests.support.programs import find_module
from tests.support.recording_upstream import RecordingUpstream
from tests.support.redis_servers import RedisProcess
from tests.support.timing import wait_until

find_module("redis", "the extra redis")

NUMBERS = (b"", b"abc", b"-1", b"9" * 30, b"\xff\xfe", b"nan")
MESSAGES = (b"", b"x", b"\xff" * 33, b"a" * 100_000, b"9" * 5000)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path_factory.mktemp("engine")) as server:
        yield server


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
    client.flushall()
    with SharedProxy(tmp_path, upstream.openai_url, engine.url) as proxy:

        def text(prompt: str) -> str:
            answer: str = proxy.ask(prompt).json()["choices"][0]["message"]["content"]
            return answer

        for k in range(5):
            assert text(f"{k}") == f"You said: {k}"
        wait_until(lambda: not proxy.misses("0"))
        for _ in range(3):  # what the proxy has repaired is damaged again
            for key in client.scan_iter():
                damage(client, key)
            for channel in client.pubsub_channels():
                for message in MESSAGES:
                    client.publish(channel, message)
            for k in range(5):
                assert text(f"{k}") == f"You said: {k}"
            for path in ("/summary", "/entries", "/proxies"):
                assert proxy.client.get(f"/admin/v1{path}").status_code in (200, 503)
        client.flushall()
        wait_until(lambda: not proxy.misses("after the damage"))
