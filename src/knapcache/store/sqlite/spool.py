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
from knapcache.store.base import Entry, validate_key
from knapcache.store.sqlite.rows import Sealer

_BLOCK = 4096  # files take whole blocks
_COUNT = struct.Struct("<32sI")
_MAX_TIMES = 2**32 - 1
SEAL = 16
MAX_COUNTED_KEYS = 4096


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
    def max_counted_keys(self) -> int:
        """Keys that one `put_counts` keeps: their file takes at most 1/8 of the spool."""
        return min(MAX_COUNTED_KEYS, self._room // 8 // _COUNT.size)

    def put_counts(self, counts: Mapping[bytes, int]) -> None:
        """Write the highest counts; StoreError when the spool is full."""
        pairs = Counter(counts).most_common(self.max_counted_keys)
        content = b"".join(_COUNT.pack(validate_key(key), min(times, _MAX_TIMES)) for key, times in pairs)
        self._write(self._sealer.seal(b"counts", content) + content, "counts")

    def take_counts(self) -> Counter[bytes]:
        """Remove the files of counts, and return their sum. Damaged ones are dropped."""
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
