"""Table 2 of the paper: total cost on 100 OpenAssistant prompts, latency as cost, a cache of 100, mean of 5
repeats.

The paper measured FastChat-T5-3B and says neither how prompts arrive nor in which unit a cache of 100 is
counted. Here 100 prompts are drawn from 350; the size of an entry is prompt plus mean answer in tokens (4
characters each), counted in units of `unit` tokens and rounded up. A miss draws the length of an answer that
was really sampled for that prompt, and takes

    seconds = L·(0.5 + 0.0158·answer tokens),   L lognormal(−0.04, 0.28)

a model of the latency of a 3B model; nothing here was timed. The prompts are read from oasst_prompts.jsonl.gz
in the directory named by KNAPCACHE_TRACES.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.sim.executors import Jobs
from knapcache.sim.figures import new_figure, style
from knapcache.sim.synthetic import Queries, popularity
from knapcache.sim.trace import Trace
from knapcache_experiments.cells import Cell, row, run_cells
from knapcache_experiments.framework import Experiment, Outcome, Settings, option
from knapcache_experiments.plots import curve

FILE = "oasst_prompts.jsonl.gz"
CHARACTERS_PER_TOKEN = 4
PER_CALL, PER_TOKEN = 0.5, 0.0158
LATENCY_SPREAD = (-0.04, 0.28)
# The baseline has the bound of its paper, γ = 1; the better baseline is also shown as careless as VSOCB is by default.
GAMMAS: dict[str, tuple[float | None, ...]] = {
    "berkeley": (1.0,),
    "berkeley-multi": (1.0, 0.0),
    **dict.fromkeys(("vsocb", "vsocb-apx"), (0.0,)),
    "vsocb-lazy": (0.3,),
}
POLICIES = (
    "berkeley",
    "adaptive",
    "vsocb",
    "vsocb-lazy",
    "vsocb-apx",
    "berkeley-multi",
    "gdsf-cost",
    "gdsf",
    "lfu",
    "lru",
    "static",
)


def traces_directory() -> Path:
    """Where traces lie: KNAPCACHE_TRACES, or ../shared/data as seen from here."""
    return Path(os.environ.get("KNAPCACHE_TRACES") or Path("..", "shared", "data"))


@functools.cache
def read_prompts(path: Path) -> list[dict[str, Any]]:
    """The prompts with the lengths of their sampled answers."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            prompts = [json.loads(line) for line in lines]
        for number, prompt in enumerate(prompts, 1):
            if not (isinstance(prompt.get("prompt"), str) and prompt.get("answer_chars")):
                raise InvalidInput(f"{path}, line {number}: a prompt needs the fields prompt and answer_chars")
        return prompts
    except FileNotFoundError:
        raise InvalidInput(
            f"table-2 reads {FILE}, and {path} does not exist: set KNAPCACHE_TRACES to its directory"
        ) from None
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from None


@dataclass(frozen=True)
class Prompts:
    """Requests for OpenAssistant prompts."""

    path: Path
    queries: int
    rounds: int
    arrivals: str
    unit: int
    one_hits: float = 0.0

    @property
    def phases(self) -> list[int]:
        """Popularity never changes."""
        return [0]

    def draw(self, rng: np.random.Generator) -> tuple[Queries, Trace]:
        """Some of the prompts, and requests for them."""
        prompts = read_prompts(self.path)
        if not 1 <= self.queries <= len(prompts):
            raise InvalidInput(
                f"queries must be between 1 and the {len(prompts)} prompts of {self.path}, not {self.queries}"
            )
        picked = [prompts[k] for k in rng.choice(len(prompts), self.queries, replace=False)]
        answers = [np.array(p["answer_chars"]) / CHARACTERS_PER_TOKEN for p in picked]
        tokens = np.array(
            [len(p["prompt"]) / CHARACTERS_PER_TOKEN + a.mean() for p, a in zip(picked, answers, strict=True)]
        )
        sizes = np.maximum(1, np.ceil(tokens / self.unit)).astype(np.int64)
        probabilities = rng.permutation(popularity(self.arrivals, self.queries))
        keys = rng.choice(self.queries, self.rounds, p=probabilities)
        lengths = np.empty(self.rounds)
        for q, answer in enumerate(answers):
            asked = np.flatnonzero(keys == q)
            lengths[asked] = rng.choice(answer, len(asked))
        costs = rng.lognormal(*LATENCY_SPREAD, self.rounds) * (PER_CALL + PER_TOKEN * lengths)
        mean, sd = LATENCY_SPREAD
        means = np.exp(mean + sd**2 / 2) * (PER_CALL + PER_TOKEN * np.array([a.mean() for a in answers]))
        return Queries(sizes, means, probabilities[None, :], None), Trace(keys, sizes[keys], costs, self.queries)


