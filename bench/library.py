"""How fast the cache is in a program: beside other caches on the same requests, on disk, and over a million requests.

    python bench/library.py [--out DIR] [--quick]

Hits, and misses whose answer is then kept: a chat request of 2 KB with an answer of 2 KB, the caches by turns, CPU time
of the thread, the least of some rounds. Each cache is given the request in the form that it is made for (_peer_caches.py).
Ours reads the JSON, makes the key, asks the policy and two shadows, compares the kept request with this one, and counts
in the ledger; LRUCache and diskcache are given the request's bytes as key and do none of that. Hence the bar: a hit of
ours takes at most twice as long as an LRUCache hit and the hashing of the request together.

Disk: 20,000 answers of 4 KB in files, Zipf traffic, `SqliteStore.get` and `diskcache.Cache.get` with the same keys of
32 bytes. The store keeps what was read lately in memory, so the mean depends on the traffic. The bar is on that mean,
once what is asked for often has been read; hits that find the answer in memory and hits that go to the file are listed
beside it. The first table has whole hits, from the request to the answer.

Settle: an answer of 4 KB was paid for; cost, policy, shadows, and the store takes it: wall time until the caller goes
on, each one timed. Memory: a process of its own (_memory_growth.py).

Prints tables; writes library.json and library.png into DIR.
"""

from __future__ import annotations

import argparse
import atexit
import hashlib
import importlib
import importlib.util
import json
import os
import platform
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
from _peer_caches import CHAT, Asked, ours, peers, request
from _targets import Row, bar

from knapcache import Cache, Reply
from knapcache.cli.output import print_table
from knapcache.keys import Keyer
from knapcache.sim.figures import new_figure
from knapcache.store.base import Entry
from knapcache.store.sqlite.store import SqliteStore

OURS, OURS_ON_DISK = "knapcache, memory", "knapcache, SQLite"
THEIRS_ON_DISK = "diskcache, mean over the traffic"
AT_ONCE = 100
"""Requests that are timed together."""
SIZES = (512, 2048, 8192)
BYTES = 4096
SETTLED = 3000


def timed(function: Callable[[Any], Any], items: Iterable[Any], many: int) -> float:
    """Microseconds of this thread for each."""
    start = time.thread_time_ns()
    for item in items:
        function(item)
    return (time.thread_time_ns() - start) / many / 1000


def by_turns(tasks: dict[str, Callable[[Any], Any]], items: Sequence[Any], rounds: int) -> dict[str, float]:
    """The least of some rounds for each task."""
    best = dict.fromkeys(tasks, float("inf"))
    for k in range(rounds):
        some = [items[j % len(items)] for j in range(k * AT_ONCE, (k + 1) * AT_ONCE)]
        for name, task in tasks.items():
            best[name] = min(best[name], timed(task, some, AT_ONCE))
    return best


