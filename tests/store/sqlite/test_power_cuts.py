"""The power goes, at any moment.

The disk here is real, and remembers besides what it was told to write since it was last told to sync. When the power
goes, of those writes a few reach the plate, by sectors and in any order, whole, in part or as noise, file by file;
what was synced is there. The file that is left is opened again, and so on, cut after cut. The law:

    what is found is what a first part of the changes made, in their order. With synchronous="full" that part holds
    every change that was acknowledged; with "normal" the youngest may be missing. No answer is wrong, no file is
    damaged, the books agree.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from knapcache.errors import StoreError
from knapcache.store.sqlite.store import SqliteStore
from tests.store.sqlite.test_kill import state_of
from tests.support.stores import entry_of, key_of

SECTOR = 512
_numbers = itertools.count()


class Plate:
    """One file: what is on it for certain, and what was written since."""

    def __init__(self, path: str) -> None:
        self.certain: bytearray | None = None  # None: not even its name is
        if os.path.exists(path):
            with open(path, "rb") as file:
                self.certain = bytearray(file.read())
        self.since: list[tuple[int, bytes | None]] = []  # offset and bytes; None: cut off there

    def sync(self) -> None:
        content = bytearray() if self.certain is None else self.certain
        for offset, data in self.since:
            _change(content, offset, data)
        self.certain, self.since = content, []

    def after(self, rng: random.Random) -> tuple[bytes | None, int]:
        """What a cut leaves of it, and how many writes did not arrive as they were."""
        if self.certain is None and rng.random() < 0.5:
            return None, len(self.since)
        content, lost = bytearray(self.certain or b""), 0
        share = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        first = rng.choice([0, rng.randint(0, len(self.since))])  # some disks keep the order up to a point
        for number, (offset, data) in enumerate(self.since):
            if number < first:
                _change(content, offset, data)
            elif data is None:
                if rng.random() < share:
                    _change(content, offset, None)
            else:
                lost += self._torn(content, offset, data, share, rng)
        return bytes(content), lost

    def _torn(self, content: bytearray, offset: int, data: bytes, share: float, rng: random.Random) -> int:
        lost, at = 0, 0
        while at < len(data):
            sector = data[at : at + SECTOR - (offset + at) % SECTOR]
            if rng.random() < share:
                _change(content, offset + at, sector)
            else:
                lost = 1
                fate = rng.random()
                if fate < 0.1:
                    _change(content, offset + at, sector[: rng.randrange(len(sector))])
                elif fate < 0.2:
                    _change(content, offset + at, rng.randbytes(len(sector)))
            at += len(sector)
        return lost


def _change(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        return
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data


class Power:
    """Goes at the `cut`-th operation that changes a file. `honest`: syncing does something."""

    def __init__(self, cut: int, rng: random.Random, witness: Callable[[], None], *, honest: bool) -> None:
        self.plates: dict[str, Plate] = {}
        self.left: dict[str, bytes | None] | None = None
        self.lost = 0
        self.lock = threading.Lock()
        self._cut, self._rng, self._witness, self._honest = cut, rng, witness, honest

    def tick(self) -> None:
        self._cut -= 1
        if self._cut == 0:
            self._witness()
            self.left = {}
            for name, plate in self.plates.items():
                self.left[name], lost = plate.after(self._rng)
                self.lost += lost

    def write(self, name: str, offset: int, data: bytes | None) -> None:
        with self.lock:
            self.plates[name].since.append((offset, data))
            self.tick()

    def sync(self, name: str) -> None:
        with self.lock:
            self.tick()  # a sync that has not come back has not happened
            if self._honest:
                self.plates[name].sync()

    def delete(self, name: str) -> None:
        with self.lock:
            self.tick()
            self.plates.pop(name, None)

    def restore(self, path: Path) -> None:
        """Make the files what the cut has left of them."""
        assert self.left is not None
        Path(f"{path}-shm").unlink(missing_ok=True)  # memory, which is gone
        for name, content in self.left.items():
            if content is None:
                Path(name).unlink(missing_ok=True)
            else:
                # The log's blocks were taken from the file system at once; a cut may keep or lose that.
                Path(name).write_bytes(content + bytes(self._rng.choice([0, 100_000])) * name.endswith("-wal"))


class Disk(apsw.VFS):
    """The real file system, on a plug."""

    def __init__(self) -> None:
        self.power: Power
        self.name = f"power{next(_numbers)}"
        super().__init__(self.name, "")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's name
        return File(self.power, name, flags)

    def xDelete(self, name: str, sync: bool) -> None:  # noqa: N802
        self.power.delete(name)
        super().xDelete(name, sync)


class File(apsw.VFSFile):
    def __init__(self, power: Power, name: Any, flags: list[int]) -> None:
        self.power = power
        self.name: str = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        with power.lock:
            if self.name not in power.plates:  # before SQLite has locks, which reading the file would drop
                power.plates[self.name] = Plate(self.name)
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self.power.write(self.name, offset, bytes(data))
        super().xWrite(data, offset)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self.power.write(self.name, size, None)
        super().xTruncate(size)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self.power.sync(self.name)
        super().xSync(flags)


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.unregister()


class Run:
    """One life of a store, up to a cut: what was begun, and what had been promised when the power went."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int, list[int]]] = []  # name, version, evicted
        self.acknowledged = 0
        self.then = (0, 0)  # begun and acknowledged, at the cut

    def witness(self) -> None:
        self.then = len(self.begun), self.acknowledged

    def go(self, store: SqliteStore, power: Power, rng: random.Random, first: int) -> None:
        """Changes without end, within capacity, until the power goes."""
        sizes = {int(entry.request.split()[1]): entry.size for head in store.scan() if (entry := store.get(head.key))}
        for version in itertools.count(first):
            if power.left is not None:
                return
            name = rng.randrange(150)
            entry = entry_of(store, name, int(min(20_000, rng.lognormvariate(7.5, 1.2))), version)
            sizes.pop(name, None)
            evict = [other for other in sizes if rng.random() < 0.005]
            for other in sizes:
                if sum(sizes.values()) - sum(sizes[gone] for gone in evict) + entry.size <= store.capacity:
                    break
                if other not in evict:
                    evict.append(other)
            for other in evict:
                del sizes[other]
            sizes[name] = entry.size
            self.begun.append((name, version, evict))
            done = store.apply(entry, [key_of(other) for other in evict], b"%d" % version)
            done.add_done_callback(self._acknowledge)
            if rng.random() < 0.3:
                done.result()

    def _acknowledge(self, done: Any) -> None:
        done.result()
        self.acknowledged += 1

    def position(self, state: dict[int, int], snapshot: bytes | None, found: dict[int, int], last: bytes | None) -> int:
        """How many of the changes that were begun lead from `state` to what was found."""
        begun, _ = self.then
        leads = [0] if (found, last) == (state, snapshot) else []
        for number, (name, version, evicted) in enumerate(self.begun[:begun], 1):
            state = {other: v for other, v in state.items() if other not in evicted} | {name: version}
            if found == state and last == b"%d" % version:
                leads.append(number)
        assert leads, f"no part of {begun} changes leads to what was found"
        return leads[-1]


