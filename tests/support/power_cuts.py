"""Simulated power cuts at random moments.

The files are real. A VFS also records the writes since the last sync of each file. At a power cut, a random part of
these writes reaches the disk, by sectors and in any order, whole, torn or as noise. At most one sector of a write is
noise: the one that the disk was writing. (If all of a young database's first page were noise, the store could not know
the file for its own, and would refuse it.) Synced data is always there. The resulting files are opened again, and so
on, cut after cut. The law:

    The store holds the result of a prefix of the changes, in their order (store_changes.py). With synchronous="full"
    the prefix includes every acknowledged change; with "normal" the youngest may be missing. No answer is wrong, no
    file is damaged, and the totals are right.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from knapcache.store.sqlite.recovery import SqliteOptions
from knapcache.store.sqlite.store import SqliteStore
from tests.support.store_changes import Change, prefixes_to
from tests.support.stores import entry_of, key_of, stored_versions

SECTOR = 512
_numbers = itertools.count()


class SimulatedFile:
    """One file: its durable content, and the writes since the last sync."""

    def __init__(self, path: str) -> None:
        self.durable: bytearray | None = None  # None: not even its directory entry is
        if os.path.exists(path):
            with open(path, "rb") as file:
                self.durable = bytearray(file.read())
        self.unsynced: list[tuple[int, bytes | None]] = []  # offset and bytes; None: truncated there

    def sync(self) -> None:
        content = bytearray() if self.durable is None else self.durable
        for offset, data in self.unsynced:
            _write(content, offset, data)
        self.durable, self.unsynced = content, []

    def after_power_cut(self, rng: random.Random) -> tuple[bytes | None, int]:
        """Return the content after a power cut, and the number of writes that were lost or torn."""
        if self.durable is None and rng.random() < 0.5:
            return None, len(self.unsynced)
        content, lost = bytearray(self.durable or b""), 0
        share = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        first = rng.choice([0, rng.randint(0, len(self.unsynced))])  # some disks preserve the order of the first writes
        for number, (offset, data) in enumerate(self.unsynced):
            if number < first:
                _write(content, offset, data)
            elif data is None:
                if rng.random() < share:
                    _write(content, offset, None)
            else:
                lost += self._tear(content, offset, data, share, rng)
        return bytes(content), lost

    def _tear(self, content: bytearray, offset: int, data: bytes, share: float, rng: random.Random) -> int:
        lost, at, noise = 0, 0, False
        while at < len(data):
            sector = data[at : at + SECTOR - (offset + at) % SECTOR]
            if rng.random() < share:
                _write(content, offset + at, sector)
            else:
                lost = 1
                fate = rng.random()
                if fate < 0.1:
                    _write(content, offset + at, sector[: rng.randrange(len(sector))])
                elif fate < 0.2 and not noise:
                    noise = True
                    _write(content, offset + at, rng.randbytes(len(sector)))
            at += len(sector)
        return lost


def _write(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        return
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data


class PowerSupply:
    """Fails at the `cut_at`-th operation that changes a file. `syncs_work`: whether a sync makes data durable."""

    def __init__(self, cut_at: int, rng: random.Random, on_cut: Callable[[], None], *, syncs_work: bool) -> None:
        self.files: dict[str, SimulatedFile] = {}
        self.content_after: dict[str, bytes | None] | None = None
        self.lost = 0
        self.lock = threading.Lock()
        self._cut_at, self._rng, self._on_cut, self._syncs_work = cut_at, rng, on_cut, syncs_work

    def count_operation(self) -> None:
        self._cut_at -= 1
        if self._cut_at == 0:
            self._on_cut()
            self.content_after = {}
            for name, file in self.files.items():
                self.content_after[name], lost = file.after_power_cut(self._rng)
                self.lost += lost

    def write(self, name: str, offset: int, data: bytes | None) -> None:
        with self.lock:
            self.files[name].unsynced.append((offset, data))
            self.count_operation()

    def sync(self, name: str) -> None:
        with self.lock:
            self.count_operation()  # a cut during a sync means that it did not happen
            if self._syncs_work:
                self.files[name].sync()

    def delete(self, name: str) -> None:
        with self.lock:
            self.count_operation()
            self.files.pop(name, None)

    def restore(self, path: Path) -> None:
        """Give the files the content that they have after the cut."""
        assert self.content_after is not None
        Path(f"{path}-shm").unlink(missing_ok=True)  # it was in memory
        for name, content in self.content_after.items():
            if content is None:
                Path(name).unlink(missing_ok=True)
            else:
                # The log's blocks were allocated in advance. A cut may keep or lose the allocation.
                Path(name).write_bytes(content + bytes(self._rng.choice([0, 100_000])) * name.endswith("-wal"))


class PowerCutVFS(apsw.VFS):
    """The real file system, with a power supply that fails."""

    def __init__(self) -> None:
        self.power: PowerSupply
        self.name = f"power{next(_numbers)}"
        super().__init__(self.name, "")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's name
        return PowerCutFile(self.power, name, flags)

    def xDelete(self, name: str, sync: bool) -> None:  # noqa: N802
        self.power.delete(name)
        super().xDelete(name, sync)


class PowerCutFile(apsw.VFSFile):
    def __init__(self, power: PowerSupply, name: Any, flags: list[int]) -> None:
        self.power = power
        self.name: str = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        with power.lock:
            if self.name not in power.files:  # before SQLite has locks: closing the file would drop them
                power.files[self.name] = SimulatedFile(self.name)
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


class Workload:
    """Changes to a store up to a power cut: those begun, and those acknowledged when the power failed."""

    def __init__(self) -> None:
        self.begun: list[Change] = []
        self.acknowledged = 0
        self.at_cut = (0, 0)  # begun and acknowledged

    def on_cut(self) -> None:
        self.at_cut = len(self.begun), self.acknowledged

    def run(self, store: SqliteStore, power: PowerSupply, rng: random.Random, first: int, awaited: float = 0.3) -> None:
        """Make changes within the capacity until the power fails. awaited: the share whose end is waited for."""
        sizes = {int(entry.request.split()[1]): entry.size for info in store.scan() if (entry := store.get(info.key))}
        for version in itertools.count(first):
            if power.content_after is not None:
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
            self.begun.append(Change(name, version, evict))
            done = store.apply(entry, [key_of(other) for other in evict], b"%d" % version)
            done.add_done_callback(self._acknowledge)
            if rng.random() < awaited:
                done.result()

    def _acknowledge(self, done: Any) -> None:
        done.result()
        self.acknowledged += 1


def cut_power_repeatedly(
    folder: Path, disk: PowerCutVFS, cuts: int, seed: int, synchronous: str, *, syncs_work: bool = True
) -> dict[str, int]:
    """Return the changes begun, the unsynced writes that were lost or torn, and the acknowledged changes lost."""
    rng = random.Random(seed)
    path, size_limit = folder / "answers.db", rng.choice([1 << 20, 4 << 20])
    state: dict[int, int] = {}
    snapshot: bytes | None = None
    torn = lost = version = 0
    for cut in range(cuts):
        workload = Workload()
        cut_at = int(rng.paretovariate(0.5)) % 1500 + 1
        disk.power = power = PowerSupply(cut_at, rng, workload.on_cut, syncs_work=syncs_work)
        with SqliteStore(
            path, size_limit, SqliteOptions(synchronous=synchronous, vfs=disk.name, memory_tier=0)
        ) as store:
            found, last = stored_versions(store), store.load_snapshot()
            assert (found, last) == (state, snapshot), f"cut {cut}: the store differs after it was reopened"
            workload.run(store, power, rng, version)
        version += len(workload.begun)
        torn += power.lost
        power.restore(path)
        disk.power = PowerSupply(0, rng, workload.on_cut, syncs_work=True)
        with SqliteStore(
            path, size_limit, SqliteOptions(synchronous=synchronous, vfs=disk.name, memory_tier=0)
        ) as store:
            found, last = stored_versions(store), store.load_snapshot()
            store.check()
            assert not store.counters().get("damaged"), f"cut {cut}: damaged rows"
            assert not store.counters().get("quarantined"), f"cut {cut}: a damaged file"
        begun, acknowledged = workload.at_cut
        prefixes = prefixes_to((found, last), (state, snapshot), workload.begun[:begun], size_limit)
        assert prefixes, f"cut {cut}: no prefix of {begun} changes leads to what was found"
        missing = acknowledged - prefixes[-1]
        assert missing <= 0 or synchronous == "normal", f"cut {cut}: {missing} acknowledged changes are missing"
        lost += max(0, missing)
        state, snapshot = found, last
    return {"cuts": cuts, "changes": version, "torn": torn, "lost": lost}
