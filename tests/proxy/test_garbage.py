"""Full garbage collections wait until the process is idle, but not for ever."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import resource
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from knapcache.proxy import garbage
from knapcache.proxy.garbage import NEVER, FullCollections
from tests.support.timing import async_wait_until


class Node:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def old_garbage() -> weakref.ref[Node]:
    """Return a reference to an object that only a full collection frees, when the next one is due."""
    node = Node()
    for _ in range(20):
        gc.collect(1)
    return weakref.ref(node)


async def is_collected(monkeypatch: pytest.MonkeyPatch, idle_share: float, max_delay: float) -> bool:
    """Return whether the timer frees garbage."""
    collections = FullCollections()
    collections.start()
    found = old_garbage()
    for name, value in (("INTERVAL", 0.0), ("IDLE_SHARE", idle_share), ("MAX_DELAY", max_delay)):
        monkeypatch.setattr(garbage, name, value)
    collections._check(asyncio.get_running_loop())
    await asyncio.sleep(0)
    return found() is None


async def test_an_idle_process_collects(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await is_collected(monkeypatch, 1e9, 1e9)


async def test_a_busy_process_does_not_collect(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not await is_collected(monkeypatch, -1.0, 1e9)


async def test_a_process_that_is_always_busy_collects_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await is_collected(monkeypatch, -1.0, -1.0)


async def test_python_runs_no_full_collections() -> None:
    FullCollections().start()
    assert gc.get_threshold()[2] == NEVER


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="it is a function of glibc")
async def test_an_idle_process_returns_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last block of a thread's heap keeps the C library from shrinking it."""
    kept: list[bytes] = []

    def work() -> None:
        blocks = [bytes([k % 251]) * 8000 for k in range(12_000)]
        kept.append(blocks[-1])

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
        before = resident_bytes()
        assert await is_collected(monkeypatch, 1e9, 1e9)
        await async_wait_until(lambda: resident_bytes() < before - (40 << 20))
