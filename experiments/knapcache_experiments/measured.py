"""Workloads whose misses cost what calls of a real model took.

A table holds many timed calls for each of its prompts: tokens of the prompt, tokens of the answer, seconds. measured/
has the committed tables; experiments/measure creates more. For a prompt q with calls k = 1 … n

    S(q) = ⌈(prompt tokens + mean answer tokens)/unit⌉
    C(q) = seconds of a call k drawn at random        C*(q) = mean seconds

The paper's S(q) is one number per query, so it is the mean here, although answers to the same prompt differ. The paper
does not name its unit; here it is an option.
"""

from __future__ import annotations

import csv
import functools
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from knapcache.errors import InvalidInput
from knapcache.lab.synthetic import Queries, popularity
from knapcache.lab.trace import Trace

TABLES = Path(__file__).parent / "measured"
COLUMNS = ("prompt", "sample", "prompt_tokens", "answer_tokens", "seconds")


def traces_directory() -> Path:
    """Return the directory of public traces: $KNAPCACHE_TRACES, or ../shared/data relative to the working directory."""
    return Path(os.environ.get("KNAPCACHE_TRACES") or Path("..", "shared", "data"))


@dataclass(frozen=True, eq=False)
class TimedCalls:
    """A table of timed calls, grouped by prompt."""

    about: dict[str, str]
    """The comments at the top: model, hardware, date, method, …"""
    tokens: npt.NDArray[np.float64]
    """Prompt tokens plus mean answer tokens, per prompt."""
    seconds: tuple[npt.NDArray[np.float64], ...]
    """Seconds of the calls, per prompt."""


def table_names() -> list[str]:
    """Return the names of the included tables."""
    return sorted(path.stem for path in TABLES.glob("*.csv"))


@functools.cache
def read(table: str) -> TimedCalls:
    """Read an included table by name, or a CSV file of the same form."""
    path = TABLES / f"{table}.csv" if table in table_names() else Path(table)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise InvalidInput(
            f"calls must be one of {', '.join(table_names())} or a CSV file of timed calls, not {table}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read {table}: {error}") from None
    comments = [line[1:].partition(":") for line in lines if line.startswith("#")]
    body = csv.DictReader(line for line in lines if not line.startswith("#"))
    if not set(COLUMNS) <= set(body.fieldnames or ()):
        raise InvalidInput(f"{table} must have the columns {', '.join(COLUMNS)}")
    calls: dict[str, list[tuple[float, float, float]]] = {}
    for number, line in enumerate(body, 1):
        try:
            prompt, answer, seconds = (float(line[name]) for name in COLUMNS[2:])
        except (TypeError, ValueError):
            raise InvalidInput(f"{table}, call {number}: tokens and seconds must be numbers") from None
        if not (0 < prompt < np.inf and 0 < answer < np.inf and 0 < seconds < np.inf):
            raise InvalidInput(f"{table}, call {number}: tokens and seconds must be above 0 and finite")
        calls.setdefault(line["prompt"], []).append((prompt, answer, seconds))
    if not calls:
        raise InvalidInput(f"{table} has no calls")
    numbers = [np.array(rows) for rows in calls.values()]
    return TimedCalls(
        {name.strip(): text.strip() for name, _, text in comments},
        np.array([x[:, 0].mean() + x[:, 1].mean() for x in numbers]),
        tuple(x[:, 2] for x in numbers),
    )


@dataclass(frozen=True)
class MeasuredWorkload:
    """Random requests for the prompts of a table."""

    table: str
    queries: int
    rounds: int
    arrivals: str
    unit: int
    one_hits: float = 0.0

    def __post_init__(self) -> None:
        for name in ("queries", "rounds", "unit"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} must be at least 1, not {getattr(self, name)}")
        known = len(read(self.table).tokens)
        if self.queries > known:
            raise InvalidInput(f"queries must be at most the {known} prompts of {self.table}, not {self.queries}")
        popularity(self.arrivals, 1)  # raises InvalidInput on a bad distribution

    @property
    def phases(self) -> list[int]:
        """Return one phase: popularity never changes."""
        return [0]

    def draw(self, rng: np.random.Generator) -> tuple[Queries, Trace]:
        """Draw prompts, their popularity and the requests."""
        calls = read(self.table)
        picked = rng.choice(len(calls.tokens), self.queries, replace=False)
        sizes = np.maximum(1, np.ceil(calls.tokens[picked] / self.unit)).astype(np.int64)
        means = np.array([calls.seconds[p].mean() for p in picked])
        probabilities = rng.permutation(popularity(self.arrivals, self.queries))
        keys = rng.choice(self.queries, self.rounds, p=probabilities)
        costs = np.empty(self.rounds)
        for q, p in enumerate(picked):
            requests = np.flatnonzero(keys == q)
            costs[requests] = rng.choice(calls.seconds[p], len(requests))
        return Queries(sizes, means, probabilities[None, :], None), Trace(keys, sizes[keys], costs, self.queries)