@dataclass(frozen=True, kw_only=True)
class Table2Settings(Settings):
    """Table 2."""

    queries: int = option(100, "number of prompts, N")
    capacity: int = option(100, "size of the cache, M, in units")
    rounds: int = option(20_000, "requests, T")
    repeats: int = option(5, "independent repetitions, each with prompts and requests of its own")
    arrivals: str = option("zipf:0.8", "arrivals: uniform, zipf:A or power:A")
    unit: int = option(32, "tokens in a unit of size")
    alpha: float = option(0.5, "VSOCB's α: what must accumulate before the Oracle is asked again")
    policies: tuple[str, ...] = option(POLICIES, "policies to compare, separated by commas")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unit < 1:
            raise InvalidInput(f"unit must be at least 1, not {self.unit}")
        if self.rounds < 1:
            raise InvalidInput(f"rounds must be at least 1, not {self.rounds}")
        popularity(self.arrivals, 1)  # raises on a word that cannot be read


def name(row: dict[str, Any]) -> str:
    """A policy, with its γ where it has one."""
    return str(row["policy"]) + (f", γ = {row['gamma']:g}" if row["gamma"] is not None else "")


def run(settings: Table2Settings, jobs: Jobs) -> Outcome:
    """Run every policy, compare total cost, draw cumulative cost."""
    figure, (left, right) = new_figure(2, width=5.8)
    prompts = Prompts(traces_directory() / FILE, settings.queries, settings.rounds, settings.arrivals, settings.unit)
    prompts.draw(np.random.default_rng(0))  # a missing file is one error here, not one a process
    cells = [
        Cell(
            policy,
            prompts,
            settings.capacity,
            repeat,
            settings.seed,
            settings.alpha,
            gamma,
            labels={"gamma": gamma},
        )
        for policy in settings.policies
        for gamma in GAMMAS.get(policy, (None,))
        for repeat in range(settings.repeats)
    ]
    groups = run_cells(cells, jobs, EXPERIMENT.name)
    baseline = next((g for g in groups if g[0].cell.policy == "berkeley"), None)
    rows = []
    for group in groups:
        saving = None
        if baseline:
            ours, theirs = (np.array([r.cost[-1] for r in g]) for g in (group, baseline))
            saving = float(100.0 * (1.0 - ours.mean() / theirs.mean()))
        rows.append(row(group, saved_percent=saving))
    order = sorted(range(len(groups)), key=lambda k: -rows[k]["cost_mean"])
    for k in order:
        curve(left, groups[k], "cost", name(rows[k]))
    left.set_xlim(0, settings.rounds)
    left.set_ylim(bottom=0)
    left.set_xlabel("request")
    left.set_ylabel("cumulative cost, seconds")
    left.legend(ncols=2)
    bars = range(len(order))
    colours = [style(rows[k]["policy"])["color"] for k in order]
    right.barh(
        bars, [rows[k]["cost_mean"] for k in order], xerr=[rows[k]["cost_se"] or 0.0 for k in order], color=colours
    )
    right.set_yticks(bars, [name(rows[k]) for k in order])
    right.grid(visible=False, axis="y")
    right.set_xlabel("total cost, seconds")
    if baseline:
        for bar, k in zip(bars, order, strict=True):
            saved = rows[k]["saved_percent"]
            end = rows[k]["cost_mean"] + (rows[k]["cost_se"] or 0.0)
            right.annotate(
                f"{-saved:+.1f} %" if saved else "baseline",
                (end, bar),
                textcoords="offset points",
                xytext=(4, -3),
                fontsize=9,
            )
        right.set_xlim(right=1.12 * max(r["cost_mean"] + (r["cost_se"] or 0.0) for r in rows))
    room = f"M = {settings.capacity} × {settings.unit} tokens"
    figure.suptitle(f"{settings.queries} OpenAssistant prompts, {room}, arrivals {settings.arrivals}", fontsize=11)
    return Outcome(rows, figure)


EXPERIMENT = Experiment(
    name="table-2",
    summary="total cost on OpenAssistant prompts with modelled latency (its Table 2)",
    text=__doc__ or "",
    settings=Table2Settings,
    run=run,
    quick={"rounds": 5_000, "repeats": 2},
)
