"""Figure 1 of the paper: cumulative regret over 20,000 rounds with 100 queries and capacity 60, mean of 10 repeats.

The paper does not specify the distributions of sizes, arrivals and noise. The defaults here are sizes uniform in 1 … 10
and Zipf 0.8 arrivals. Regret is measured against the best fixed set under the true probabilities and mean costs, with
the cache contents before each request.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from knapcache.errors import InvalidInput
from knapcache.lab.executors import Jobs
from knapcache.lab.figures import new_figure
from knapcache.lab.synthetic import Workload
from knapcache_experiments.experiment import Experiment, ExperimentResult, ExperimentSettings, option
from knapcache_experiments.plots import plot_mean
from knapcache_experiments.trials import repeated, run_trials, table_row

POLICIES = (
    "vsocb",
    "vsocb-lazy",
    "vsocb-apx",
    "offline",
    "berkeley",
    "berkeley-multi",
    "gdsf-cost",
    "gdsf",
    "lfu",
    "lru",
    "static",
)


@dataclass(frozen=True, kw_only=True)
class PaperSettings(ExperimentSettings):
    """The paper's simulation; every parameter it leaves open is an option."""

    queries: int = option(100, "number of distinct queries, N")
    capacity: int = option(60, "capacity, M")
    rounds: int = option(20_000, "number of requests, T")
    sizes: str = option(
        "uniform:10", "size distribution: uniform:10, uniform:3, lognormal:5.5 or proportional (to cost)"
    )
    arrivals: str = option("zipf:0.8", "arrival distribution: uniform, zipf:A or power:A")
    costs: str = option("uniform:1:2", "distribution of mean costs: uniform:1:2, two:1:101 or lognormal:1.5")
    noise: float = option(1.0, "standard deviation of the cost of a miss")
    alpha: float = option(0.5, "VSOCB's α: relative growth of counts before the next Oracle call")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.alpha < math.inf:
            raise InvalidInput(f"alpha must be above 0 and finite, not {self.alpha}")
        if self.capacity < 1:
            raise InvalidInput(f"capacity must be at least 1, not {self.capacity}")
        self.workload()  # raises InvalidInput on bad values

    def workload(self, **overrides: object) -> Workload:
        """Return the workload of these settings, with some fields overridden."""
        fields = {name: getattr(self, name) for name in ("queries", "rounds", "sizes", "arrivals", "costs", "noise")}
        return Workload(**(fields | overrides))


@dataclass(frozen=True, kw_only=True)
class Figure1Settings(PaperSettings):
    """Settings of Figure 1."""

    policies: tuple[str, ...] = option(POLICIES, "comma-separated policies to compare")
    gamma: float = option(0.0, "VSOCB's confidence scale γ, 0 … 1")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.gamma <= 1.0:
            raise InvalidInput(f"gamma must be between 0 and 1, not {self.gamma}")


def run(settings: Figure1Settings, jobs: Jobs) -> ExperimentResult:
    """Run every policy and plot regret over rounds."""
    figure, (axes,) = new_figure()
    workload = settings.workload()
    trials = [
        trial
        for policy in settings.policies
        for trial in repeated(
            settings,
            policy,
            workload,
            gamma=settings.gamma if policy in ("vsocb", "vsocb-apx", "offline") else None,
        )
    ]
    groups = run_trials(trials, jobs, EXPERIMENT.name)
    for group in sorted(groups, key=lambda g: -g[0].regret[-1]):
        plot_mean(axes, group, "regret", group[0].trial.policy)
    rows = [table_row(group) for group in groups]
    bandits = [r["regret_mean"] for r in rows if r["policy"] not in ("lru", "lfu", "gdsf", "gdsf-cost")] or [
        r["regret_mean"] for r in rows
    ]
    axes.set_ylim(
        0, 1.25 * max(*bandits, 1.0)
    )  # LRU and the other classic policies leave the plot; it compares the bandits
    axes.set_xlim(0, settings.rounds)
    axes.set_xlabel("round")
    axes.set_ylabel("cumulative regret")
    axes.set_title(
        f"N = {settings.queries}, M = {settings.capacity}, sizes {settings.sizes}, arrivals {settings.arrivals}, "
        f"{settings.repeats} repeats"
    )
    axes.legend(ncols=2)
    return ExperimentResult(rows, figure)


EXPERIMENT = Experiment(
    name="figure-1",
    summary="cumulative regret in the paper's simulation (the paper's Figure 1)",
    text=__doc__ or "",
    settings=Figure1Settings,
    run=run,
    quick={"rounds": 5_000, "repeats": 3},
)
