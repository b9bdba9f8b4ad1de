"""The spool: a directory in which readers leave entries and hit counts for the owner, one file each.

A file is written under a temporary name and renamed when it is complete, so the owner never sees a partial one. It is
sealed like a row, so the owner never accepts a damaged one. Files count against the size limit: a writer takes the
directory's lock, adds up the files, and is refused when there is no space. Nothing here is guaranteed to survive: a
lost answer is requested again. Files with other names than ours are neither read nor removed.

Rejected: a table in the same database. Two writing processes would wait for each other's locks, and none of them could
bound the length of the log.
"""

from __future__ import annotations

import fcntl
import os
import re
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
from knapcache.store.validation import validate_key

MAX_COUNTED_KEYS = 4096
_MAX_COUNT = 2**32 - 1
_COUNT = struct.Struct("<32sI")
_SEAL_BYTES = 16
_BLOCK = 4096  # files take whole blocks
_NAME = re.compile(r"[0-9a-f]{16}(\.entry|\.counts)?")  # without an extension: not complete


class Spool:
    """The directory beside `path`, with at most `size_limit` bytes of files."""

    def __init__(self, path: Path, size_limit: int, sealer: Sealer) -> None:
        self._folder = Path(f"{path}.spool")
        self._sealer = sealer
        self.size_limit = size_limit
        self.max_counted_keys = min(MAX_COUNTED_KEYS, size_limit // 8 // _COUNT.size)
        """Most keys that one `put_counts` keeps: their file takes at most 1/8 of the spool."""

    def put_entry(self, entry: Entry) -> None:
        """Write an entry; StoreError when the spool is full."""
        row = self._sealer.row(entry)
        _id, seal, key, size, cost, seconds, created, expires, tenant, model, meta, request, payload = row
        numbers = [size, cost, seconds, created, expires]
        strings = [seal, key, tenant, model, meta, request, payload]
        self._write(b"".join((orjson.dumps([numbers, [len(string) for string in strings]]), b"\n", *strings)), "entry")

    def take_entries(self) -> Iterator[Entry]:
        """Remove the files of entries, and yield their content. Damaged ones are dropped; a failing disk ends it."""
        try:
            if not self._folder.is_dir():
                return
            with self._locked():  # a process that died while writing left a file without an extension
                for file in self._files(""):
                    file.unlink()
            for file in self._files(".entry"):
                entry = self._decode(self._read(file))
                file.unlink()
                if entry is not None:
                    yield entry
        except OSError:
            return

    def put_counts(self, counts: Mapping[bytes, int]) -> None:
        """Write the highest counts; StoreError when the spool is full."""
        pairs = Counter(counts).most_common(self.max_counted_keys)
        content = b"".join(_COUNT.pack(validate_key(key), min(count, _MAX_COUNT)) for key, count in pairs)
        self._write(b"".join(self._sealer.protect(b"counts", content)), "counts")

    def take_counts(self) -> Counter[bytes]:
        """Remove the files of counts, and return their sum. Damaged ones are dropped; a failing disk ends it."""
        total: Counter[bytes] = Counter()
        with suppress(OSError):
            for file in self._files(".counts"):
                content = self._read(file)
                file.unlink()
                counts = self._sealer.reveal(b"counts", content[:_SEAL_BYTES], content[_SEAL_BYTES:])
                if counts is not None and len(counts) % _COUNT.size == 0:
                    for key, count in _COUNT.iter_unpack(counts):
                        total[key] += count
        return total

    def size(self) -> int:
        """Return the bytes that the spool takes now."""
        total = 0
        for file in self._files():
            with suppress(FileNotFoundError):  # the owner removes files without the lock
                total += _whole_blocks(file.stat().st_size)
        return total

    def _write(self, content: bytes, extension: str) -> None:
        try:
            with self._locked():
                used = self.size()
                if used + _whole_blocks(len(content)) > self.size_limit:
                    raise StoreError(f"the spool is full: {used} of {self.size_limit} bytes")
                name = self._folder / secrets.token_hex(8)
                with open(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                    file.write(content)
                os.rename(name, f"{name}.{extension}")
        except OSError as error:
            raise StoreError(f"the spool cannot be written: {error}") from error

    def _decode(self, content: bytes) -> Entry | None:
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

    def _files(self, extension: str | None = None) -> list[Path]:
        """Return our files with this extension; None: all of them."""
        found = []
        for file in self._folder.glob("*"):
            match = _NAME.fullmatch(file.name)
            if match and extension in (None, match[1] or ""):
                found.append(file)
        return sorted(found)

    def _read(self, file: Path) -> bytes:
        """Return the content of a file, no more than the spool may hold. A link or a pipe is not followed."""
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as opened:
            return opened.read(self.size_limit)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self._folder.is_symlink():
            raise StoreError(f"{self._folder} is a symbolic link; the spool must be a directory")
        self._folder.mkdir(mode=0o700, exist_ok=True)
        # flock belongs to the open file, not to the process: it also excludes threads of one process.
        flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(self._folder / "lock", flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _whole_blocks(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
