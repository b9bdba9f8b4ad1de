"""The request log: one CSV line for each request, for `knapcache plan` and `knapcache replay`.

    requests.csv              the newest lines: time,key,size,cost,usd,seconds,outcome
    requests-000007.csv.gz    a part: older lines, compressed; the lowest number is the oldest

Sorted by name, the files are in the order of their lines, so the lab reads the folder as one trace. They contain no
prompts and no names: a key is a keyed digest. Requests whose answer has no size or no cost are left out, because a
replay cannot use them.

    Invariant: Σ sizes of all files ≤ capacity, at every moment.

requests.csv becomes a part at s = capacity/8. While it is compressed, its n ≤ s bytes exist twice, and gzip output is
never longer than n + n/512 + 1024. So first the oldest parts are deleted, until Σ parts + n + s + s/512 + 1024 ≤
capacity. That leaves space for the compressed part, and for s bytes of the next requests.csv.

The lab can read the folder whenever the process dies. A file gets its final name when its header is complete
(requests.csv) or its last line is (a part). A part that exists compressed and plain is read once. Lines are written
whole, but a kill can still truncate the last one where a write crosses a page. It then has too few fields, the lab
skips it, and the next start removes it. `outcome` is the last field, because truncation inside the last field is not
detectable. Rejected: fsync after each write. Only a power cut would make a difference, and it may cost the last lines.

Only one process writes to a folder.
"""

from __future__ import annotations

import errno
import functools
import gzip
import hashlib
import math
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from knapcache.errors import InvalidInput
from knapcache.proxy.events.events import Event
from knapcache.proxy.settings.secrets import append_all
from knapcache.threads import MAX_WAITING, BatchWorker

HEADER = b"time,key,size,cost,usd,seconds,outcome\n"
UNKNOWN = "unknown"
"""Dollars of an unknown price. With an empty field the lab would have to read the file the slow way."""
ANSWERED = frozenset({"hit", "similar", "miss", "coalesced", "stale"})
PARTS = 8
MIN_CAPACITY = 1 << 16
CURRENT = "requests.csv"
PART = re.compile(r"requests-(\d{6,})\.csv(\.gz)?")
LINGER = 0.1
"""Seconds that lines wait for others, so that they are written together."""
MAX_ENDS = 4096
"""Lines whose end is remembered."""
LEVEL = 3
"""gzip level: as fast as 1; a tenth larger than 6 in less than half of its time."""


