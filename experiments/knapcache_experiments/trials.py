"""One run of one policy over one draw of a workload, and the mean over many.

A cell is self-contained: sent to another process it draws its queries and requests from its own seed. Cells of
the same repeat draw the same ones, so policies are compared on the same luck.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from knapcache import oracle
from knapcache.errors import InvalidInput
from knapcache.estimate.statistics import Confidence
from knapcache.policy import registry
from knapcache.policy.base import Policy
from knapcache.policy.vsocb.policy import VSOCB
from knapcache.sim import theory
from knapcache.sim.executors import Jobs
from knapcache.sim.replay import replay
from knapcache.sim.sweep import sweep
from knapcache.sim.synthetic import Queries
from knapcache.sim.trace import Trace
from knapcache_experiments.as_printed import AsPrinted

Floats = npt.NDArray[np.float64]
AS_PRINTED = "vsocb-as-printed"
CHECKPOINTS = 250


class WorkloadSource(Hashable, Protocol):
    """Where queries and requests come from. Hashable, so that a draw can be kept for the next policy."""

    @property
    def queries(self) -> int:
        """N."""

    @property
    def rounds(self) -> int:
        """T."""

    @property
    def one_hits(self) -> float:
        """Share of requests for queries that never return."""

    @property
    def phases(self) -> list[int]:
        """Requests at which popularity changes; the first is 0."""

    def draw(self, rng: np.random.Generator) -> tuple[Queries, Trace]:
        """Queries and requests."""


@dataclass(frozen=True)
class Trial:
    """What to run."""

    policy: str
    workload: WorkloadSource
    capacity: int
    repeat: int
    seed: int
    alpha: float = 0.5
    gamma: float | None = None
    """Confidence scale; None: the policy's own choice."""
    options: dict[str, Any] = field(default_factory=dict)
    """More arguments of the policy's constructor."""
    labels: dict[str, Any] = field(default_factory=dict)
    """Swept parameters: with the policy they name the row this cell belongs to."""


@dataclass(frozen=True)
class TrialResult:
    """What came out."""

    trial: Trial
    rounds: npt.NDArray[np.int64]
    """Checkpoints: rounds at which the curves below were read."""
    regret: Floats
    cost: Floats
    oracle_calls: int
    peak: int
    seconds: float
    clairvoyant: float
    """Expected cost of a cache that always holds the best set of the phase."""
    notes: dict[str, float]
    """Counters of some policies: work of the Oracle; as printed, wiped caches and rounds over capacity."""


def simulate(trial: Trial) -> TrialResult:
    """Draw, replay, account."""
    queries, trace = _draw(trial.workload, trial.seed, trial.repeat)
    policy = build(trial, queries, trace)
    worth = queries.worth * (1.0 - trial.workload.one_hits)
    best = np.array([oracle.solve(w, queries.sizes, trial.capacity).value for w in worth])
    run = replay(policy, trace, worth=worth, phases=trial.workload.phases)
    if trial.policy != AS_PRINTED:  # the printed algorithm breaks its own capacity; everyone else's books are checked
        policy.check()
    assert run.value is not None
    phase = np.searchsorted(trial.workload.phases, np.arange(len(trace)), side="right") - 1
    regret = theory.cumulative_regret(run.value, best[phase])
    cost = np.cumsum(np.where(run.hits, 0.0, trace.costs))
    rounds = (
        np.unique(np.geomspace(1, len(trace), CHECKPOINTS).astype(np.int64))
        if trial.workload.rounds > 100_000
        else np.unique(np.linspace(1, len(trace), CHECKPOINTS).astype(np.int64))
    )
    strangers = trace.costs[trace.keys >= trial.workload.queries].sum()
    clairvoyant = float((worth.sum(axis=1) - best)[phase].sum() + strangers)
    notes = policy.notes if isinstance(policy, AsPrinted) else {}
    if isinstance(policy, VSOCB):
        notes["oracle_work"] = float(policy.oracle_work)
        notes["oracle_calls_skipped"] = float(policy.oracle_calls_skipped)
    return TrialResult(
        trial, rounds, regret[rounds - 1], cost[rounds - 1], run.oracle_calls, run.peak, run.seconds, clairvoyant, notes
    )