def beside(folder: Path, rounds: int) -> tuple[list[Row], list[str], float]:
    """Hits and kept misses of all caches, the names of those not installed, and the time a key takes."""
    others, missing = peers(folder)
    memory, first = ours(OURS, None)
    disk, second = ours(OURS_ON_DISK, folder / "ours.db")
    caches = [memory, disk, *others]
    known = [request(k) for k in range(10 * AT_ONCE)]
    fresh = [request(k) for k in range(10**6, 10**6 + max(10, rounds // 5) * AT_ONCE)]
    for asked in known:
        for cache in caches:
            cache.keep(asked)
            assert cache.hit(asked), f"{cache.name} does not keep"
    keyer = Keyer(bytes(32))
    tasks: dict[str, Callable[[Asked], Any]] = {cache.name: cache.hit for cache in caches}
    tasks["key"] = lambda asked: keyer.read(CHAT, asked.text)
    hits = by_turns(tasks, known, rounds)
    misses = by_turns({cache.name: cache.keep for cache in caches}, fresh, max(10, rounds // 5))
    rows = [
        {
            "cache": cache.name, "version": cache.version, "storage": cache.where, "hit_us": hits[cache.name],
            "miss_and_store_us": misses[cache.name],
        }
        for cache in caches
    ]  # fmt: skip
    for each in (first, second):
        each.check()
        each.close()
    return rows, missing, hits["key"]


def by_size(rounds: int) -> list[Row]:
    """Our hit and its key, for requests of other sizes."""
    rows = []
    memory, cache = ours(OURS, None)
    keyer = Keyer(bytes(32))
    with cache:
        for size in SIZES:
            known = [request(k, size) for k in range(AT_ONCE)]
            for asked in known:
                memory.keep(asked)
            tasks: dict[str, Callable[[Asked], Any]] = {
                "hit": memory.hit,
                "key": lambda asked: keyer.read(CHAT, asked.text),
            }
            best = by_turns(tasks, known, rounds)
            rows.append({"request_bytes": len(known[0].text), "hit_us": best["hit"], "key_us": best["key"]})
    return rows


def on_disk(folder: Path, keys: int, asked: int) -> list[Row]:
    """Hits from files under Zipf traffic, by turns in pieces."""
    rng = np.random.default_rng(0)
    names = [hashlib.sha256(b"%d" % k).digest() for k in range(keys)]
    answers = rng.bytes(keys * 64)
    weights = 1.0 / np.arange(1, keys + 1)
    traffic = [names[k] for k in rng.choice(keys, asked, p=weights / weights.sum())]
    peer: Any = SimpleNamespace(get=lambda _: None, set=lambda *_: None, transact=nullcontext, close=lambda: None)
    if importlib.util.find_spec("diskcache"):
        peer = importlib.import_module("diskcache").Cache(folder / "zipf", size_limit=1 << 32)
    with SqliteStore(folder / "zipf.db", 512 << 20) as store:
        for k, name in enumerate(names):
            payload = answers[k * 64 : k * 64 + 64] * (BYTES // 64)
            entry = Entry(name, "", "m", 0, 1.0, 1.0, 1.0, None, {}, b"a request of some bytes" * 20, payload)
            store.apply(entry._replace(size=store.entry_size(entry)))
            if k % 256 == 0:
                store.flush()
        with peer.transact():
            for k, name in enumerate(names):
                peer.set(name, answers[k * 64 : k * 64 + 64] * (BYTES // 64))
        store.flush()
        with store.reader() as reader:  # who does not own the file keeps nothing in memory
            mean, theirs, file, get_nowait = [], [], [], 0
            for a in range(0, asked, AT_ONCE):
                some = traffic[a : a + AT_ONCE]
                get_nowait += sum(store._memory_tier.get(name) is not None for name in some)
                mean.append(timed(store.get, some, AT_ONCE))
                theirs.append(timed(peer.get, some, AT_ONCE))
                file.append(timed(reader.get, some, AT_ONCE))
            few = traffic[-AT_ONCE:]
            near = [timed(store.get, few, AT_ONCE) for _ in range(100)]
            assert all(peer.get(name) in (None, store.get(name).payload) for name in few)  # type: ignore[union-attr]
    peer.close()
    warm = len(mean) // 4  # by then what is asked for often is at hand
    rows: list[Row] = [
        {"hit": "SqliteStore, mean over the traffic", "us": float(np.mean(mean[warm:]))},
        {"hit": "SqliteStore, from its memory", "us": min(near)},
        {"hit": "SqliteStore, from the file", "us": float(np.mean(file[warm:]))},
        {"hit": THEIRS_ON_DISK, "us": float(np.mean(theirs[warm:]))},
    ]
    if not importlib.util.find_spec("diskcache"):
        del rows[-1]
    rows[0]["from_memory_percent"] = 100.0 * get_nowait / asked
    return rows


def settling(folder: Path, many: int) -> list[Row]:
    """Wall time of `Cache.settle`, while there is room, and when each answer that comes makes others go."""
    rows = []
    for what, room in (("below capacity", "512MB"), ("at capacity", "4MB")):
        with Cache(room, path=folder / f"settle-{room}.db", cost="seconds") as cache:
            spent = []
            for k in range(many):
                asked = request(k, 2048, BYTES)
                found = cache.lookup(CHAT, asked.text)
                reply = Reply(asked.answer, "gpt-4o", seconds=1.0 + k % 7)
                start = time.perf_counter_ns()
                cache.settle(found, reply)
                spent.append((time.perf_counter_ns() - start) / 1000)
            evicted = cache.stats().get("evictions", 0)
            cache.check()
        spent = spent[many // 3 :]
        rows.append({"settle": what, "median_us": median(spent), "p95_us": float(np.percentile(spent, 95))})
        rows[-1]["evictions"] = evicted
    return rows


def growth(requests: int, keys: int) -> dict[str, Any]:
    """Memory over many requests, in a process of its own."""
    script = Path(__file__).with_name("_memory_growth.py")
    command = [sys.executable, str(script), str(requests), str(keys), str(requests // 20)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=os.environ)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def grown(curve: list[list[int]]) -> float:
    """Percent from 30 % of the requests to all of them."""
    early = next(size for n, size in curve if n >= 0.3 * curve[-1][0])
    return 100.0 * (curve[-1][1] / early - 1.0)


def bars(rows: list[Row], key: float, disk: list[Row], settled: list[Row], curve: list[list[int]]) -> list[Row]:
    """What must hold, as far as the other caches are there."""
    hit = {row["cache"]: row["hit_us"] for row in rows}
    us = {row["hit"]: row["us"] for row in disk}
    lines = []
    if "cachetools.LRUCache" in hit:
        plain = hit["cachetools.LRUCache"] + key
        lines.append(bar("memory hit / (LRUCache hit + hashing)", hit[OURS] / plain, 2, "×", most=True))
    if THEIRS_ON_DISK in us:
        times = us[THEIRS_ON_DISK] / us["SqliteStore, mean over the traffic"]
        lines.append(bar("diskcache hit / SqliteStore hit, Zipf traffic", times, 3, "×", most=False))
    whole = max(row["median_us"] for row in settled)
    return [
        *lines,
        bar("settle on SQLite, median", whole, 150, "µs", most=True),
        bar("memory growth from 30 % of the requests to the end", grown(curve), 5, "%", most=True),
    ]


def draw(rows: list[Row], curve: list[list[int]], path: Path) -> None:
    """Hits and kept misses of all caches; memory over requests."""
    figure, (left, right) = new_figure(2, width=5.8)
    shown = sorted(rows, key=lambda row: -row["hit_us"])
    y = np.arange(len(shown))
    left.barh(y + 0.2, [row["hit_us"] for row in shown], 0.4, color="#0072B2", label="hit")
    left.barh(y - 0.2, [row["miss_and_store_us"] for row in shown], 0.4, color="#E69F00", label="miss, and keep")
    left.set_yticks(y, [row["cache"] for row in shown])
    left.set_xscale("log")
    left.set_xlabel("µs, CPU time of the caller's thread")
    left.set_title("A chat request of 2 KB, an answer of 2 KB")
    left.legend(loc="upper right")
    right.plot([n / 1e6 for n, _ in curve], [size / 2**20 for _, size in curve], marker="o", markersize=4)
    right.set_ylim(bottom=0)
    right.set_xlabel("million requests")
    right.set_ylabel("MiB resident")
    right.set_title("Memory of the process")
    figure.savefig(path, dpi=140)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="DIR", help="write library.json and library.png here")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    args = parser.parse_args()
    part = 10 if args.quick else 1
    place = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, place, ignore_errors=True)  # after GPTCache, which writes its map at the very end
    rows, missing, key = beside(place, 500 // part)
    sizes = by_size(300 // part)
    disk = on_disk(place, 20_000 // part, 60_000 // part)
    settled = settling(place, SETTLED // part)
    memory = growth(10**6 // part, 10**5 // part)
    lines = bars(rows, key, disk, settled, memory["curve"])
    print_table(rows, title="a chat request of 2 KB, an answer of 2 KB")
    print(f"not installed, left out: {'; '.join(missing) or 'none'}. Hashing the request: {key:.1f} µs")
    print_table(sizes, title="our hit, by size of the request")
    print_table(disk, title="hits on disk, answers of 4 KB")
    print_table(settled, title="settle on SQLite, answers of 4 KB")
    curve = [{"requests": n, "MiB": size / 2**20} for n, size in memory["curve"]]
    print_table(curve, title=f"memory: {memory['stats']}")
    print_table(lines, title="targets")
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        record = {
            "name": "library", "python": platform.python_version(), "machine": platform.machine(), "targets": lines,
            "rows": rows, "not_installed": missing, "key_us": key, "sizes": sizes, "disk": disk, "settle": settled,
            "memory": memory,
        }  # fmt: skip
        (args.out / "library.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        draw(rows, memory["curve"], args.out / "library.png")


if __name__ == "__main__":
    main()
