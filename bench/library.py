"""Benchmark of the cache inside a program: compared with other caches, on disk, and over a million requests.

    python bench/library.py [--out DIR] [--quick]

Hits, and misses whose answer is then stored: chat requests of 2 KB with answers of 2 KB. The caches run in turns;
reported is the minimum CPU time of the thread over several rounds. Each cache gets the request in the form that it is
made for (_peer_caches.py). knapcache parses the JSON, computes the key, asks the policy and two shadows, compares the
stored request, and updates the ledger. LRUCache and diskcache use the bytes of the request as key and do none of that.
Hence the target: a knapcache hit takes at most twice the time of an LRUCache hit plus hashing the request.

Disk: 20,000 answers of 4 KB in files, Zipf traffic, `SqliteStore.get` and `diskcache.Cache.get` with the same 32-byte
keys. The store keeps recently read answers in memory, so the mean depends on the traffic. The target is on the mean
after warm-up. Hits from memory and hits from the file are listed separately. The first table has whole hits, from the
request to the answer.

Settle: wall time of settling an answer of 4 KB: cost, policy, shadows and store, until the caller continues.
Memory: a separate process (_memory_growth.py).

Prints tables; writes library.json and library.png to DIR.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
from _peer_caches import CHAT, BenchRequest, installed_peers, knapcache_adapter, make_request
from _results import Row, options_for, print_targets, target, write_result

from knapcache import Cache, Reply
from knapcache.cache.cache import internal_of
from knapcache.cli.output import print_table
from knapcache.keys import Keyer
from knapcache.lab.figures import new_figure
from knapcache.store.base import Entry
from knapcache.store.sqlite.store import SqliteStore

OURS, OURS_ON_DISK = "knapcache, memory", "knapcache, SQLite"
THEIRS_ON_DISK = "diskcache, mean over the traffic"
BATCH = 100
"""Requests per timing."""
SIZES = (512, 2048, 8192)
ANSWER_BYTES = 4096
SETTLE_COUNT = 3000


def mean_us(function: Callable[[Any], Any], items: Iterable[Any], count: int) -> float:
    """Return the CPU microseconds of this thread per item."""
    start = time.thread_time_ns()
    for item in items:
        function(item)
    return (time.thread_time_ns() - start) / count / 1000


def min_in_turns(tasks: dict[str, Callable[[Any], Any]], items: Sequence[Any], rounds: int) -> dict[str, float]:
    """Run the tasks in turns; return the minimum of all rounds for each."""
    best = dict.fromkeys(tasks, float("inf"))
    for k in range(rounds):
        batch = [items[j % len(items)] for j in range(k * BATCH, (k + 1) * BATCH)]
        for name, task in tasks.items():
            best[name] = min(best[name], mean_us(task, batch, BATCH))
    return best


def compare_caches(folder: Path, rounds: int) -> tuple[list[Row], list[str], float]:
    """Return the times of hits and stored misses of all caches, the missing caches, and the time to compute a key."""
    others, missing = installed_peers(folder)
    memory, memory_cache = knapcache_adapter(OURS, None)
    disk, disk_cache = knapcache_adapter(OURS_ON_DISK, folder / "ours.db")
    caches = [memory, disk, *others]
    known = [make_request(k) for k in range(10 * BATCH)]
    fresh = [make_request(k) for k in range(10**6, 10**6 + max(10, rounds // 5) * BATCH)]
    for request in known:
        for cache in caches:
            cache.miss_and_store(request)
            assert cache.hit(request), f"{cache.name} did not store the answer"
    keyer = Keyer(bytes(32))
    tasks: dict[str, Callable[[BenchRequest], Any]] = {cache.name: cache.hit for cache in caches}
    tasks["key"] = lambda request: keyer.read(CHAT, request.raw)
    hits = min_in_turns(tasks, known, rounds)
    misses = min_in_turns({cache.name: cache.miss_and_store for cache in caches}, fresh, max(10, rounds // 5))
    rows = [
        {
            "cache": cache.name, "version": cache.version, "storage": cache.storage, "hit_us": hits[cache.name],
            "miss_and_store_us": misses[cache.name],
        }
        for cache in caches
    ]  # fmt: skip
    for each in (memory_cache, disk_cache):
        each.check()
        each.close()
    return rows, missing, hits["key"]


def by_size(rounds: int) -> list[Row]:
    """Return the times of a knapcache hit and of its key, by size of the request."""
    rows = []
    memory, cache = knapcache_adapter(OURS, None)
    keyer = Keyer(bytes(32))
    with cache:
        for size in SIZES:
            known = [make_request(k, size) for k in range(BATCH)]
            for request in known:
                memory.miss_and_store(request)
            tasks: dict[str, Callable[[BenchRequest], Any]] = {
                "hit": memory.hit,
                "key": lambda request: keyer.read(CHAT, request.raw),
            }
            best = min_in_turns(tasks, known, rounds)
            rows.append({"request_bytes": len(known[0].raw), "hit_us": best["hit"], "key_us": best["key"]})
    return rows


def disk_hits(folder: Path, keys: int, requests: int) -> list[Row]:
    """Return hit times of SqliteStore and diskcache under Zipf traffic, in turns of one batch."""
    rng = np.random.default_rng(0)
    names = [hashlib.sha256(b"%d" % k).digest() for k in range(keys)]
    answers = rng.bytes(keys * 64)
    weights = 1.0 / np.arange(1, keys + 1)
    traffic = [names[k] for k in rng.choice(keys, requests, p=weights / weights.sum())]
    peer: Any = SimpleNamespace(get=lambda _: None, set=lambda *_: None, transact=nullcontext, close=lambda: None)
    if importlib.util.find_spec("diskcache"):
        peer = importlib.import_module("diskcache").Cache(folder / "zipf", size_limit=1 << 32)
    with SqliteStore(folder / "zipf.db", 512 << 20) as store:
        for k, name in enumerate(names):
            payload = answers[k * 64 : k * 64 + 64] * (ANSWER_BYTES // 64)
            entry = Entry(name, "", "m", 0, 1.0, 1.0, 1.0, None, {}, b"a request of some bytes" * 20, payload)
            store.apply(entry._replace(size=store.entry_size(entry)))
            if k % 256 == 0:
                store.flush()
        with peer.transact():
            for k, name in enumerate(names):
                peer.set(name, answers[k * 64 : k * 64 + 64] * (ANSWER_BYTES // 64))
        store.flush()
        with store.reader() as reader:  # a reader has no memory tier
            store_us, peer_us, file_us, in_memory = [], [], [], 0
            for a in range(0, requests, BATCH):
                batch = traffic[a : a + BATCH]
                in_memory += sum(store._memory_tier.get(name) is not None for name in batch)
                store_us.append(mean_us(store.get, batch, BATCH))
                peer_us.append(mean_us(peer.get, batch, BATCH))
                file_us.append(mean_us(reader.get, batch, BATCH))
            last = traffic[-BATCH:]
            memory_us = [mean_us(store.get, last, BATCH) for _ in range(100)]
            assert all(peer.get(name) in (None, store.get(name).payload) for name in last)  # type: ignore[union-attr]
    peer.close()
    warm = len(store_us) // 4  # by then the popular answers are in memory
    rows: list[Row] = [
        {"hit": "SqliteStore, mean over the traffic", "us": float(np.mean(store_us[warm:]))},
        {"hit": "SqliteStore, from its memory", "us": min(memory_us)},
        {"hit": "SqliteStore, from the file", "us": float(np.mean(file_us[warm:]))},
        {"hit": THEIRS_ON_DISK, "us": float(np.mean(peer_us[warm:]))},
    ]
    if not importlib.util.find_spec("diskcache"):
        del rows[-1]
    rows[0]["from_memory_percent"] = 100.0 * in_memory / requests
    return rows


def settle_times(folder: Path, count: int) -> list[Row]:
    """Return wall times of settling an answer below capacity and at capacity, where each answer evicts others."""
    rows = []
    for label, capacity in (("below capacity", "512MB"), ("at capacity", "4MB")):
        with Cache(capacity, path=folder / f"settle-{capacity}.db", cost="seconds") as cache:
            durations, internal = [], internal_of(cache)
            for k in range(count):
                request = make_request(k, 2048, ANSWER_BYTES)
                found = internal.lookup(CHAT, request.raw)
                reply = Reply(request.answer, "gpt-4o", seconds=1.0 + k % 7)
                start = time.perf_counter_ns()
                internal.settle(found, reply)
                durations.append((time.perf_counter_ns() - start) / 1000)
            evicted = cache.stats().evictions
            cache.check()
        durations = durations[count // 3 :]
        rows.append({"settle": label, "median_us": median(durations), "p95_us": float(np.percentile(durations, 95))})
        rows[-1]["evictions"] = evicted
    return rows


def memory_growth(requests: int, keys: int) -> dict[str, Any]:
    """Run _memory_growth.py in a separate process."""
    script = Path(__file__).with_name("_memory_growth.py")
    command = [sys.executable, str(script), str(requests), str(keys), str(requests // 20)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=os.environ)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def growth_percent(curve: list[list[int]]) -> float:
    """Return the growth from 30 % of the requests to the end."""
    early = next(size for n, size in curve if n >= 0.3 * curve[-1][0])
    return 100.0 * (curve[-1][1] / early - 1.0)


def check_targets(
    rows: list[Row], key: float, disk: list[Row], settled: list[Row], curve: list[list[int]]
) -> list[Row]:
    """Return all targets, except those on caches that are not installed."""
    hit = {row["cache"]: row["hit_us"] for row in rows}
    us = {row["hit"]: row["us"] for row in disk}
    targets = []
    if "cachetools.LRUCache" in hit:
        ratio = hit[OURS] / (hit["cachetools.LRUCache"] + key)
        targets.append(target("memory hit / (LRUCache hit + hashing)", ratio, at_most=2, unit="×"))
    if THEIRS_ON_DISK in us:
        ratio = us[THEIRS_ON_DISK] / us["SqliteStore, mean over the traffic"]
        targets.append(target("diskcache hit / SqliteStore hit, Zipf traffic", ratio, at_least=3, unit="×"))
    settle_us = max(row["median_us"] for row in settled)
    return [
        *targets,
        target("settle on SQLite, median", settle_us, at_most=150, unit="µs"),
        target("memory growth from 30 % of the requests to the end", growth_percent(curve), at_most=5, unit="%"),
    ]


def draw(rows: list[Row], curve: list[list[int]], path: Path) -> None:
    """Plot hits and stored misses of all caches, and memory over requests."""
    figure, (left, right) = new_figure(2, width=5.8)
    shown = sorted(rows, key=lambda row: -row["hit_us"])
    y = np.arange(len(shown))
    left.barh(y + 0.2, [row["hit_us"] for row in shown], 0.4, color="#0072B2", label="hit")
    left.barh(y - 0.2, [row["miss_and_store_us"] for row in shown], 0.4, color="#E69F00", label="miss and store")
    left.set_yticks(y, [row["cache"] for row in shown])
    left.set_xscale("log")
    left.set_xlabel("CPU time of the caller's thread, µs")
    left.set_title("Chat request of 2 KB, answer of 2 KB")
    left.legend(loc="upper right")
    right.plot([n / 1e6 for n, _ in curve], [size / 2**20 for _, size in curve], marker="o", markersize=4)
    right.set_ylim(bottom=0)
    right.set_xlabel("million requests")
    right.set_ylabel("resident memory, MiB")
    right.set_title("Memory of the process")
    figure.savefig(path, dpi=140)


def main() -> None:
    os.environ.setdefault("KNAPCACHE_COMPILE", "1")  # compiled kernels from the first request on
    parser = options_for(__doc__, "library.json and library.png")
    parser.add_argument("--quick", action="store_true", help="a tenth of all counts")
    args = parser.parse_args()
    part = 10 if args.quick else 1
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # after GPTCache, which writes its map at exit
    rows, missing, key = compare_caches(folder, 500 // part)
    sizes = by_size(300 // part)
    disk = disk_hits(folder, 20_000 // part, 60_000 // part)
    settled = settle_times(folder, SETTLE_COUNT // part)
    memory = memory_growth(10**6 // part, 10**5 // part)
    targets = check_targets(rows, key, disk, settled, memory["curve"])
    print_table(rows, title="chat request of 2 KB, answer of 2 KB")
    print(f"not installed: {'; '.join(missing) or 'none'}. Hashing the request: {key:.1f} µs")
    print_table(sizes, title="knapcache hit by size of the request")
    print_table(disk, title="hits on disk, answers of 4 KB")
    print_table(settled, title="settle on SQLite, answers of 4 KB")
    curve = [{"requests": n, "resident_mib": size / 2**20} for n, size in memory["curve"]]
    print_table(curve, title="memory of the process")
    print(", ".join(f"{name} {value:,}" for name, value in memory["stats"].items()))
    print_targets(targets)
    record = {
        "targets": targets, "rows": rows, "not_installed": missing, "key_us": key, "sizes": sizes, "disk": disk,
        "settle": settled, "memory": memory,
    }  # fmt: skip
    write_result(args.out, "library", record)
    if args.out:
        draw(rows, memory["curve"], args.out / "library.png")


if __name__ == "__main__":
    main()
