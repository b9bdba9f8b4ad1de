"""Definition of an experiment.

An experiment consists of settings (a frozen dataclass whose fields become command-line options) and a function from
settings to an ExperimentResult: table rows and a figure. trials.py runs repeats in parallel; cli/experiment.py parses
options, prints the table and writes the files.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from knapcache.errors import InvalidInput
from knapcache.lab.executors import Jobs
from knapcache.lab.figures import as_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

S = TypeVar("S", bound="ExperimentSettings")


def option(default: Any, text: str) -> Any:
    """Declare a setting with a default and a help text."""
    return dataclasses.field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class ExperimentSettings:
    """Settings of every experiment."""

    repeats: int = option(10, "independent repeats, each with its own queries and requests")
    seed: int = option(0, "random seed; equal seeds give equal numbers")

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise InvalidInput(f"repeats must be at least 1, not {self.repeats}")
        if self.seed < 0:
            raise InvalidInput(f"seed must not be negative, not {self.seed}")


@dataclass(frozen=True)
class ExperimentResult:
    """Table rows and a figure."""

    rows: list[dict[str, Any]]
    figure: Figure


@dataclass(frozen=True)
class Experiment(Generic[S]):
    """A named experiment with its settings class and its function."""

    name: str
    summary: str
    """One line for the list of experiments."""
    text: str
    """Description in the help text: the docstring of the module."""
    settings: type[S]
    run: Callable[[S, Jobs], ExperimentResult]
    quick: Mapping[str, Any]
    """Settings that --quick changes, for a run of seconds."""

    def choose(self, options: Mapping[str, Any], *, quick: bool) -> S:
        """Return the settings: defaults, overridden by --quick, overridden by the given options."""
        return self.settings(**{**(self.quick if quick else {}), **options})


def as_files(name: str, settings: ExperimentSettings, result: ExperimentResult) -> dict[str, bytes]:
    """Return the contents of NAME.json, with a line for each row, and NAME.png."""
    given = json.dumps({**dataclasses.asdict(settings), "knapcache": version("knapcache")}, allow_nan=False)
    rows = ",\n".join(json.dumps(row, allow_nan=False) for row in result.rows)
    text = f'{{"name": {json.dumps(name)}, "settings": {given}, "rows": [\n{rows}\n]}}\n'
    return {f"{name}.json": text.encode(), f"{name}.png": as_png(result.figure)}
