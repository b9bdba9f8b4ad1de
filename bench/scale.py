"""Growth with the number of entries: opening, hits, writes, memory and pauses at 10^4, 10^5 and 10^6 entries.

    python bench/scale.py [--entries 10000,100000,1000000] [--stores file,memory] [--out DIR]

An entry is a short chat request and an answer of 1 kB; the policy and the shadows are the default ones. Processes of
their own write the entries and read them again, so that memory and page caches of Python do not carry over.

    write            entries a second of a bulk import; SQLite: of executemany with the same rows in large transactions
    loop             microseconds of a library miss in a loop, from the request until the next one
    open             seconds until the cache is constructed; first hit: until it has answered one request; ready: until
                     the policy has read all entries
    memory hit       microseconds, p50 and p99; disk hit: of entries that were not read before; SQLite: its own reads
    collection       milliseconds of a full garbage collection, which stops the process
    bytes an entry   resident memory above that of an empty cache of the same capacity, before the first hit

Prints a table; writes scale.json to DIR.
"""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _results import Row, options_for, write_result

from knapcache import Cache, Reply
from knapcache.cache.cache import internal_of
from knapcache.cache.roles import Owner
from knapcache.cache.transfer import EntryImporter, TransferEntry
from knapcache.cli.output import print_table
from knapcache.model import Endpoint
from knapcache.store.base import Entry
from knapcache.store.memory import MemoryStore
from knapcache.store.sqlite.store import SqliteStore

CHAT = Endpoint.CHAT
BYTES_EACH = 3000
"""Size limit for each entry: more than any store charges for it."""
READ = 2000
"""Entries that are read, and misses of the loop."""


def request(k: int) -> dict[str, Any]:
    return {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": f"question {k}"}]}


def reply(k: int) -> Reply:
    return Reply(b"%016d" % k * 64, cost=0.001, seconds=1.0)


def size_limit(count: int) -> int:
    return BYTES_EACH * (count + READ) + (4 << 20)


def micros(call: Callable[[int], object], numbers: list[int]) -> tuple[float, float]:
    """Return p50 and p99 of the microseconds of a call."""
    seconds = []
    for k in numbers:
        start = time.perf_counter()
        call(k)
        seconds.append(time.perf_counter() - start)
    p50, p99 = np.percentile(seconds, (50, 99))
    return 1e6 * float(p50), 1e6 * float(p99)


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def write(path: Path, count: int) -> Row:
    """Import the entries into a new file, and write the same bytes with SQLite alone."""
    made = list[TransferEntry]()
    keys = internal_of(Cache("1MiB"))
    for k in range(count):
        keyed = keys.keyed_request(CHAT, request(k))
        assert keyed is not None
        texts = keyed.key.canonical, reply(k).payload
        entry = Entry(b"", "", "gpt-4o-mini", 0, 0.001, 1.0, 1e9 + k, None, {"usd": 0.001}, *texts)
        made.append(TransferEntry(entry, 1.0, None))
    importer = EntryImporter(SqliteStore(path, size_limit(count)), None, "adaptive", lambda tenant, _: tenant)
    start = time.perf_counter()
    for found in made:
        importer.add(found)
    importer.finish()
    importer.close()
    seconds = time.perf_counter() - start
    assert importer.result.stored == count, importer.result
    rows = [(os.urandom(8), found.entry.request, found.entry.payload) for found in made]
    plain = sqlite3.connect(f"{path}.plain", isolation_level=None)
    plain.execute("PRAGMA journal_mode = wal")
    plain.execute("PRAGMA synchronous = normal")
    plain.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, request BLOB, payload BLOB)")
    start = time.perf_counter()
    for first in range(0, count, 1000):
        plain.execute("BEGIN")
        plain.executemany(
            "INSERT INTO rows VALUES (?, ?, ?)",
            ((int.from_bytes(key, "big", signed=True), *row) for key, *row in rows[first : first + 1000]),
        )
        plain.execute("COMMIT")
    plain.close()
    return {"write_per_s": count / seconds, "sqlite_write_per_s": count / (time.perf_counter() - start)}


