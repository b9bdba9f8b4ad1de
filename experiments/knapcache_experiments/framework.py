"""What an experiment is.

An experiment has settings (a frozen dataclass whose fields become options of the command), and a function from
settings to an Outcome: rows of numbers and a figure. Everything else, reading options, running repeats on all
cores, writing files whole or not at all, printing the table, is the same for all and lives here and in
cells.py.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from knapcache.errors import InvalidInput

if TYPE_CHECKING:
    from matplotlib.figure import Figure

S = TypeVar("S", bound="Settings")


def option(default: Any, text: str) -> Any:
    """A setting with a default and a help text."""
    return dataclasses.field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every experiment lets one choose."""

    repeats: int = option(10, "independent repetitions, each with queries and requests of its own")
    seed: int = option(0, "seed of all randomness; the same seed gives the same numbers")

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise InvalidInput(f"repeats must be at least 1, not {self.repeats}")
        if self.seed < 0:
            raise InvalidInput(f"seed must not be negative, not {self.seed}")


@dataclass(frozen=True)
class Outcome:
    """Numbers and a picture."""

    rows: list[dict[str, Any]]
    figure: Figure


@dataclass(frozen=True)
class Experiment(Generic[S]):
    """A named experiment."""

    name: str
    summary: str
    """One line for the list; the module's docstring is the long text."""
    text: str
    settings: type[S]
    run: Callable[[S, int | None], Outcome]
    """Settings and number of processes → outcome."""
    quick: Mapping[str, Any]
    """Settings of a run of seconds, for --quick."""

    def choose(self, given: Mapping[str, Any], *, quick: bool) -> S:
        """The settings: defaults, then --quick, then what the user gave."""
        return self.settings(**{**(self.quick if quick else {}), **given})


class Results:
    """A directory to put results into: found writable before the work starts, written whole or not at all."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        there = directory
        while not there.exists():  # it is made when there is something to put into it
            there = there.parent
        if not there.is_dir():
            raise InvalidInput(f"cannot write to {directory}: {there} is not a directory")
        self._try(lambda: tempfile.TemporaryFile(dir=there).close())

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            raise InvalidInput(f"cannot write to {self.directory}: {error.strerror}") from None

    def write(self, name: str, settings: Settings, outcome: Outcome) -> tuple[Path, Path]:
        """NAME.json and NAME.png."""
        record = {
            "name": name,
            "settings": {**dataclasses.asdict(settings), "knapcache": version("knapcache")},
            "rows": outcome.rows,
        }
        self._try(lambda: self.directory.mkdir(parents=True, exist_ok=True))
        paths = self.directory / f"{name}.json", self.directory / f"{name}.png"
        with tempfile.TemporaryDirectory(dir=self.directory) as folder:
            parts = Path(folder, "json"), Path(folder, "png")
            parts[0].write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
            # Without the drawing program's version: equal numbers should give equal files.
            outcome.figure.savefig(parts[1], dpi=150, format="png", metadata={"Software": None})
            for part, path in zip(parts, paths, strict=True):
                os.replace(part, path)
        return paths
