"""Processes killed with SIGKILL at random moments.

The file then holds the result of a prefix of the changes, in their order, and that prefix includes every acknowledged
change. So no answer is wrong, no acknowledged answer is lost, and the totals are right.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from knapcache.store.sqlite.store import SqliteStore
from tests.support.stores import files_bytes, spawn, stored_versions

SIZE_LIMIT = 2 << 20

# Evicts the oldest entries. Logs each change before it is applied, and again when it is acknowledged.
CHILD = """
import os, random, sys
from knapcache.store.sqlite.store import SqliteStore
from tests.support.stores import entry_of, key_of
path, log, seed, synchronous = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
store = SqliteStore(path, int(sys.argv[5]), synchronous=synchronous)
names = {key_of(name): name for name in range(400)}
held = {names[info.key]: info.size for info in store.scan()}
rng = random.Random(seed)
print("ready", flush=True)
number = 0
while True:
    name, version, n = rng.randrange(400), seed * 10**6 + number, int(min(30_000, rng.lognormvariate(8, 1)))
    entry = entry_of(store, name, n, version)
    held.pop(name, None)
    evict = [other for other in list(held) if rng.random() < 0.002]
    free = store.capacity - entry.size - sum(size for other, size in held.items() if other not in evict)
    for other in list(held):
        if free >= 0:
            break
        if other not in evict:
            evict.append(other)
            free += held[other]
    for other in evict:
        del held[other]
    held[name] = entry.size
    os.write(out, f"{number} {name} {version} {' '.join(map(str, evict))}\\n".encode())
    done = store.apply(entry, [key_of(other) for other in evict], b"%d" % version)
    def acknowledge(done, number=number):
        done.result()
        os.write(out, f"ack {number}\\n".encode())
    done.add_done_callback(acknowledge)
    if rng.random() < 0.05:
        done.result()
    number += 1
"""


def write_until_killed(path: Path, log: Path, seed: int, rng: random.Random) -> None:
    child = spawn(CHILD, path, log, seed, rng.choice(["normal", "normal", "full"]), SIZE_LIMIT)
    assert child.stdout
    assert child.stdin
    assert child.stderr
    assert child.stdout.readline() == "ready\n", child.stderr.read()
    time.sleep(rng.random() ** 2 * 0.3)
    assert child.poll() is None, child.stderr.read()
    child.send_signal(signal.SIGKILL)
    child.wait()
    for pipe in (child.stdin, child.stdout, child.stderr):
        pipe.close()


def logged_changes(log: Path) -> tuple[list[tuple[int, int, list[int]]], int]:
    """Return the changes (name, version, evicted) in order, and how many of them were acknowledged."""
    begun, acknowledged = [], 0
    for line in log.read_text().splitlines() if log.exists() else []:
        words = line.split()
        if words[0] == "ack":
            acknowledged = max(acknowledged, int(words[1]) + 1)
        else:
            begun.append((int(words[1]), int(words[2]), [int(word) for word in words[3:]]))
    return begun, acknowledged


def kill_repeatedly(folder: Path, kills: int, seed: int) -> int:
    """Return the number of acknowledged changes."""
    rng = random.Random(seed)
    path, written = folder / "answers.db", 0
    state: dict[int, int] = {}
    for k in range(kills):
        log = folder / f"log-{k}"
        write_until_killed(path, log, k, rng)
        assert files_bytes(path) <= SIZE_LIMIT
        store = SqliteStore(path, SIZE_LIMIT)
        found, snapshot = stored_versions(store), store.load_snapshot()
        begun, acknowledged = logged_changes(log)
        matches = acknowledged == 0 and found == state
        for number, (name, version, evicted) in enumerate(begun, 1):
            state = {other: v for other, v in state.items() if other not in evicted} | {name: version}
            if number >= acknowledged and found == state and snapshot == b"%d" % version:
                matches = True
                break
        assert matches, f"kill {k}: no prefix of {len(begun)} changes, {acknowledged} acknowledged, gives this state"
        store.check()
        assert not store.counters().get("damaged")
        assert not store.counters().get("quarantined")
        store.close()
        written += acknowledged
        state = found
        os.unlink(log)
    return written


def test_a_killed_writer_loses_no_acknowledged_change(ram_path: Path) -> None:
    assert kill_repeatedly(ram_path, 20, 1) > 100


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_a_killed_writer_loses_no_acknowledged_change_for_long(ram_path: Path, seed: int) -> None:
    assert kill_repeatedly(ram_path, 250, seed) > 1000
