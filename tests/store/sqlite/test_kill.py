"""Killed with -9 at any moment.

What is on disk is what a first part of the changes made, in their order, and that part holds every change that was
acknowledged. So no answer is wrong, none that was promised is lost, and the books agree.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from knapcache.store.sqlite.store import SqliteStore
from tests.support.stores import files_bytes, right, spawn

SIZE_LIMIT = 2 << 20

# Keeps to the capacity by letting the oldest go. Says what it is about to do before it does it, and when it is done.
CHILD = """
import os, random, sys
from knapcache.store.sqlite.store import SqliteStore
from tests.support.stores import entry_of, key_of
path, ledger, seed, synchronous = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
out = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
store = SqliteStore(path, int(sys.argv[5]), synchronous=synchronous)
names = {key_of(name): name for name in range(400)}
held = {names[head.key]: head.size for head in store.scan()}
rng = random.Random(seed)
print("ready", flush=True)
number = 0
while True:
    name, version, n = rng.randrange(400), seed * 10**6 + number, int(min(30_000, rng.lognormvariate(8, 1)))
    entry = entry_of(store, name, n, version)
    held.pop(name, None)
    evict = [other for other in list(held) if rng.random() < 0.002]
    room = store.capacity - entry.size - sum(size for other, size in held.items() if other not in evict)
    for other in list(held):
        if room >= 0:
            break
        if other not in evict:
            evict.append(other)
            room += held[other]
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


def killed(path: Path, ledger: Path, seed: int, rng: random.Random) -> None:
    child = spawn(CHILD, path, ledger, seed, rng.choice(["normal", "normal", "full"]), SIZE_LIMIT)
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


def state_of(store: SqliteStore) -> dict[int, int]:
    """Version by name, every answer read and found right."""
    state = {}
    for head in store.scan():
        entry = store.get(head.key)
        assert entry is not None
        name = int(entry.request.split()[1])
        assert right(entry, name), "a wrong answer"
        state[name] = entry.meta["version"]
    return state


def changes(ledger: Path) -> tuple[list[tuple[int, int, list[int]]], int]:
    """What was begun, in its order; how many of these were acknowledged for certain."""
    begun, acknowledged = [], 0
    for line in ledger.read_text().splitlines() if ledger.exists() else []:
        words = line.split()
        if words[0] == "ack":
            acknowledged = max(acknowledged, int(words[1]) + 1)
        else:
            begun.append((int(words[1]), int(words[2]), [int(word) for word in words[3:]]))
    return begun, acknowledged


def storm(folder: Path, kills: int, seed: int) -> int:
    rng = random.Random(seed)
    path, written = folder / "answers.db", 0
    state: dict[int, int] = {}
    for k in range(kills):
        ledger = folder / f"ledger-{k}"
        killed(path, ledger, k, rng)
        assert files_bytes(path) <= SIZE_LIMIT
        store = SqliteStore(path, SIZE_LIMIT)
        found, snapshot = state_of(store), store.load_snapshot()
        begun, acknowledged = changes(ledger)
        matches = acknowledged == 0 and found == state
        for number, (name, version, evicted) in enumerate(begun, 1):
            state = {other: v for other, v in state.items() if other not in evicted} | {name: version}
            if number >= acknowledged and found == state and snapshot == b"%d" % version:
                matches = True
                break
        assert matches, f"kill {k}: no part of the {len(begun)} changes, {acknowledged} of them promised, leads here"
        store.check()
        assert not store.counters().get("damaged")
        assert not store.counters().get("quarantined")
        store.close()
        written += acknowledged
        state = found
        os.unlink(ledger)
    return written


def test_killed_while_writing(quick_path: Path) -> None:
    assert storm(quick_path, 20, 1) > 100


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_killed_while_writing_for_long(quick_path: Path, seed: int) -> None:
    assert storm(quick_path, 250, seed) > 1000
