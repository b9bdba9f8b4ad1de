"""What an experiment is.

An experiment has settings (a frozen dataclass whose fields become options of the command), and a function from
settings to an Outcome: rows of numbers and a figure. Everything else, reading options, running repeats on all
cores, writing files whole or not at all, printing the table, is the same for all and lives here and in
cells.py.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from knapcache.errors import InvalidInput
from knapcache.sim.executors import Jobs
from knapcache.sim.figures import as_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

S = TypeVar("S", bound="ExperimentSettings")


def option(default: Any, text: str) -> Any:
    """A setting with a default and a help text."""
    return dataclasses.field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class ExperimentSettings:
    """What every experiment lets one choose."""

    repeats: int = option(10, "independent repetitions, each with queries and requests of its own")
    seed: int = option(0, "seed of all randomness; the same seed gives the same numbers")

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise InvalidInput(f"repeats must be at least 1, not {self.repeats}")
        if self.seed < 0:
            raise InvalidInput(f"seed must not be negative, not {self.seed}")


@dataclass(frozen=True)
class ExperimentResult:
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
    run: Callable[[S, Jobs], ExperimentResult]
    """Settings and where to run → outcome."""
    quick: Mapping[str, Any]
    """Settings of a run of seconds, for --quick."""

    def choose(self, given: Mapping[str, Any], *, quick: bool) -> S:
        """The settings: defaults, then --quick, then what the user gave."""
        return self.settings(**{**(self.quick if quick else {}), **given})


def as_files(name: str, settings: ExperimentSettings, outcome: ExperimentResult) -> dict[str, bytes]:
    """NAME.json and NAME.png."""
    record = {
        "name": name,
        "settings": {**dataclasses.asdict(settings), "knapcache": version("knapcache")},
        "rows": outcome.rows,
    }
    text = json.dumps(record, indent=1, allow_nan=False) + "\n"
    return {f"{name}.json": text.encode(), f"{name}.png": as_png(outcome.figure)}