def storm(folder: Path, disk: Disk, cuts: int, seed: int, synchronous: str, *, honest: bool = True) -> tuple[int, int]:
    """Cut after cut. Returns how many writes the cuts spoiled and how many acknowledged changes they took along."""
    rng = random.Random(seed)
    path, size_limit = folder / "answers.db", rng.choice([1 << 20, 4 << 20])
    state: dict[int, int] = {}
    snapshot: bytes | None = None
    spoiled = missing = version = 0
    for cut in range(cuts):
        run = Run()
        disk.power = power = Power(int(rng.paretovariate(0.5)) % 1500 + 1, rng, run.witness, honest=honest)
        with SqliteStore(path, size_limit, synchronous=synchronous, vfs=disk.name, memory=0) as store:
            found, last = state_of(store), store.load_snapshot()
            assert (found, last) == (state, snapshot), f"cut {cut}: opened again, and it is different"
            run.go(store, power, rng, version)
        version += len(run.begun)
        spoiled += power.lost
        power.restore(path)
        disk.power = Power(0, rng, run.witness, honest=True)
        with SqliteStore(path, size_limit, synchronous=synchronous, vfs=disk.name, memory=0) as store:
            found, last = state_of(store), store.load_snapshot()
            store.check()
            assert not store.counters().get("damaged"), f"cut {cut}: damaged rows"
            assert not store.counters().get("quarantined"), f"cut {cut}: a damaged file"
        late = run.then[1] - run.position(state, snapshot, found, last)
        assert late <= 0 or synchronous == "normal", f"cut {cut}: {late} acknowledged changes are missing"
        missing += max(0, late)
        state, snapshot = found, last
    return spoiled, missing


def test_full_keeps_what_it_acknowledged(quick_path: Path, disk: Disk) -> None:
    spoiled, missing = storm(quick_path, disk, 15, 1, "full")
    assert spoiled > 15
    assert missing == 0


def test_normal_loses_the_youngest_at_most(quick_path: Path, disk: Disk) -> None:
    for seed in range(2, 10):  # when threads come to run decides whether a cut finds something to lose
        folder = quick_path / str(seed)
        folder.mkdir()
        spoiled, missing = storm(folder, disk, 15, seed, "normal")
        assert spoiled > 15
        if missing > 0:
            return
    pytest.fail("nothing was lost: these are no power cuts")


def test_a_disk_that_does_not_sync_is_found_out(quick_path: Path, disk: Disk) -> None:
    """The judge can say no."""
    with pytest.raises((AssertionError, StoreError)):
        storm(quick_path, disk, 15, 3, "full", honest=False)


@pytest.mark.long
@pytest.mark.parametrize("synchronous", ["normal", "full"])
@pytest.mark.parametrize("seed", range(10, 15))
def test_a_thousand_cuts(quick_path: Path, disk: Disk, seed: int, synchronous: str) -> None:
    spoiled, _ = storm(quick_path, disk, 100, seed, synchronous)
    assert spoiled > 100
