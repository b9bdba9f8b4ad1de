"""A process that runs a cache under load is killed with -9: no answer is wrong, and no acknowledged one is lost."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from knapcache.store.sqlite.store import SqliteStore
from tests.support.caches import (
    CHAT,
    Upstream,
    is_answer,
    read_line,
    request_of,
    residents,
    small_cache,
    spawn,
    wait_ended,
)
from tests.support.stores import files_bytes

SIZE_LIMIT = 2 << 20

# Four threads send requests. A log records puts after the store has acknowledged them, and evictions before.
CHILD = """
import os, random, sys, threading
from tests.support.caches import CHAT, Upstream, is_answer, request_of, small_cache, store_of
path, log, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
cache = small_cache(capacity=2 << 20, path=path, policy="gdsf-cost")
store = store_of(cache)
apply = store.apply

numbers = iter(range(10**9))  # changes are numbered: one may be acknowledged after the next one has begun
def logged(put=None, evict=(), snapshot=None):
    number = next(numbers)
    for key in (*evict, *([put.key] if put else [])):
        os.write(out, b"evict %s %d\\n" % (key.hex().encode(), number))
    done = apply(put, evict, snapshot)
    if put is not None:
        version = put.payload.split(b" ", 2)[1]
        def acknowledged(done):
            if done.exception() is None:
                os.write(out, b"put %s %d %s\\n" % (put.key.hex().encode(), number, version))
        done.add_done_callback(acknowledged)
    return done

store.apply = logged
print("ready", flush=True)
versions = iter(range(seed * 10**6, 10**9))
def work(k):
    rng = random.Random(seed * 10 + k)
    while True:
        name, n = rng.randrange(400), int(min(30_000, rng.lognormvariate(8, 1)))
        if rng.random() < 0.01:
            cache.maintain()
        answer = cache.fetch(CHAT, request_of(name), Upstream()(name, n, next(versions)), refresh=rng.random() < 0.05)
        assert is_answer(answer.payload, name)
threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("dead", flush=True)
"""


def acknowledged(log: Path) -> dict[str, int]:
    """Return versions by key of what was acknowledged, and not replaced or evicted since."""
    put: dict[str, tuple[int, int]] = {}
    evicted: dict[str, int] = {}
    for line in log.read_text().splitlines():
        change, key, number, *version = line.split()
        if change == "put":
            put[key] = int(number), int(version[0])
        else:
            evicted[key] = int(number)
    return {key: version for key, (number, version) in put.items() if evicted[key] <= number}


def kill_repeatedly(folder: Path, kills: int) -> int:
    rng = random.Random(kills)
    path, total = folder / "answers.db", 0
    for k in range(kills):
        log = folder / f"log-{k}"
        child = spawn(CHILD, path, log, k)
        assert read_line(child) == "ready"
        time.sleep(0.05 + rng.random() ** 2 * 0.4)
        assert child.poll() is None
        child.send_signal(signal.SIGKILL)
        wait_ended(child)
        assert files_bytes(path) <= SIZE_LIMIT
        with SqliteStore(path, SIZE_LIMIT) as store:
            found = {info.key.hex(): store.get(info.key) for info in store.scan()}
        expected = acknowledged(log)
        for key, version in expected.items():
            entry = found.get(key)
            assert entry is not None, f"kill {k}: an acknowledged answer is lost"
            assert int(entry.payload.split(b" ", 2)[1]) >= version
        total += len(expected)
        with small_cache(capacity=SIZE_LIMIT, path=path, policy="gdsf-cost") as cache:
            cache.check()
            assert {key.hex() for key in residents(cache)} == set(found)
            for name in range(400):
                lookup = cache.lookup(CHAT, request_of(name))
                assert lookup.hit is None or is_answer(lookup.hit.payload, name), "a wrong answer"
            assert is_answer(cache.fetch(CHAT, request_of(7), Upstream()(7)).payload, 7)
            cache.check()
        assert files_bytes(path) <= SIZE_LIMIT
    return total


def test_killed_under_load(ram_path: Path) -> None:
    assert kill_repeatedly(ram_path, 5) > 0


@pytest.mark.long
def test_killed_often(tmp_path: Path) -> None:
    assert kill_repeatedly(tmp_path, 50) > 0
