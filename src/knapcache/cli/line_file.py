"""Lines of JSON as a file or on standard output."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

from knapcache.cli.output import printable_json
from knapcache.errors import InvalidInput


def write_lines(
    content: Iterable[bytes], target: Path | None, convert: Callable[[Path, Path], None] | None = None
) -> int:
    """Write lines to a file, which gets its name when it is complete, or to standard output. Return how many.

    convert   writes the second file from the first, which has the lines; None: the file has the lines
    """
    if target is None:
        if sys.stdout.isatty():
            content = (printable_json(line.decode()).encode() for line in content)
        return copy(content, sys.stdout.buffer)
    try:
        with tempfile.TemporaryDirectory(dir=target.resolve().parent) as folder:
            part = Path(folder, "lines.jsonl")
            with part.open("wb") as file:
                written = copy(content, file)
            if convert is not None:
                convert(part, part := Path(folder, "converted"))
            part.chmod(0o600)  # requests and answers in plain text
            os.replace(part, target)
    except OSError as error:
        raise InvalidInput(f"cannot write to {target}: {error.strerror}") from None
    return written


def copy(content: Iterable[bytes], file: IO[bytes]) -> int:
    """Write lines to an open file. Return how many."""
    written = 0
    for line in content:
        file.write(line)
        written += 1
    file.flush()
    return written
