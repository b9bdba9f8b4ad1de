"""Tables on stdout, and the option type for output directories."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

MAX_UNWRAPPED = 24
"""Columns whose longest cell exceeds this many characters hold prose and may wrap."""


def print_table(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> None:
    """Print rows as a table. Numbers are right-aligned and rounded to four digits, and never truncated."""
    console = Console(highlight=False)
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
    columns = list(dict.fromkeys(key for row in rows for key in row))
    min_width = 0
    for name in columns:
        cells = [_format_cell(row.get(name)) for row in rows]
        is_number = any(isinstance(row.get(name), int | float) for row in rows)
        header = name.replace("_", "\n")  # one word per line, so that a wide table fits a narrow terminal
        width = max(len(text) for text in (*header.split("\n"), *cells))
        wraps = width > MAX_UNWRAPPED
        min_width += (MAX_UNWRAPPED if wraps else width) + 2
        table.add_column(header, justify="right" if is_number else "left", no_wrap=not wraps, vertical="top")
    for row in rows:
        table.add_row(*(_format_cell(row.get(name)) for name in columns))
    # A file or pipe has no width, so nothing wraps there. On a narrow terminal a long line beats a truncated number.
    console.width = max(console.width, min_width) if console.is_terminal else 10 * MAX_UNWRAPPED
    with console.capture() as text:
        console.print(table)
    # print(), because Rich would end the process when the reader of a pipe, such as `head`, closes it.
    print("\n".join(line.rstrip() for line in text.get().splitlines()))


def _format_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def directory(text: str) -> Path:
    """Parse the option for an output directory."""
    if not text:
        raise argparse.ArgumentTypeError("directory name must not be empty")
    return Path(text)