@functools.lru_cache(maxsize=2)
def _draw(workload: WorkloadSource, seed: int, repeat: int) -> tuple[Queries, Trace]:
    return workload.draw(np.random.default_rng([seed, repeat]))


def build(trial: Trial, queries: Queries, trace: Trace) -> Policy:
    """The policy of a cell, told what the paper lets it know: T, N, c1 and c2 (lazy VSOCB knows neither T nor N)."""
    c1, c2 = queries.cost_range or (None, None)
    known = Confidence(T=trial.workload.rounds, N=trial.workload.queries, c1=c1, c2=c2)
    bandits = {
        "vsocb": replace(known, gamma=0.0),
        "vsocb-apx": replace(known, gamma=0.0),
        "offline": replace(known, gamma=0.0),
        "vsocb-lazy": Confidence(gamma=0.3, gamma_arrival=0.0, c1=c1, c2=c2),
        "berkeley": replace(known, gamma_arrival=0.0),
        "berkeley-multi": replace(known, gamma_arrival=0.0),
        AS_PRINTED: replace(known, clip=False),
    }
    options = dict(trial.options)
    if trial.policy in bandits:
        confidence = bandits[trial.policy]
        options["confidence"] = confidence if trial.gamma is None else replace(confidence, gamma=trial.gamma)
        if not trial.policy.startswith("berkeley"):
            options["alpha"] = trial.alpha
    if trial.policy == AS_PRINTED:
        return AsPrinted(trial.capacity, trace.ids, **options)
    return registry.find(trial.policy).build_for(trial.capacity, trace, **options)


def require_option(option: str, policies: Iterable[str], having: Collection[str]) -> None:
    """Refuse policies on which a swept option would have no effect."""
    for policy in policies:
        if policy not in having:
            raise InvalidInput(f"{policy} has no {option}; those that have are {', '.join(sorted(having))}")


def run_trials(trials: list[Trial], jobs: Jobs, title: str) -> list[list[TrialResult]]:
    """All cells, grouped by row: same policy and labels, one result a repeat."""
    for trial in trials:
        if trial.policy != AS_PRINTED:
            registry.find(trial.policy)
    if any(trial.capacity < 1 for trial in trials):
        raise InvalidInput(f"capacity must be at least 1, not {min(trial.capacity for trial in trials)}")
    names = [repr((trial.policy, trial.labels, trial.repeat)) for trial in trials]
    if len(set(names)) < len(names):
        twice = next(trial for trial, name in zip(trials, names, strict=True) if names.count(name) > 1)
        raise InvalidInput(f"given twice: {', '.join(map(str, [twice.policy, *twice.labels.values()]))}")
    # Repeat by repeat: neighbours share their draw.
    order = sorted(range(len(trials)), key=lambda k: trials[k].repeat)
    results = sweep(simulate, [trials[k] for k in order], jobs=jobs, title=title)
    groups: dict[str, list[TrialResult]] = {}
    for _, result in sorted(zip(order, results, strict=True), key=lambda pair: pair[0]):
        groups.setdefault(repr((result.trial.policy, result.trial.labels)), []).append(result)
    return list(groups.values())


def row(results: list[TrialResult], notes: Iterable[str] = (), **more: Any) -> dict[str, Any]:
    """The row of a table: means and standard errors over repeats; means of the `notes` named; and `more`."""
    first = results[0].trial
    return {
        "policy": first.policy,
        **first.labels,
        **mean_and_error("regret", [r.regret[-1] for r in results]),
        **mean_and_error("cost", [r.cost[-1] for r in results]),
        "oracle_calls": float(np.mean([r.oracle_calls for r in results])),
        "peak_occupancy": max(r.peak for r in results),
        **{name: float(np.mean([r.notes[name] for r in results])) for name in notes if name in results[0].notes},
        **more,
    }


def mean_and_error(name: str, numbers: Iterable[float]) -> dict[str, float | None]:
    """Mean and standard error; one repeat has no error to show."""
    x = np.array(list(numbers))
    return {
        f"{name}_mean": float(x.mean()),
        f"{name}_se": float(x.std(ddof=1) / np.sqrt(len(x))) if len(x) > 1 else None,
    }
