"""The types of the rows of bench/reliability.py: a row is a function of a `Run` that returns a `Measured`."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPORT_SECONDS = 10.0


class Run:
    """One run of a row: its scale, an empty folder, the folder for results, and its progress."""

    def __init__(self, row: str, scale: float, folder: Path, out: Path | None = None) -> None:
        self.row, self.scale, self.folder, self.out = row, scale, folder, out
        self._start = self._reported = time.monotonic()

    def count(self, full: int, least: int = 1) -> int:
        """Return a count at this scale."""
        return max(least, round(full * self.scale))

    def new_folder(self, name: object) -> Path:
        folder = self.folder / str(name)
        folder.mkdir()
        return folder

    def progress(self, what: str, of: int) -> Callable[[int], None]:
        """Return a function that prints how much is done, every few seconds."""

        def report(done: int) -> None:
            now = time.monotonic()
            if now - self._reported > REPORT_SECONDS:
                self._reported = now
                print(
                    f"  {self.row}  {now - self._start:4.0f} s  {done:,} of {of:,} {what}", file=sys.stderr, flush=True
                )

        return report


@dataclass(frozen=True, kw_only=True)
class Measured:
    """How often, and what came out."""

    how_often: str
    measured: str
    counts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ReliabilityRow:
    """A line of the table."""

    name: str
    done: str
    """The fault or load that the row applies."""
    promised: str
    seconds: int
    """About how long it takes at full scale, on two cores."""
    run: Callable[[Run], Measured]


def in_loop(scenario: Callable[[Run], Coroutine[Any, Any, Measured]]) -> Callable[[Run], Measured]:
    return lambda run: asyncio.run(scenario(run))
