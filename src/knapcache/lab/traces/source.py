"""Trace files: decompression while reading, progress reports, and errors of one line.

Compression is detected by the first bytes, not by the name: gzip, zstd (with the `lab` extra), or none.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from knapcache.errors import InvalidInput, MissingExtra, install_command
from knapcache.lab.traces.base import Progress

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
MAX_LINE = 64 << 20
"""Bytes of a line. A small compressed file can have one of any length."""
REPORT = 1 << 20
"""Bytes of the file between two progress reports."""


class ProgressReader(io.RawIOBase):
    """The raw bytes of a file, with progress reports."""

    def __init__(self, path: Path, progress: Progress | None) -> None:
        self.file: IO[bytes] = path.open("rb", buffering=0)
        self.total = path.stat().st_size
        self.done = self.reported = 0
        self.progress = progress

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self.file.readinto(buffer)  # type: ignore[attr-defined]
        self.done += count
        if self.progress and (self.done - self.reported >= REPORT or not count):
            self.reported = self.done
            self.progress(self.done, max(self.total, self.done))
        return count

    def close(self) -> None:
        self.file.close()
        super().close()


class ZstdReader(io.RawIOBase):
    """A decompressed zstd file. (zstandard's own stream reader does not detect a truncated file.)"""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        try:
            import zstandard
        except ImportError:
            raise MissingExtra(
                f"{path} is compressed with zstd: decompress it, or run {install_command('lab')}"
            ) from None
        self.path, self.file = path, file
        self.new = zstandard.ZstdDecompressor().decompressobj
        self.error: type[Exception] = zstandard.ZstdError
        self.frame: Any = self.new()
        self.ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Decompress until there is output, or the file ends at the end of a frame."""
        while not self.ready:
            # A file may contain several frames if it was appended to or compressed in parallel.
            packed = self.frame.unused_data if self.frame.eof else b""
            packed = packed or self.file.read(1 << 16)
            if not packed:
                if self.frame.eof:
                    return 0
                raise EOFError
            if self.frame.eof:
                self.frame = self.new()
            try:
                self.ready = memoryview(self.frame.decompress(packed))
            except self.error as error:
                raise InvalidInput(f"{self.path} is damaged: {error}") from None
        count = min(len(buffer), len(self.ready))
        buffer[:count], self.ready = self.ready[:count], self.ready[count:]
        return count


class LimitedLines(io.RawIOBase):
    """The bytes of a text file. A line of more than MAX_LINE bytes raises InvalidInput before it is in memory."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self.file, self.length = path, file, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.file.read(min(len(buffer), 1 << 18))
        newline = data.rfind(b"\n")
        self.length = self.length + len(data) if newline < 0 else len(data) - newline - 1
        if self.length > MAX_LINE:
            raise InvalidInput(f"{self.path} has a line of more than {MAX_LINE >> 20} MiB")
        buffer[: len(data)] = data
        return len(data)


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Convert read errors to InvalidInput with one line that names the file."""
    try:
        yield
    except EOFError:
        raise InvalidInput(f"{path} is truncated: its compressed data ends too early") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InvalidInput(f"{path} is damaged: {error}") from None
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror or error}") from None


@dataclass(frozen=True)
class TraceSource:
    """A trace file to read."""

    path: Path
    progress: Progress | None = None

    @contextmanager
    def open(self, *, lines: bool = True) -> Iterator[IO[bytes]]:
        """Open the file for reading its decompressed content. lines: it has lines, which must not be too long."""
        path = self.path
        with file_errors(path), ProgressReader(path, self.progress) as raw, io.BufferedReader(raw, 1 << 18) as file:
            start = file.peek(4)[:4]
            if start.startswith(GZIP):
                content = cast(IO[bytes], gzip.GzipFile(fileobj=file))
            elif start == ZSTD:
                content = io.BufferedReader(ZstdReader(path, file), 1 << 18)
            else:
                content = file
            with content:
                yield io.BufferedReader(LimitedLines(path, content), 1 << 18) if lines else content
