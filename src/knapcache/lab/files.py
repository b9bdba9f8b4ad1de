"""Output files that are checked for write access before the work starts, and written atomically after it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from knapcache.errors import InvalidInput


class OutputFile:
    """A file to write later. Raises InvalidInput at construction if it cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.target = path.resolve()  # so that a symbolic link is kept
        # A device or a pipe is written in place, not replaced.
        self.special = self.target.exists() and not self.target.is_file() and not self.target.is_dir()
        try:
            if self.target.is_dir():
                raise IsADirectoryError(0, "it is a directory")
            if not self.special:
                with tempfile.TemporaryFile(dir=self.target.parent):
                    pass
        except OSError as error:
            raise InvalidInput(f"cannot write to {path}: {error.strerror}") from None

    def write(self, content: str | bytes) -> None:
        """Write a text as UTF-8, or bytes."""
        data = content.encode() if isinstance(content, str) else content
        try:
            if self.special:
                self.target.write_bytes(data)
                return
            with tempfile.TemporaryDirectory(dir=self.target.parent) as folder:
                part = Path(folder, "part")
                part.write_bytes(data)
                os.replace(part, self.target)
        except OSError as error:
            raise InvalidInput(f"cannot write to {self.path}: {error.strerror}") from None


class OutputDirectory:
    """A directory for output files, created on the first write. Raises InvalidInput if it cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        existing = path
        try:
            while not existing.exists():
                existing = existing.parent
            if not existing.is_dir():
                raise InvalidInput(f"cannot write to {path}: {existing} is not a directory")
            tempfile.TemporaryFile(dir=existing).close()
        except OSError as error:
            raise InvalidInput(f"cannot write to {path}: {error.strerror}") from None

    def write(self, files: Mapping[str, bytes]) -> list[Path]:
        """Write all files, or none if an error occurs before the first is in place; returns their paths."""
        paths = [self.path / name for name in files]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.path) as folder:
                parts = [Path(folder, str(k)) for k in range(len(files))]
                for part, content in zip(parts, files.values(), strict=True):
                    part.write_bytes(content)
                for part, path in zip(parts, paths, strict=True):
                    os.replace(part, path)
        except OSError as error:
            raise InvalidInput(f"cannot write to {self.path}: {error.strerror}") from None
        return paths