def read(kind: str, path: Path, count: int) -> Row:
    """Open a store anew, and measure the rest."""
    warm_up(size_limit(count))
    before = resident_bytes()
    start = time.perf_counter()
    cache = Cache(store=MemoryStore(size_limit(count))) if kind == "memory" else Cache(size_limit(count), path=path)
    row: Row = {"open_s": time.perf_counter() - start}
    if kind == "memory":
        start = time.perf_counter()
        for k in range(count):
            cache.put(CHAT, request(k), reply(k))
        row["write_per_s"] = count / (time.perf_counter() - start)
    numbers = random.Random(1).sample(range(count), 2 * READ)

    def hit(k: int) -> None:
        assert cache.get(CHAT, request(k)) is not None, k

    hit(numbers[0])
    row["first_hit_s"] = time.perf_counter() - start
    while not isinstance(internal_of(cache).coordinator.role, Owner):
        time.sleep(0.01)
    row["ready_s"] = time.perf_counter() - start
    gc.collect()
    row["bytes_an_entry"] = (resident_bytes() - before) / count
    row["disk_hit_p50_us"], row["disk_hit_p99_us"] = micros(hit, numbers[1:READ])
    row["hit_p50_us"], row["hit_p99_us"] = micros(hit, numbers[1:READ])
    row["collection_ms"] = micros(lambda _: gc.collect(), list(range(5)))[0] / 1000
    start = time.perf_counter()
    for k in range(count, count + READ):
        cache.fetch(CHAT, request(k), lambda k=k: reply(k))  # type: ignore[misc]
    row["loop_us"] = 1e6 * (time.perf_counter() - start) / READ
    start = time.perf_counter()
    cache.close()
    row["close_s"] = time.perf_counter() - start
    return row


def read_plain(path: Path) -> Row:
    """Read rows of SQLite by their ids."""
    plain = sqlite3.connect(f"{path}.plain")
    ids = [number for (number,) in plain.execute("SELECT id FROM rows LIMIT 100000")]
    chosen = random.Random(1).sample(ids, READ)
    statement = "SELECT request, payload FROM rows WHERE id = ?"
    return {"sqlite_read_p50_us": micros(lambda number: plain.execute(statement, (number,)).fetchall(), chosen)[0]}


def warm_up(limit: int) -> None:
    """Load modules and kernels, and allocate the tables of an empty cache."""
    with Cache(store=MemoryStore(limit)) as cache:
        for k in range(3):
            cache.fetch(CHAT, request(k), lambda: reply(0))
            cache.fetch(CHAT, request(k), lambda: reply(0))
    gc.collect()


def run_step(step: str, kind: str, path: Path, count: int) -> Row:
    command = [sys.executable, __file__, "--step", step, kind, str(path), str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=os.environ | {"KNAPCACHE_COMPILE": "1"})
    found: Row = json.loads(done.stdout)
    return found


def measure(kind: str, count: int) -> Row:
    folder = Path(tempfile.mkdtemp(prefix="knapcache-scale-"))
    try:
        row: Row = {"store": kind, "entries": count}
        if kind == "file":
            row |= run_step("write", kind, folder / "answers.db", count)
            row |= run_step("read_plain", kind, folder / "answers.db", count)
        return row | run_step("read", kind, folder / "answers.db", count)
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = options_for(__doc__, "scale.json")
    parser.add_argument("--entries", default="10000,100000,1000000", help="numbers of entries, separated by commas")
    parser.add_argument("--stores", default="file,memory", help="file, memory, or both (default)")
    parser.add_argument("--step", nargs=4, help="one measurement, for the processes that this one starts")
    args = parser.parse_args()
    if args.step:
        step, kind, path, count = args.step
        steps: dict[str, Callable[[], Row]] = {
            "write": lambda: write(Path(path), int(count)),
            "read": lambda: read(kind, Path(path), int(count)),
            "read_plain": lambda: read_plain(Path(path)),
        }
        print(json.dumps(steps[step]()))
        return
    rows = [measure(kind, int(count)) for kind in args.stores.split(",") for count in args.entries.split(",")]
    names = list(dict.fromkeys(name for row in rows for name in row))
    print_table([{name: row.get(name) for name in names} for row in rows], title="Growth")
    write_result(args.out, "scale", {"rows": rows})


if __name__ == "__main__":
    main()
