"""What commands have in common when they speak: tables, and where files go."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

PROSE = 24
"""Cells longer than this are prose, and may be folded."""


def print_table(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> None:
    """Print rows that share their keys; numbers to the right, rounded for reading, and never cut."""
    console = Console(highlight=False)
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
    columns = list(dict.fromkeys(key for row in rows for key in row))
    needed = 0
    for name in columns:
        cells = [_readable(row.get(name)) for row in rows]
        number = any(isinstance(row.get(name), int | float) for row in rows)
        # A name of several words stands on several lines, so that a wide table fits a narrow terminal; prose may fold.
        header = name.replace("_", "\n")
        width = max(len(text) for text in (*header.split("\n"), *cells))
        prose = width > PROSE
        needed += (PROSE if prose else width) + 2
        table.add_column(header, justify="right" if number else "left", no_wrap=not prose, vertical="top")
    for row in rows:
        table.add_row(*(_readable(row.get(name)) for name in columns))
    # A file or a pipe has no width: nothing is folded there. On a narrow terminal better a long line than a cut number.
    console.width = max(console.width, needed) if console.is_terminal else 10 * PROSE
    with console.capture() as text:
        console.print(table)
    # By print and not by Rich, which would end the program when a reader such as `head` has seen enough.
    print("\n".join(line.rstrip() for line in text.get().splitlines()))


def _readable(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def directory(text: str) -> Path:
    """Read the option for a directory."""
    if not text:
        raise argparse.ArgumentTypeError("a directory must have a name")
    return Path(text)
