"""The measurements of bench/scale.py: each is a function that returns numbers, and runs in a process of its own."""

from __future__ import annotations

import gc
import importlib.util
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _results import Row

from knapcache import Cache, Reply
from knapcache.cache.cache import internal_of
from knapcache.cache.inspect import inspect_store
from knapcache.cache.opening import open_to_read
from knapcache.cache.roles import Owner
from knapcache.cache.transfer import EntryImporter, TransferEntry, switching_threads_often
from knapcache.model import Endpoint
from knapcache.store.base import Entry, StoreOptions
from knapcache.store.registry import open_store

CHAT = Endpoint.CHAT
BYTES_EACH = 3000
"""Size limit for each entry: more than any store charges for it."""
READ = 2000
"""Entries that are read, and answers that are stored one by one."""
POPULAR = 200
"""Entries that are read again and again: fewer than the smallest memory tier holds."""
BATCH = 1000
"""Rows of a transaction of SQLite and of a pipeline of Redis."""
COLLECTIONS = 10
SMALL = 10_000
"""Entries of the store whose hits are measured in turns with those of the other one."""


def request(k: int) -> dict[str, Any]:
    return {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": f"question {k}"}]}


def reply(k: int) -> Reply:
    return Reply(b"%016d" % k * 64, cost=0.001, seconds=1.0)


def size_limit(count: int) -> int:
    return BYTES_EACH * (count + READ) + (4 << 20)


def seconds_of(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def micros(call: Callable[[Any], object], items: list[Any]) -> tuple[float, float]:
    """Return p50 and p99 of the microseconds of a call."""
    return percentiles([seconds_of(partial(call, item)) for item in items])


def percentiles(seconds: list[float]) -> tuple[float, float]:
    """Return p50 and p99 in microseconds."""
    p50, p99 = np.percentile(seconds, (50, 99))
    return 1e6 * float(p50), 1e6 * float(p99)


def collection_ms() -> float:
    """Return the milliseconds of a full garbage collection: the least of some, because the machine's speed varies."""
    return 1000 * min(seconds_of(gc.collect) for _ in range(COLLECTIONS))


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def batches(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (items[k : k + BATCH] for k in range(0, len(items), BATCH))


def sample(count: int, amount: int) -> list[int]:
    return random.Random(1).sample(range(count), min(count, amount))


# Writing.


def write(place: str, count: int) -> Row:
    """Import the entries into a new store."""
    keys = internal_of(Cache("1MiB"))

    def made(k: int) -> TransferEntry:
        keyed = keys.keyed_request(CHAT, request(k))
        assert keyed is not None
        texts = keyed.key.canonical, reply(k).payload
        return TransferEntry(
            Entry(b"", "", "gpt-4o-mini", 0, 0.001, 1.0, 1e9 + k, None, {"usd": 0.001}, *texts), 1.0, None
        )

    entries = [made(k) for k in range(count)]
    store = open_store(place, StoreOptions(size_limit=size_limit(count)))
    importer = EntryImporter(store, None, "adaptive", lambda tenant, _: tenant)

    def run() -> None:
        for entry in entries:
            importer.add(entry)
        importer.finish()
        importer.close()

    gc.collect()
    gc.freeze()  # `knapcache import` reads line by line: its collections do not visit entries that still wait
    with switching_threads_often():
        row = {"import_per_s": count / seconds_of(run)}
    gc.unfreeze()
    assert importer.result.stored == count, importer.result
    return row


def write_plain(place: str, count: int) -> Row:
    """Copy the rows of a file in the order of their import into another one, with SQLite alone."""
    source, plain = sqlite3.connect(place), sqlite3.connect(f"{place}.plain", isolation_level=None)
    schema = source.execute("SELECT sql FROM sqlite_master WHERE name IN ('entries', 'ids') ORDER BY type DESC")
    for statement in ("PRAGMA journal_mode = wal", "PRAGMA synchronous = normal", *(sql for (sql,) in schema)):
        plain.execute(statement)
    seconds = 0.0
    for ids in batches(source.execute("SELECT id FROM entries ORDER BY created").fetchall()):
        rows = [source.execute("SELECT * FROM entries WHERE id = ?", number).fetchone() for number in ids]
        marks = ", ".join("?" for _ in rows[0])
        start = time.perf_counter()
        plain.execute("BEGIN")
        plain.executemany(f"INSERT INTO entries VALUES ({marks})", rows)
        plain.execute("COMMIT")
        seconds += time.perf_counter() - start
    seconds += seconds_of(plain.close)
    return {"sqlite_write_per_s": count / seconds}


# Reading.


def read(kind: str, place: str, count: int) -> Row:
    """Open a store anew, and measure what its users notice."""
    warm_up(kind, place, size_limit(count))
    row: Row = {"collection_before_ms": collection_ms()}
    before = resident_bytes()
    start = time.perf_counter()
    cache = Cache(size_limit(count), path="memory:" if kind == "memory" else place)
    row["open_s"] = time.perf_counter() - start
    if kind == "memory":
        row["put_per_s"] = count / seconds_of(lambda: put(cache, 0, count))
        start = time.perf_counter()
    numbers = sample(count, READ)

    hit = partial(get, cache)
    hit(numbers[0])
    row["first_hit_s"] = time.perf_counter() - start
    wait_until_owner(cache)
    row["ready_s"] = time.perf_counter() - start
    gc.collect()
    row["bytes_an_entry"] = (resident_bytes() - before) / count
    if kind != "memory":
        row |= read_entries(cache, kind, place, numbers[1 : READ // 2])
        row["far_hit_p50_us"], row["far_hit_p99_us"] = micros(hit, numbers[READ // 2 :])
    row["collection_ms"] = collection_ms()
    row |= hits_in_turns(cache, numbers[:POPULAR], other_place(kind, place, 3))
    row["count_us"] = count_reported(cache, numbers)
    if kind != "memory":
        row["put_per_s"] = READ / seconds_of(lambda: put(cache, count, count + READ))
    row["close_s"] = seconds_of(cache.close)
    return row


def get(cache: Cache, k: int) -> None:
    assert cache.get(CHAT, request(k)) is not None, k


def put(cache: Cache, first: int, last: int) -> None:
    """Store answers one by one, and wait until they are written."""
    for k in range(first, last):
        cache.put(CHAT, request(k), reply(k))
    internal_of(cache).coordinator.store.flush()


def digests(cache: Cache, numbers: list[int]) -> list[bytes]:
    found = [internal_of(cache).keyed_request(CHAT, request(k)) for k in numbers]
    return [keyed.key.digest for keyed in found if keyed is not None]


def read_entries(cache: Cache, kind: str, place: str, numbers: list[int]) -> Row:
    """Read entries that are not in memory from the store, without the rest of a hit. A file: in turns with SQLite."""
    store, row = internal_of(cache).coordinator.store, Row()
    if kind != "file":
        row["read_p50_us"], row["read_p99_us"] = micros(store.read, digests(cache, numbers))
        return row
    ours, alone = list[float](), list[float]()
    with closing(sqlite3.connect(f"{place}.plain")) as plain:
        ids = plain.execute("SELECT id FROM entries ORDER BY created").fetchall()

        def select(row_id: tuple[int]) -> None:
            assert plain.execute("SELECT * FROM entries WHERE id = ?", row_id).fetchone()

        for digest, k in zip(digests(cache, numbers), numbers, strict=True):
            ours.append(seconds_of(partial(store.read, digest)))
            alone.append(seconds_of(partial(select, ids[k])))
    row["read_p50_us"], row["read_p99_us"] = percentiles(ours)
    row["sqlite_read_p50_us"], row["sqlite_read_p99_us"] = percentiles(alone)
    return row


def hits_in_turns(cache: Cache, numbers: list[int], other: str) -> Row:
    """Read a few entries from memory again and again, in turns with as many of a store with SMALL entries."""
    with Cache(size_limit(SMALL), path=other) as small:
        put(small, 0, SMALL)
        chosen = {"hit": (cache, numbers), "small_hit": (small, list(range(len(numbers))))}
        seconds: dict[str, list[float]] = {name: [] for name in chosen}
        for turn in range(1 + READ // len(numbers)):
            for name, (asked, wanted) in chosen.items():
                found = [seconds_of(partial(get, asked, k)) for k in wanted]
                seconds[name] += found if turn else []  # the first turn loads the entries
    row = Row()
    for name, found in seconds.items():
        row[f"{name}_p50_us"], row[f"{name}_p99_us"] = percentiles(found)
    return row


def count_reported(cache: Cache, numbers: list[int]) -> float:
    """Return the microseconds in which the owner counts a hit that another process reports."""
    role = internal_of(cache).coordinator.role
    assert isinstance(role, Owner)
    counts = dict.fromkeys(digests(cache, numbers), 1)
    return 1e6 * seconds_of(lambda: role.admission.touch(counts)) / len(counts)


def wait_until_owner(cache: Cache) -> None:
    while not isinstance(internal_of(cache).coordinator.role, Owner):
        time.sleep(0.01)


def other_place(kind: str, place: str, number: int) -> str:
    """Return the place of another, empty store of the same kind."""
    return {"file": f"{place}.{number}", "memory": "memory:", "redis": f"{place.removesuffix('/0')}/{number}"}[kind]


def warm_up(kind: str, place: str, limit: int) -> None:
    """Load modules and kernels, and use another, empty store of the same kind and size."""
    with Cache(limit, path=other_place(kind, place, 2)) as cache:
        for k in range(READ):
            cache.fetch(CHAT, request(k), lambda: reply(0))
            cache.fetch(CHAT, request(k), lambda: reply(0))
    gc.collect()


# Administration.


def administer(kind: str, place: str, count: int) -> Row:
    """Look at all entries, save the policy's state and remove all entries, while requests are served."""
    row: Row = {}
    cache = Cache(size_limit(count), path="memory:" if kind == "memory" else place)
    if kind == "memory":
        put(cache, 0, count)
    wait_until_owner(cache)
    internal = internal_of(cache)
    for name, call in (
        ("page", lambda: internal.browser.page(limit=50)),
        ("search", lambda: internal.browser.page(search="abcd", limit=50)),
        ("stats", cache.stats),
        ("snapshot", cache.maintain),
        ("purge", cache.purge),
    ):
        with hits_beside(cache) as longest:
            row[f"{name}_s"] = seconds_of(call)
        row[f"{name}_pause_ms"] = 1000 * max(longest)
    assert cache.stats().entries == 0
    cache.close()
    return row


@contextmanager
def hits_beside(cache: Cache) -> Iterator[list[float]]:
    """Ask for an answer once a millisecond in another thread, and append what each request took."""
    found, ended, body = list[float](), threading.Event(), request(-1)
    cache.put(CHAT, body, reply(-1))

    def run() -> None:
        while not ended.wait(0.001):
            found.append(seconds_of(lambda: cache.get(CHAT, body)))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        while not found:
            time.sleep(0.001)
        yield found
    finally:
        ended.set()
        thread.join()


def inspect(place: str, count: int) -> Row:
    """Read all metadata from outside the cache, as `knapcache inspect` does."""
    with closing(open_to_read(place)) as store:
        start = time.perf_counter()
        assert inspect_store(store)["entries"] >= count
        return {"inspect_s": time.perf_counter() - start}


# Peers.


def disk_cache(place: str, count: int) -> Row:
    """Write and read the same bytes with diskcache."""
    if importlib.util.find_spec("diskcache") is None:
        return {}
    diskcache = importlib.import_module("diskcache")
    with diskcache.Cache(f"{place}.diskcache", size_limit=size_limit(count), eviction_policy="none") as cache:
        payloads = [(str(request(k)).encode(), reply(k).payload) for k in range(count)]

        def run() -> None:
            for batch in batches(payloads):
                with cache.transact():
                    for key, payload in batch:
                        cache.set(key, payload)

        seconds = seconds_of(run)
        p50, p99 = micros(cache.get, [payloads[k][0] for k in sample(count, READ)])
    return {"diskcache_write_per_s": count / seconds, "diskcache_read_p50_us": p50, "diskcache_read_p99_us": p99}


def plain_redis(place: str, count: int) -> Row:
    """Write and read the same bytes with Redis alone, in a database of its own."""
    import redis

    client = redis.Redis.from_url(place.removesuffix("/0") + "/1")
    before = client.info("memory")["used_memory"]
    start = time.perf_counter()
    for numbers in batches(range(count)):
        pipeline = client.pipeline(transaction=False)
        for k in numbers:
            pipeline.set(b"%032d" % k, str(request(k)).encode() + reply(k).payload)
        pipeline.execute()
    seconds = time.perf_counter() - start
    used = client.info("memory")["used_memory"] - before
    p50, p99 = micros(client.get, [b"%032d" % k for k in sample(count, READ)])
    client.flushdb()
    return {
        "redis_write_per_s": count / seconds,
        "redis_read_p50_us": p50,
        "redis_read_p99_us": p99,
        "redis_bytes_a_key": used / count,
    }
