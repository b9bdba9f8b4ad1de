"""The request log: one line a request, as the lab reads it (`knapcache plan`, `knapcache replay`).

    requests.csv              the newest lines: time,key,size,cost,usd,seconds,outcome
    requests-000007.csv.gz    a part: lines before these, packed; the lowest number is the oldest

By name these files are in the order of their lines, so the lab reads the folder as one trace. There are no prompts in
them and no names: a key is a keyed digest. Requests whose answer has no size or cost are left out; a replay could make
nothing of them.

    Invariant: Σ sizes of all files ≤ room, at every moment.

requests.csv becomes a part at s = room/8. While it is packed, its n ≤ s bytes are there twice, and packing makes
nothing longer than n + n/512 + 1024. So before that the oldest parts go, until Σ parts + n + s + s/512 + 1024 ≤ room:
then there is room for the packing, and s behind it for the next requests.csv.

Nothing here may leave a folder that the lab cannot read, whenever the process dies. A file gets its name when its first
line is whole (requests.csv) or its last (a part). A part that is there both packed and plain is read once. Lines are
written whole, but a kill can still cut the last one off, where a write crosses a page: it then has too few fields, the
lab leaves it out, and the next start takes it off. `outcome` stands last, as a cut inside the last field cannot be seen.
Rejected: sync after each write, since only a power cut would make a difference, and that may cost a tail.

One process writes to a folder.
"""

from __future__ import annotations

import gzip
import math
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from knapcache.errors import InvalidInput
from knapcache.serve.observe.events import Event
from knapcache.threads import MAX_WAITING, BatchWorker

HEADER = b"time,key,size,cost,usd,seconds,outcome\n"
UNKNOWN = "unknown"
"""Dollars that nobody knows. An empty field would keep the lab from reading the file the fast way."""
ANSWERED = frozenset({"hit", "miss", "coalesced", "stale"})
PARTS = 8
LEAST_ROOM = 1 << 16
CURRENT = "requests.csv"
PART = re.compile(r"requests-(\d{6,})\.csv(\.gz)?")
LEVEL = 3
"""Packs as fast as 1, and a tenth larger than 6 in less than half of its time."""


class RequestLog:
    """Lines into a folder, within its room. `consume` is for the event loop, all else happens in a thread."""

    def __init__(self, folder: str | os.PathLike[str], room: int, *, max_waiting: int = MAX_WAITING) -> None:
        if room < LEAST_ROOM:
            raise InvalidInput(f"the room of the request log must be at least {LEAST_ROOM} bytes, not {room}")
        self.path = Path(folder)
        """The folder: what to give to the lab."""
        self.current = self.path / CURRENT
        self._room, self._step = room, room // PARTS
        self._descriptor = -1
        self._size = 0
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._tidy()
            self._open()
        except OSError as error:
            raise InvalidInput(f"cannot write the request log to {folder}: {error.strerror}") from None
        self._behind: BatchWorker[Event] = BatchWorker("request-log", self._write, max_waiting)

    def consume(self, events: Sequence[Event]) -> None:
        """Take a batch; it is written soon."""
        self._behind.offer(events)

    @property
    def lost(self) -> int:
        """Requests that came too fast for the disk, or that it refused."""
        return self._behind.lost

    def close(self) -> None:
        """Write what waits, and let go."""
        if self._behind.close():
            self._let_go()

    # In the thread.

    def _write(self, events: Sequence[Event]) -> None:
        lines = list(lines_of(events))
        try:
            if self._descriptor < 0:
                self._open()
            while lines:
                fit, total = 0, self._size
                while fit < len(lines) and total + len(lines[fit]) <= self._step:
                    total += len(lines[fit])
                    fit += 1
                if fit:
                    self._append(b"".join(lines[:fit]))
                    del lines[:fit]
                if lines:
                    self._rotate()
        except OSError:  # full, gone, read-only: it may pass, and until then each batch tries anew
            self._behind.count_lost(len(lines))
            self._let_go()

    def _append(self, data: bytes) -> None:
        """All of it or nothing: what was written of it before an error is taken off again."""
        done = 0
        try:
            while done < len(data):
                done += os.write(self._descriptor, data[done:])
        except OSError:
            with suppress(OSError):  # then the next opening does it
                os.ftruncate(self._descriptor, self._size)
            raise
        self._size += done

    def _let_go(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        """Go on with the newest file, or begin one."""
        content = self.current.read_bytes() if self.current.exists() else b""
        self._size = content.rfind(b"\n") + 1
        if not self._size:
            self._begin()
            content, self._size = HEADER, len(HEADER)
        self._descriptor = os.open(self.current, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        os.ftruncate(self._descriptor, self._size)
        if not content.startswith(HEADER) or self._size > self._step:  # of other columns, or of a larger room
            self._rotate()
        self._make_room(self._step - self._size)

    def _begin(self) -> None:
        young = self.path / f".{CURRENT}.part"
        young.write_bytes(HEADER)
        young.chmod(0o600)
        young.replace(self.current)

    def _rotate(self) -> None:
        """What is written becomes a part, and the next file begins."""
        self._let_go()
        numbers = [number for number, _ in self._parts()]
        plain = self.path / f"requests-{max(numbers, default=0) + 1:06}.csv"
        self.current.rename(plain)
        self._pack(plain)
        self._begin()
        self._open()

    def _pack(self, plain: Path) -> None:
        size = max(plain.stat().st_size, self._step)
        self._make_room(size + size // 512 + 1024)
        if not plain.exists():  # it was itself the oldest, and too large
            return
        young = self.path / f".{plain.name}.gz.part"
        with plain.open("rb") as source, young.open("wb") as raw:
            young.chmod(0o600)
            with gzip.GzipFile("", "wb", LEVEL, raw, mtime=0) as packed:
                shutil.copyfileobj(source, packed, 1 << 16)
        young.replace(plain.with_name(plain.name + ".gz"))
        plain.unlink()

    def _make_room(self, wanted: int) -> None:
        """The oldest parts go until so many bytes are free."""
        parts = self._parts()
        used = sum(file.stat().st_size for file in self.path.iterdir())
        for _, part in parts:
            if used + wanted <= self._room:
                return
            used -= part.stat().st_size
            part.unlink()

    def _parts(self) -> list[tuple[int, Path]]:
        """Parts, the oldest first."""
        found = ((PART.fullmatch(file.name), file) for file in self.path.iterdir())
        return sorted((int(match[1]), file) for match, file in found if match)

    def _tidy(self) -> None:
        """After a kill, or with less room than before: halves go, plain parts are packed, the oldest give way."""
        for half in self.path.glob(".requests*.part"):
            half.unlink()
        packed = {file.name for _, file in self._parts()}
        for _, file in self._parts():
            if file.name + ".gz" in packed:  # whole, or it would not have its name
                file.unlink()
            elif file.suffix == ".csv":
                self._pack(file)


def lines_of(events: Iterable[Event]) -> Iterable[bytes]:
    """A line for each request that a replay can use."""
    for event in events:
        key, size, cost = event.key, event.size, event.cost
        if size > 0 and event.outcome in ANSWERED and key and math.isfinite(cost) and cost >= 0.0:
            usd = UNKNOWN if event.usd is None else event.usd
            line = f"{event.time:.3f},{key},{size},{cost},{usd},{event.upstream_seconds:.6g},{event.outcome}\n"
            yield line.encode()
