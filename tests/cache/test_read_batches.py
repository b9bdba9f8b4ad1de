"""Concurrent reads of a store of many machines share commands."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from knapcache.cache import async_reads
from knapcache.cache.async_reads import ReadBatches
from knapcache.errors import StoreError
from knapcache.store.base import NOT_IN_MEMORY, NetworkStore
from knapcache.threads import TIMED_OUT, DeadlinePool


class SlowStore:
    """A store whose reads wait for `go_on`, and which remembers the keys of each."""

    def __init__(self, answer: Callable[[Sequence[bytes]], Mapping[bytes, Any]]) -> None:
        self.reads: list[list[bytes]] = []
        self.go_on = threading.Event()
        self._answer = answer

    def read_many(self, keys: Sequence[bytes]) -> Mapping[bytes, Any]:
        self.reads.append(list(keys))
        self.go_on.wait(10)
        return self._answer(keys)


def values(keys: Sequence[bytes]) -> dict[bytes, Any]:
    return {key: b"value of " + key for key in keys}


async def read_all(store: SlowStore, keys: Sequence[bytes]) -> list[Any]:
    batches = ReadBatches(DeadlinePool("test"))
    network = cast(NetworkStore, store)
    tasks = [asyncio.create_task(batches.read(network, keys[0]))]
    while not store.reads:
        await asyncio.sleep(0)
    tasks += [asyncio.create_task(batches.read(network, key)) for key in keys[1:]]
    await asyncio.sleep(0)
    store.go_on.set()
    return [found for found, _ in await asyncio.gather(*tasks)]


def test_reads_that_wait_for_another_are_made_together() -> None:
    store = SlowStore(values)
    keys = [b"%d" % (k % 40) for k in range(60)]
    assert asyncio.run(read_all(store, keys)) == [b"value of " + key for key in keys]
    assert store.reads[0] == [b"0"]
    assert len(store.reads) <= 4
    assert max(map(len, store.reads)) <= async_reads.MAX_KEYS


def test_an_error_is_no_answer_for_all_of_a_batch() -> None:
    def fail(_: Sequence[bytes]) -> Mapping[bytes, Any]:
        raise StoreError("away")

    assert asyncio.run(read_all(SlowStore(fail), [b"a", b"b", b"c"])) == [NOT_IN_MEMORY] * 3


def test_a_read_that_takes_too_long_ends_its_batch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_reads, "DEADLINE", 0.1)

    async def run() -> list[Any]:
        store, batches = SlowStore(values), ReadBatches(DeadlinePool("test"))
        late, _ = await batches.read(cast(NetworkStore, store), b"a")
        store.go_on.set()
        found, _ = await batches.read(cast(NetworkStore, store), b"b")
        return [late, found]

    assert asyncio.run(run()) == [TIMED_OUT, b"value of b"]


def test_a_cancelled_request_does_not_affect_the_others() -> None:
    async def run() -> list[Any]:
        store, batches = SlowStore(values), ReadBatches(DeadlinePool("test"))
        tasks = [asyncio.create_task(batches.read(cast(NetworkStore, store), key)) for key in (b"a", b"b", b"c")]
        while not store.reads:
            await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[1].cancel()
        store.go_on.set()
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    first, second, third = asyncio.run(run())
    assert isinstance(first, asyncio.CancelledError)
    assert isinstance(second, asyncio.CancelledError)
    assert third == (b"value of c", True)


def test_a_closed_event_loop_leaves_nothing_behind() -> None:
    async def run() -> None:
        store, batches = SlowStore(values), ReadBatches(DeadlinePool("test"))
        task = asyncio.create_task(batches.read(cast(NetworkStore, store), b"a"))
        while not store.reads:
            await asyncio.sleep(0)
        task.cancel()
        store.go_on.set()

    asyncio.run(run(), debug=True)
