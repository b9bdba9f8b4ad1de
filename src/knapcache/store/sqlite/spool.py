"""How processes that do not own a store hand answers to the one that does: a directory, a file an answer.

Beside them, files of another ending say how often answers were asked for: pairs of key and count, sealed as well.

A file is written under a name of its own and renamed when it is whole, so the owner never sees half of one; it is
sealed like a row, so the owner never believes a damaged one. Files in it count against the budget: whoever hands over
takes the directory's lock, adds up what lies there, and is refused when there is no room. Nothing here is promised to
survive: an answer that is lost on the way is asked for again.

Rejected: a table in the same database. Two writing processes would wait for each other's locks, and the log's length
would be in nobody's hands.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson

from knapcache.errors import StoreError
from knapcache.store.base import Entry
from knapcache.store.sqlite.rows import Sealer

_BLOCK = 4096  # files take whole blocks
_COUNT = struct.Struct("<32sI")
_MOST_TIMES = 2**32 - 1
SEAL = 16
MOST_COUNTED = 4096


class Spool:
    """The directory beside `path`, never larger than `room` bytes."""

    def __init__(self, path: Path, room: int, sealer: Sealer) -> None:
        self._folder = Path(f"{path}.spool")
        self._room = room
        self._sealer = sealer

    def put(self, entry: Entry) -> None:
        """Hand over, or StoreError."""
        row = self._sealer.row(entry)
        _id, seal, key, size, cost, seconds, created, expires, tenant, model, meta, request, payload = row
        numbers = [size, cost, seconds, created, expires]
        strings = [seal, key, tenant, model, meta, request, payload]
        self._write(b"".join((orjson.dumps([numbers, [len(string) for string in strings]]), b"\n", *strings)), "entry")

    @property
    def most_counted(self) -> int:
        """Keys that one `tell` can be about: an eighth of the room."""
        return min(MOST_COUNTED, self._room // 8 // _COUNT.size)

    def tell(self, counts: Mapping[bytes, int]) -> None:
        """Say how often answers were asked for, or StoreError."""
        pairs = list(counts.items())[: self.most_counted]
        content = b"".join(_COUNT.pack(key, min(times, _MOST_TIMES)) for key, times in pairs)
        self._write(self._sealer.seal(b"counts", content) + content, "counts")

    def told(self) -> Counter[bytes]:
        """What others have said, added up and taken out."""
        found: Counter[bytes] = Counter()
        try:
            for file in self._files("*.counts"):
                content = file.read_bytes()
                file.unlink()
                seal, counts = content[:SEAL], content[SEAL:]
                if self._sealer.seal(b"counts", counts) == seal and len(counts) % _COUNT.size == 0:
                    for key, times in _COUNT.iter_unpack(counts):
                        found[key] += times
        except OSError:
            pass
        return found

    def _write(self, content: bytes, ending: str) -> None:
        try:
            with self._locked():
                taken = self.size()
                if taken + _blocks(len(content)) > self._room:
                    raise StoreError(f"the spool is full: {taken} of {self._room} bytes")
                name = self._folder / secrets.token_hex(8)
                with open(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                    file.write(content)
                os.rename(name, f"{name}.{ending}")
        except OSError as error:
            raise StoreError(f"not handed over: {error}") from error

    def drain(self) -> Iterator[Entry]:
        """Take out every whole and sound entry. A disk that fails ends it early."""
        try:
            if not self._folder.is_dir():
                return
            with self._locked():  # whoever died while writing left a file without an ending
                for file in set(self._files("*")) - set(self._files("*.entry")) - set(self._files("*.counts")):
                    file.unlink()
            for file in self._files("*.entry"):
                entry = self._read(file.read_bytes())
                file.unlink()
                if entry is not None:
                    yield entry
        except OSError:
            return

    def size(self) -> int:
        """What the spool takes now."""
        taken = 0
        for file in self._files("*"):
            with suppress(FileNotFoundError):  # the owner takes them out without the lock
                taken += _blocks(file.stat().st_size)
        return taken

    def _read(self, content: bytes) -> Entry | None:
        try:
            line, _, rest = content.partition(b"\n")
            numbers, lengths = orjson.loads(line)
            strings = []
            for length in lengths:
                strings.append(rest[:length])
                rest = rest[length:]
            seal, key, *others = strings
            return self._sealer.entry((seal, key, *numbers, *others))
        except (ValueError, TypeError):
            return None

    def _files(self, pattern: str) -> list[Path]:
        return sorted(file for file in self._folder.glob(pattern) if file.name != "lock")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        # A lock of the open file, not of the process: threads of one process exclude each other, too.
        descriptor = os.open(self._folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _blocks(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
