"""Text and tables on stdout that fit the terminal, files of JSON lines, and progress on stderr."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from knapcache.errors import InvalidInput

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

MAX_UNWRAPPED = 24
"""Columns whose longest cell exceeds this many characters hold prose and may wrap."""
UNLIMITED = 10 * MAX_UNWRAPPED
"""Width of a file or a pipe, in which prose need not wrap."""
NUMBER = re.compile(r"[-+−±$]*[0-9][0-9,.]*(e[+-]?[0-9]+)?( ?(%|[kMGT]?B|units|ms|s|min|h|d))?")
UNPRINTABLE = re.compile(r"[^\n\x20-\x7e]")
"""Characters that may be unprintable."""
Rows = Sequence[Mapping[str, Any]]


def output_width() -> int:
    """Return the columns of stdout: of the terminal, or $COLUMNS. A file or a pipe without it is not limited."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return max(40, shutil.get_terminal_size().columns)
    return UNLIMITED


def printable(text: str, keep: str = "") -> str:
    """Return a text with a space instead of each control character, which could change the terminal.

    Names of models and texts of requests come from callers. keep: control characters that stay.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() or c in keep else " " for c in text)


def printable_json(text: str) -> str:
    """Return JSON with all characters that could change the terminal escaped. It is the same value."""
    return text if text.isprintable() else UNPRINTABLE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1]


def print_text(*paragraphs: str) -> None:
    """Print sentences, wrapped to the width of the output."""
    for paragraph in map(printable, paragraphs):
        print(textwrap.fill(paragraph, output_width(), break_long_words=False, break_on_hyphens=False))


def print_table(rows: Rows, title: str | None = None) -> None:
    """Print rows as a table. Numbers are right-aligned and rounded to four digits, and never truncated.

    A table that is wider than the output is printed in parts, each with the first column.
    """
    width = output_width()
    names = list(dict.fromkeys(key for row in rows for key in row))
    cells = {name: [_format_cell(row.get(name)) for row in rows] for name in names}
    gap = next((gap for gap in (2, 1) if _needed(names, cells, gap) <= width), 2)
    for part in _parts(names, cells, width, gap):
        table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", pad_edge=False, padding=(0, gap - 1, 0, 0))
        title = None
        for name in part:
            is_number = all(NUMBER.fullmatch(text) for text in cells[name] if text)
            table.add_column(
                name.replace("_", "\n"),  # one word per line, so that a wide table fits a narrow terminal
                justify="right" if is_number else "left",
                no_wrap=not _wraps(name, cells),
                overflow="fold",
                vertical="top",
            )
        for k in range(len(rows)):
            table.add_row(*(cells[name][k] for name in part))
        console = Console(highlight=False, width=max(width, _needed(part, cells, gap)), markup=False)
        with console.capture() as text:
            console.print(table)
        # print(), because Rich would end the process when the reader of a pipe, such as `head`, closes it.
        print("\n".join(line.rstrip() for line in text.get().splitlines()))


def _parts(names: list[str], cells: Mapping[str, list[str]], width: int, gap: int) -> list[list[str]]:
    """Return the columns of each part of a table, so that each part fits the width if its columns can."""
    parts: list[list[str]] = [[]]
    for name in names:
        if len(parts[-1]) > 1 and _needed([*parts[-1], name], cells, gap) > width:
            parts.append(names[:1])
        parts[-1].append(name)
    return parts


def _needed(names: Sequence[str], cells: Mapping[str, list[str]], gap: int) -> int:
    """Return the width of a table of these columns, with this many columns between two and a margin of one."""
    return sum(_min_width(name, cells) + gap for name in names) - gap + 2


def _full_width(name: str, cells: Mapping[str, list[str]]) -> int:
    return max(len(text) for text in (*name.split("_"), *cells[name]))


def _wraps(name: str, cells: Mapping[str, list[str]]) -> bool:
    return _full_width(name, cells) > MAX_UNWRAPPED and any(" " in text for text in cells[name])


def _min_width(name: str, cells: Mapping[str, list[str]]) -> int:
    """Return the columns that a column needs: its longest cell, or MAX_UNWRAPPED if it holds prose."""
    return MAX_UNWRAPPED if _wraps(name, cells) else _full_width(name, cells)


def _format_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else printable(str(value), keep="\n")


@contextmanager
def progress_bar(*more: ProgressColumn) -> Iterator[Progress]:
    """Yield a progress bar that is shown on a terminal only. more: columns after the bar."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), *more, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield bar


def write_lines(
    content: Iterable[bytes], target: Path | None, convert: Callable[[Path, Path], None] | None = None
) -> int:
    """Write lines to a file, which gets its name when it is complete, or to standard output. Return how many.

    convert   writes the second file from the first, which has the lines; None: the file has the lines
    """
    if target is None:
        if sys.stdout.isatty():
            content = (printable_json(line.decode()).encode() for line in content)
        return _copy(content, sys.stdout.buffer)
    try:
        with tempfile.TemporaryDirectory(dir=target.resolve().parent) as folder:
            part = Path(folder, "lines.jsonl")
            with part.open("wb") as file:
                written = _copy(content, file)
            if convert is not None:
                convert(part, part := Path(folder, "converted"))
            part.chmod(0o600)  # requests and answers in plain text
            os.replace(part, target)
    except OSError as error:
        raise InvalidInput(f"cannot write to {target}: {error.strerror}") from None
    return written


def _copy(content: Iterable[bytes], file: IO[bytes]) -> int:
    written = 0
    for line in content:
        file.write(line)
        written += 1
    file.flush()
    return written