class RequestLog:
    """Writes lines to a folder of bounded size. `consume` never blocks; a thread does the work."""

    header = HEADER
    title = "request log"
    """In messages."""

    def __init__(self, folder: str | os.PathLike[str], capacity: int, *, digest_key: bytes | None = None) -> None:
        """`digest_key`: keys are written as digests under it, so who knows the keys' secret cannot test guesses."""
        if capacity < MIN_CAPACITY:
            raise InvalidInput(f"the request log must have at least {MIN_CAPACITY} bytes, not {capacity}")
        self.path = Path(folder)
        """The folder, as the lab reads it."""
        self.current = self.path / CURRENT
        self._digest_key = digest_key
        self._capacity, self._part_size = capacity, capacity // PARTS
        self._descriptor = -1
        self._size = 0
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._recover()
            self._open()
        except OSError as error:
            raise InvalidInput(f"cannot write the {self.title} to {folder}: {error.strerror}") from None
        self._worker: BatchWorker[bytes] = BatchWorker("request-log", self._write, MAX_WAITING, LINGER)

    def consume(self, events: Sequence[Event]) -> None:
        """Format a batch, and queue it for the thread.

        Not in the thread: while it formats a thousand lines, it would keep the interpreter's lock for 5 ms at a time.
        """
        self._worker.offer(list(self._lines(events)))

    def _lines(self, events: Sequence[Event]) -> Iterable[bytes]:
        return format_lines(events, self._digest_key)

    @property
    def dropped(self) -> int:
        """Requests that were not written: the disk was too slow, or failed."""
        return self._worker.lost

    def close(self) -> None:
        if self._worker.close():
            self._close_file()

    # In the thread.

    def _write(self, batch: Sequence[bytes]) -> None:
        lines = list(batch)
        try:
            if self._descriptor < 0:
                self._open()
            while lines:
                fit, total = 0, self._size
                while fit < len(lines) and total + len(lines[fit]) <= self._part_size:
                    total += len(lines[fit])
                    fit += 1
                if fit:
                    append_all(self._descriptor, b"".join(lines[:fit]), self._size)
                    self._size = total
                    del lines[:fit]
                if lines:
                    self._rotate()
        except OSError:  # full, gone or read-only: every batch tries again
            self._worker.count_lost(len(lines))
            self._close_file()

    def _close_file(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        """Continue the newest file, or create one."""
        if self.current.is_symlink():
            raise OSError(errno.ELOOP, f"{self.current} is a symbolic link, which is not followed")
        content = self.current.read_bytes() if self.current.exists() else b""
        self._size = content.rfind(b"\n") + 1
        if not self._size:
            self._create()
            content, self._size = self.header, len(self.header)
        self._descriptor = os.open(self.current, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        os.ftruncate(self._descriptor, self._size)
        if not content.startswith(self.header) or self._size > self._part_size:  # other columns, or a larger capacity
            self._rotate()
        self._free(self._part_size - self._size)

    def _create(self) -> None:
        incomplete = self.path / f".{CURRENT}.part"
        incomplete.write_bytes(self.header)
        incomplete.chmod(0o600)
        incomplete.replace(self.current)

    def _rotate(self) -> None:
        """Make requests.csv a part and start a new one."""
        self._close_file()
        numbers = [number for number, _ in self._parts()]
        plain = self.path / f"requests-{max(numbers, default=0) + 1:06}.csv"
        self.current.rename(plain)
        self._compress(plain)
        self._create()
        self._open()

    def _compress(self, plain: Path) -> None:
        size = max(plain.stat().st_size, self._part_size)
        self._free(size + size // 512 + 1024)
        if not plain.exists():  # it was itself the oldest part, and too large
            return
        incomplete = self.path / f".{plain.name}.gz.part"
        with plain.open("rb") as source, incomplete.open("wb") as raw:
            incomplete.chmod(0o600)
            with gzip.GzipFile("", "wb", LEVEL, raw, mtime=0) as compressed:
                shutil.copyfileobj(source, compressed, 1 << 16)
        incomplete.replace(plain.with_name(plain.name + ".gz"))
        plain.unlink()

    def _free(self, wanted: int) -> None:
        """Delete the oldest parts until this many bytes are free."""
        parts = self._parts()
        used = sum(file.stat().st_size for file in self.path.iterdir())
        for _, part in parts:
            if used + wanted <= self._capacity:
                return
            used -= part.stat().st_size
            part.unlink()

    def _parts(self) -> list[tuple[int, Path]]:
        """Return numbers and paths of the parts, oldest first."""
        found = ((PART.fullmatch(file.name), file) for file in self.path.iterdir())
        return sorted((int(match[1]), file) for match, file in found if match)

    def _recover(self) -> None:
        """After a kill: delete incomplete files, and compress parts that are still plain."""
        for incomplete in self.path.glob(".requests*.part"):
            incomplete.unlink()
        names = {file.name for _, file in self._parts()}
        for _, file in self._parts():
            if file.name + ".gz" in names:  # it is complete, otherwise it would not have this name
                file.unlink()
            elif file.suffix == ".csv":
                self._compress(file)


def format_lines(events: Iterable[Event], digest_key: bytes | None = None) -> Iterable[bytes]:
    """Yield a line for each request that a replay can use. With `digest_key`, keys are replaced by their digests."""
    for event in events:
        values = event.key, event.size, event.cost, event.usd, event.upstream_seconds, event.outcome
        if end := format_end(*values, digest_key):
            yield f"{event.time:.3f}{end}".encode()


@functools.lru_cache(MAX_ENDS)  # hits repeat them
def format_end(
    key: str, size: int, cost: float, usd: float | None, seconds: float, outcome: str, digest_key: bytes | None
) -> str:
    """Return a line after its first field; empty if a replay cannot use the request."""
    if not (size > 0 and outcome in ANSWERED and key and math.isfinite(cost) and cost >= 0.0):
        return ""
    if digest_key is not None:
        key = hashlib.blake2b(key.encode(), digest_size=32, key=digest_key).hexdigest()
    return f",{key},{size},{cost},{UNKNOWN if usd is None else usd},{seconds:.6g},{outcome}\n"
