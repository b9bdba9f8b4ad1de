"""Benchmark of encryption at rest: what it adds to a hit and to a miss, for answers of 2 KB and 100 KB.

    python bench/encryption.py [--out DIR] [--quick]

Two caches run in turns, one with an encryption key; policy LRU, no shadows. A request has 2 KB. Reported is the minimum
CPU time of the thread over several rounds, in microseconds:

    hit, memory   the answer is in the memory tier, which holds plain text
    hit, file     the answer is read from the file, verified and decrypted; the memory tier is off
    miss          the answer is stored: encrypted and sealed in this thread, written to the file in another

Prints a table; writes encryption.json to DIR.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _results import options_for, write_result

from knapcache import Cache, Reply
from knapcache.cli.output import print_table
from knapcache.store.sqlite.recovery import SqliteOptions
from knapcache.store.sqlite.store import SqliteStore

ANSWERS = {"2 KB": 2048, "100 KB": 102_400}
REQUEST_BYTES = 2048
ENTRIES = 64
SIZE_LIMIT = 512 << 20
KEY = bytes(range(32))


class BenchCache:
    """A cache with ENTRIES answers of one size."""

    def __init__(self, path: Path, answer_bytes: int, *, encrypted: bool, memory_tier: int | None) -> None:
        self.store = SqliteStore(
            path, SIZE_LIMIT, SqliteOptions(memory_tier=memory_tier, encryption_keys=(KEY,) if encrypted else ())
        )
        self.cache = Cache(store=self.store, policy="lru", cost="seconds", shadows=())
        self.payload = os.urandom(answer_bytes)
        self.numbers = itertools.count()
        self.known = [self.request() for _ in range(ENTRIES)]
        for _ in range(2):
            for request in self.known:
                self.fetch(request)
        self.store.flush()

    def request(self) -> dict[str, Any]:
        text = f"{next(self.numbers)} " + "x" * REQUEST_BYTES
        return {"model": "m", "messages": [{"role": "user", "content": text}]}

    def fetch(self, request: dict[str, Any]) -> str:
        return self.cache.fetch(
            "chat/completions", request, lambda: Reply(self.payload, model="m", seconds=1.0)
        ).outcome

    def hits(self) -> None:
        for request in self.known:
            assert self.fetch(request) == "hit"

    def misses(self) -> None:
        for request in [self.request() for _ in range(ENTRIES)]:
            assert self.fetch(request) == "miss"
        self.store.flush()


def thread_us(function: Callable[[], None]) -> float:
    """Return CPU microseconds of this thread per request."""
    start = time.thread_time_ns()
    function()
    return (time.thread_time_ns() - start) / ENTRIES / 1000


def measure(folder: Path, rounds: int) -> list[dict[str, Any]]:
    rows = []
    for name, answer_bytes in ANSWERS.items():
        caches = {
            (kind, encrypted): BenchCache(
                folder / f"{answer_bytes}-{kind}-{encrypted}.db", answer_bytes, encrypted=encrypted, memory_tier=tier
            )
            for kind, tier in (("memory", None), ("file", 0))
            for encrypted in (False, True)
        }
        for what, kind in (("hit, memory", "memory"), ("hit, file", "file"), ("miss", "file")):
            best = {False: float("inf"), True: float("inf")}
            for _ in range(rounds):
                for encrypted in (False, True):
                    cache = caches[kind, encrypted]
                    best[encrypted] = min(best[encrypted], thread_us(cache.misses if what == "miss" else cache.hits))
            rows.append(
                {"answer": name, "what": what, "plain_us": best[False], "encrypted_us": best[True]}
                | {"added_us": best[True] - best[False]}
            )
        for cache in caches.values():
            cache.cache.close()
    return rows


def main() -> None:
    os.environ.setdefault("KNAPCACHE_COMPILE", "1")  # compiled kernels from the first request on
    parser = options_for(__doc__, "encryption.json")
    parser.add_argument("--quick", action="store_true", help="few rounds, to try it")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), 3 if args.quick else 30)
    print_table(rows, title="CPU time of the caller's thread, µs")
    write_result(args.out, "encryption", {"rows": rows})


if __name__ == "__main__":
    main()
