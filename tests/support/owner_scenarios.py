"""Owners of a store in Valkey or Redis that are killed or stopped, and the processes that take over.

Each scenario asserts what is promised and returns what it counted. Tests run it at a small scale, bench/cluster.py and
bench/reliability.py at full scale.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Any

from knapcache.errors import NotOwner, StoreError
from knapcache.store.redis.server import ServerAway
from knapcache.store.redis.store import RedisStore
from knapcache.store.redis.urls import parse
from tests.support.caches import read_line
from tests.support.redis_servers import RedisProcess
from tests.support.stores import entry_of, key_of, spawn
from tests.support.timing import Deadline, wait_until

Progress = Callable[[int], object]
CAPACITY = 500_000_000
ENTRY_BYTES = 500


def open_redis_store(url: str, size_limit: int = 2 << 20, **options: Any) -> RedisStore:
    scheme, location = url.split(":", 1)
    return RedisStore(parse(scheme, location), size_limit, **options)


def fill(url: str, entries: int, size_limit: int = CAPACITY) -> None:
    """Store so many entries of about half a kilobyte."""
    with open_redis_store(url, size_limit) as store:
        assert store.owner
        for first in range(0, entries, 2000):
            changes = [store.apply(entry_of(store, k, ENTRY_BYTES)) for k in range(first, min(entries, first + 2000))]
            for change in changes:
                change.result(60)


def end(process: subprocess.Popen[str]) -> None:
    """Kill a process, also a stopped one, and close its pipes."""
    process.kill()
    process.communicate()


# Takeover after kill -9.

CACHE_PROCESS = """
    import sys, time
    from knapcache import Cache
    cache = Cache(int(sys.argv[2]), path=sys.argv[1], policy=sys.argv[3], shadows=())
    print("open", flush=True)
    while not cache._internal.coordinator.store.owner:
        time.sleep(0.002)
    acquired = time.monotonic()
    while not cache._internal.coordinator.role.is_owner:
        time.sleep(0.002)
    print(acquired, time.monotonic(), cache._internal.coordinator.store.totals().entries, flush=True)
    cache.get("chat/completions", {"model": "m", "messages": []})  # without a request there is no new state to save
    cache.maintain()  # saves a snapshot, as every owner with requests does once a minute
    print("saved", flush=True)
    while True:
        time.sleep(1)
"""


def read_words(process: subprocess.Popen[str]) -> list[str]:
    return read_line(process).split()


def kill_owners(
    server: RedisProcess,
    entries: int,
    rounds: int,
    policy: str = "adaptive",
    seed: int = 0,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Kill the process that owns a cache of many entries, `rounds` times; another process that has it open takes over.

    Return the seconds from each kill to the new lease, and to the moment when the new owner's policy decides. Both
    moments are read from the system's monotonic clock, in the process that takes over.
    """
    url, rng = f"{server.url}?prefix=takeover{entries}&near=0", random.Random(seed)
    fill(url, entries)
    acquired, decides = [], []
    processes: list[subprocess.Popen[str]] = []

    def start() -> None:
        processes.append(spawn(CACHE_PROCESS, url, CAPACITY, policy))
        assert read_words(processes[-1]) == ["open"]

    try:
        start()
        read_words(processes[0])
        for k in range(rounds):
            assert read_words(processes[k]) == ["saved"]
            start()
            time.sleep(rng.random())  # the lease is renewed once a second
            processes[k].kill()
            killed = time.monotonic()
            lease, decided, found = read_words(processes[k + 1])
            assert int(found) == entries, f"the new owner knows {found} of {entries} entries"
            acquired.append(float(lease) - killed)
            decides.append(float(decided) - killed)
            progress(k + 1)
    finally:
        for process in processes:
            end(process)
    return {"entries": entries, "rounds": rounds, "acquired_seconds": acquired, "decides_seconds": decides}


# Owners that are stopped and wake up.

STOPPED_OWNERS = """
    import sys, threading, time
    from knapcache.errors import NotOwner, StoreError
    from tests.support.owner_scenarios import open_redis_store
    from tests.support.stores import entry_of
    stores = [open_redis_store(url) for url in sys.argv[1:]]
    assert all(store.owner for store in stores)
    def write(store):
        number = refused = 0
        while store.owner:
            number += 1
            try:
                store.apply(entry_of(store, number % 50, 300, version=1)).result(60)
            except NotOwner:
                refused += 1
            except StoreError:
                time.sleep(0.01)
        sys.stdout.write(f"{store.address.prefix} {refused}\\n")  # one write: threads share the stream
        sys.stdout.flush()
    threads = [threading.Thread(target=write, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    print("writes", flush=True)
    for thread in threads:
        thread.join()
"""
NAMES = 50


