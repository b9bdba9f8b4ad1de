"""Tables for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def print_table(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> None:
    """Print rows that share their keys; numbers to the right, rounded for reading."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200  # a file or a pipe has no width: do not fold what a script may read
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    for name in columns:
        number = any(isinstance(row.get(name), int | float) for row in rows)
        # Names of several words stand on several lines, so that a wide table fits a narrow terminal; prose may fold.
        prose = max(len(_readable(row.get(name))) for row in rows) > 24
        table.add_column(
            name.replace("_", "\n"), justify="right" if number else "left", no_wrap=not prose, vertical="top"
        )
    for row in rows:
        table.add_row(*(_readable(row.get(name)) for name in columns))
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
