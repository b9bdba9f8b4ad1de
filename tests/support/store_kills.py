"""A process that writes to a store is killed with -9, again and again, on the same file. After each kill:

The file holds the result of a prefix of the changes, in their order (store_changes.py), and that prefix includes every
acknowledged change. So no answer is wrong, no acknowledged answer is lost, and the totals are right.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from knapcache.store.sqlite.recovery import SqliteOptions
from knapcache.store.sqlite.store import SqliteStore
from tests.support.fork_server import ForkServer, random_delay
from tests.support.store_changes import CLEAR, Change, State, prefixes_to
from tests.support.stores import entry_of, files_bytes, key_of, stored_versions

SIZE_LIMIT = 2 << 20
NAMES = 400


def warm_up() -> None:
    """Nothing to compile: importing this module is all."""


def run(ready: Callable[[], object], path: str, log: str, seed: str, synchronous: str) -> None:
    """Put entries for ever; evict the oldest, at times all. Log each change before it is applied and acknowledged."""
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    ready()
    store = SqliteStore(path, SIZE_LIMIT, SqliteOptions(synchronous=synchronous))
    names = {key_of(name): name for name in range(NAMES)}
    held = {names[info.key]: info.size for info in store.scan()}
    rng = random.Random(int(seed))
    number = 0
    while True:
        clears = rng.random() < 0.02
        name, version = rng.randrange(NAMES), int(seed) * 10**6 + number
        entry = entry_of(store, name, int(min(30_000, rng.lognormvariate(8, 1))), version)
        held.pop(name, None)
        evict = [other for other in held if rng.random() < 0.002]
        free = store.capacity - entry.size - sum(size for other, size in held.items() if other not in evict)
        for other in held:
            if free >= 0:
                break
            if other not in evict:
                evict.append(other)
                free += held[other]
        for other in evict:
            del held[other]
        held[name] = entry.size
        if clears:
            os.write(out, f"{number} {CLEAR} 0\n".encode())
            held.clear()
            done = store.clear()
        else:
            os.write(out, f"{number} {name} {version} {' '.join(map(str, evict))}\n".encode())
            done = store.apply(entry, [key_of(other) for other in evict], b"%d" % version)

        def acknowledge(done: Future[None], number: int = number) -> None:
            done.result()
            os.write(out, b"ack %d\n" % number)

        done.add_done_callback(acknowledge)
        if rng.random() < 0.05:
            done.result()
        number += 1


def logged_changes(log: Path) -> tuple[list[Change], int]:
    """Return the changes in order, and how many of them were acknowledged."""
    begun, acknowledged = [], 0
    for line in log.read_text().splitlines() if log.exists() else []:
        words = line.split()
        if words[0] == "ack":
            acknowledged = max(acknowledged, int(words[1]) + 1)
        else:
            begun.append(Change(int(words[1]), int(words[2]), [int(word) for word in words[3:]]))
    return begun, acknowledged


def kill_repeatedly(
    folder: Path, kills: int, seed: int, progress: Callable[[int], object] = lambda _: None
) -> dict[str, int]:
    """Return the kills and the number of acknowledged changes."""
    rng = random.Random(seed)
    path, counts = folder / "answers.db", {"kills": 0, "acknowledged": 0}
    state: State = ({}, None)
    with ForkServer(__name__) as server:
        for k in range(kills):
            log = folder / f"log-{k}"
            server.run_and_kill(random_delay(rng), path, log, k, rng.choice(["normal", "normal", "full"]))
            assert files_bytes(path) <= SIZE_LIMIT
            with SqliteStore(path, SIZE_LIMIT) as store:
                found = stored_versions(store), store.load_snapshot()
                begun, acknowledged = logged_changes(log)
                prefixes = prefixes_to(found, state, begun, SIZE_LIMIT)
                assert max(prefixes, default=-1) >= acknowledged, (
                    f"kill {k}: no prefix of {len(begun)} changes, {acknowledged} acknowledged, gives this"
                )
                store.check()
                assert not store.counters().get("damaged")
                assert not store.counters().get("quarantined")
            counts["kills"] += 1
            counts["acknowledged"] += acknowledged
            state = found
            log.unlink()
            progress(k + 1)
    return counts