def wake_stopped_owners(
    server: RedisProcess, rounds: int, together: int = 5, progress: Progress = lambda _: None
) -> dict[str, Any]:
    """Stop processes that own stores and write (SIGSTOP), let others take over, and wake the former owners.

    Each must be fenced: it becomes a reader, and nothing of what it writes replaces what the new owner wrote.
    `together` stores are in one process, so that they are stopped at the same time.
    """
    urls = [f"{server.url}?prefix=stopped{k}&near=0&shards=3" for k in range(rounds)]
    takeovers: list[float] = []
    for first in range(0, rounds, together):
        takeovers += _wake_once(urls[first : first + together])
        progress(len(takeovers))
    return {"rounds": rounds, "fenced": len(takeovers), "longest_takeover_seconds": max(takeovers)}


def _wake_once(urls: Sequence[str]) -> list[float]:
    """Stop, replace and wake the owners of these stores. Return the seconds until each was replaced."""
    takeovers = []
    with ExitStack() as stack:
        readers = [stack.enter_context(closing(open_redis_store(url, own=False))) for url in urls]
        process = spawn(STOPPED_OWNERS, *urls)
        stack.callback(end, process)
        assert read_words(process) == ["writes"]
        wait_until(lambda: all(reader.totals().entries >= NAMES - 5 for reader in readers))
        process.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        for reader in readers:
            wait_until(reader.own)
            takeovers.append(time.monotonic() - stopped)
        for reader in readers:
            for number in range(NAMES):
                reader.apply(entry_of(reader, number, 300, version=2)).result(60)
        process.send_signal(signal.SIGCONT)
        ended = {read_words(process)[0] for _ in urls}
        assert ended == {reader.address.prefix for reader in readers}
        assert process.wait(30) == 0
        for reader in readers:
            versions = [entry.meta["version"] for k in range(NAMES) if (entry := reader.get(key_of(k)))]
            assert versions == [2] * NAMES, "a former owner has replaced an entry"
            check_when_it_answers(reader)
    return takeovers


def check_when_it_answers(store: RedisStore) -> None:
    """Check the totals as soon as the server answers: on a busy machine it may take longer than the store's timeout."""
    deadline = Deadline("an answer of the server")
    while True:
        try:
            store.flush()
            store.check()
        except ServerAway:
            deadline.check()
            time.sleep(0.1)
        else:
            return


# Owners that do not know that they were replaced.


def replace_owners(
    server: RedisProcess, rounds: int, seed: int = 0, progress: Progress = lambda _: None
) -> dict[str, int]:
    """Two processes' stores take the ownership from each other, while the former owner writes on with its old epoch.

    The lease is removed, as if it had run out while the owner was stopped. Return the writes that were refused.
    """
    rng = random.Random(seed)
    url = f"{server.url}?prefix=replaced{seed}&near=0&shards=3"
    counts = {"rounds": 0, "refused": 0, "stale_snapshots": 0}
    with closing(open_redis_store(url)) as first, closing(open_redis_store(url)) as second:
        names = first._member.attachment().names
        for round_ in range(1, rounds + 1):
            old, new = (first, second) if first.owner else (second, first)
            name = rng.randrange(NAMES)
            old.apply(entry_of(old, name, 300, version=2 * round_), snapshot=b"old %d" % round_).result(60)
            with server.client() as client:
                client.delete(names.owner)
            assert new.own()
            late = [_late_write(old, name, 2 * round_ - 1, snapshot) for snapshot in (None, b"stale")]
            new.apply(entry_of(new, name, 300, version=2 * round_ + 1), snapshot=b"new %d" % round_).result(60)
            late += [_late_write(old, name, 2 * round_ - 1, snapshot) for snapshot in (None, b"stale")]
            assert all(late), "a former owner's write was accepted"
            assert not old.owner
            entry = new.get(key_of(name))
            assert entry is not None
            assert entry.meta["version"] == 2 * round_ + 1, "an older decision has replaced a newer one"
            assert new.load_snapshot() == b"new %d" % round_
            counts["rounds"] += 1
            counts["refused"] += len(late)
            counts["stale_snapshots"] += len(late) // 2
            if round_ % 50 == 0 or round_ == rounds:
                new.check()
                progress(round_)
    return counts


def _late_write(store: RedisStore, name: int, version: int, snapshot: bytes | None) -> bool:
    """Write as a former owner. Return whether it was refused because there is a new owner."""
    try:
        change = store.apply(entry_of(store, name, 300, version=version), evict=[key_of("other")], snapshot=snapshot)
        return isinstance(change.exception(60), NotOwner)
    except NotOwner:
        return True
    except StoreError:
        return False
