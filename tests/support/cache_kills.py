"""A process that runs a cache under load is killed with -9, again and again, on the same file. After each kill:

No answer is wrong. Every acknowledged entry is there, in its version or a newer one, unless its eviction was logged.
The policy's residents are the stored entries, the totals are the sums of their sizes, and the files are within the
size limit.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from knapcache import Cache
from knapcache.errors import StoreError
from knapcache.store.base import C, Done
from knapcache.store.sqlite.store import SqliteStore
from tests.support.caches import CHAT, Upstream, is_answer, request_of, residents, small_cache, store_of
from tests.support.fork_server import ForkServer, random_delay
from tests.support.stores import files_bytes

SIZE_LIMIT = 1 << 20
NAMES = 200
THREADS = 4


def open_cache(path: Path | None) -> Cache:
    return small_cache(capacity=SIZE_LIMIT, path=path, policy="gdsf-cost")


def version_of(payload: bytes) -> int:
    return int(payload.split(b" ", 2)[1])


# In the process that is killed.


def warm_up() -> None:
    """Compile the policy's kernels."""
    with open_cache(None) as cache:
        cache.fetch(CHAT, request_of(0), Upstream()(0))


def log_changes(log: str) -> None:
    """Log puts after the store has acknowledged them, and evictions before it gets them."""
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    apply_all = SqliteStore.apply_all
    numbers = itertools.count()  # a change may be acknowledged after the next one has begun

    def logged(self: SqliteStore, changes: Sequence[C], done: Done[C]) -> None:
        numbered = {change: next(numbers) for change in changes}
        for change, number in numbered.items():
            for key in (*change.evict, *([change.put.key] if change.put else [])):
                os.write(out, b"evict %s %d\n" % (key.hex().encode(), number))

        def log_put(change: C, error: StoreError | None) -> None:
            if change.put is not None and error is None:
                key, version = change.put.key.hex().encode(), version_of(change.put.payload)
                os.write(out, b"put %s %d %d\n" % (key, numbered[change], version))
            done(change, error)

        apply_all(self, changes, log_put)

    SqliteStore.apply_all = logged  # type: ignore[method-assign]


def run(ready: Callable[[], object], path: str, log: str, seed: str) -> None:
    """Send requests from several threads, for ever."""
    log_changes(log)
    ready()  # the first kills hit the opening of the file
    cache = open_cache(Path(path))
    versions = itertools.count(int(seed) * 10**6)

    def work(k: int) -> None:
        rng = random.Random(int(seed) * 10 + k)
        while True:
            name, n = rng.randrange(NAMES), int(min(30_000, rng.lognormvariate(8.5, 1)))
            if rng.random() < 0.01:
                cache.maintain()
            call = Upstream()(name, n, next(versions))
            answer = cache.fetch(CHAT, request_of(name), call, refresh=rng.random() < 0.2)
            assert is_answer(answer.payload, name)

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(THREADS)]
    for thread in threads:
        thread.start()
    while all(thread.is_alive() for thread in threads):
        threads[0].join(0.1)


# In the process that kills and verifies.


def expected_after(before: dict[str, int], log: Path) -> tuple[dict[str, int], int]:
    """Return version by key of the entries that must be there, and how many of them the killed process wrote."""
    put: dict[str, tuple[int, int]] = {}
    evicted: dict[str, int] = {}
    for line in log.read_text().splitlines() if log.exists() else []:
        change, key, number, *version = line.split()
        if change == "put":
            put[key] = int(number), int(version[0])
        else:
            evicted[key] = int(number)
    written = {key: version for key, (number, version) in put.items() if evicted[key] <= number}
    return {key: version for key, version in before.items() if key not in evicted} | written, len(written)


def stored_versions(cache: Cache) -> dict[str, int]:
    """Return version by key of all entries, and compare the totals with them."""
    store, found, total = store_of(cache), {}, 0
    for info in store.scan():
        entry = store.get(info.key)
        assert entry is not None
        found[info.key.hex()] = version_of(entry.payload)
        total += info.size
    assert store.totals() == (len(found), total)
    assert cache.stats().bytes == total
    assert {key.hex() for key in residents(cache)} == found.keys()
    return found


def kill_repeatedly(
    folder: Path, kills: int, seed: int = 0, progress: Callable[[int], object] = lambda _: None
) -> dict[str, int]:
    """Return how many acknowledged entries were looked for, how many a killed process wrote, and answers checked."""
    rng = random.Random(seed)
    path, counts = folder / "answers.db", {"kills": 0, "acknowledged": 0, "written": 0, "answers": 0, "disk_bytes": 0}
    before: dict[str, int] = {}
    with ForkServer(__name__) as server:
        for k in range(kills):
            log = folder / f"log-{k}"
            server.run_and_kill(random_delay(rng, 0.5), path, log, seed * kills + k)
            size = files_bytes(path)
            assert size <= SIZE_LIMIT, f"kill {k}: {size} bytes on disk"
            expected, written = expected_after(before, log)
            with open_cache(path) as cache:
                found = stored_versions(cache)
                for key, version in expected.items():
                    assert key in found, f"kill {k}: an acknowledged entry is lost"
                    assert found[key] >= version, f"kill {k}: an older version of an acknowledged entry"
                for name in range(NAMES):
                    hit = cache.get(CHAT, request_of(name))
                    assert hit is None or is_answer(hit.payload, name), f"kill {k}: a wrong answer"
                    counts["answers"] += hit is not None
                assert is_answer(cache.fetch(CHAT, request_of(7), Upstream()(7)).payload, 7)
                cache.check()
                store_of(cache).flush()
                before = stored_versions(cache)
            counts["kills"] += 1
            counts["acknowledged"] += len(expected)
            counts["written"] += written
            counts["disk_bytes"] = max(counts["disk_bytes"], size, files_bytes(path))
            log.unlink(missing_ok=True)
            progress(k + 1)
    assert counts["disk_bytes"] <= SIZE_LIMIT
    return counts
