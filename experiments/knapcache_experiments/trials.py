"""Trials: one run of one policy on one random workload, and means over repeats.

A trial is self-contained: in another process it draws its queries and requests from its own seed. Trials with the same
seed, repeat and workload get the same requests, so policies are compared on equal input.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from knapcache import oracle
from knapcache.errors import InvalidInput
from knapcache.estimate.statistics import Confidence
from knapcache.lab.executors import Jobs, sweep
from knapcache.lab.replay import replay
from knapcache.lab.synthetic import Queries
from knapcache.lab.trace import Trace
from knapcache.policy import registry
from knapcache.policy.base import Policy
from knapcache.policy.vsocb.policy import VSOCB
from knapcache_experiments import theory
from knapcache_experiments.as_printed import AsPrinted
from knapcache_experiments.worst_solver import WorstSolverVSOCB

Floats = npt.NDArray[np.float64]
AS_PRINTED = "vsocb-as-printed"
WORST_SOLVER = "vsocb-worst-solver"
OWN_POLICIES: dict[str, type[AsPrinted] | type[WorstSolverVSOCB]] = {
    AS_PRINTED: AsPrinted,
    WORST_SOLVER: WorstSolverVSOCB,
}
"""Policies of the experiments that are not in the registry."""
CHECKPOINTS = 250
"""Rounds at which the curves of a trial are stored."""


class WorkloadSource(Hashable, Protocol):
    """Generator of queries and requests. Hashable, so that one draw is cached for all policies."""

    @property
    def queries(self) -> int:
        """Number of queries, N."""

    @property
    def rounds(self) -> int:
        """Number of requests, T."""

    @property
    def one_hits(self) -> float:
        """Share of requests for queries that occur once."""

    @property
    def phases(self) -> list[int]:
        """Indices of the requests at which popularity changes. The first is 0."""

    def draw(self, rng: np.random.Generator) -> tuple[Queries, Trace]:
        """Draw queries and requests."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run: a policy, a workload and their parameters."""

    policy: str
    workload: WorkloadSource
    capacity: int
    repeat: int
    seed: int
    alpha: float = 0.5
    gamma: float | None = None
    """Confidence scale γ. None: the default of the policy."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the policy's constructor."""
    labels: dict[str, Any] = field(default_factory=dict)
    """Swept parameters. With the policy they identify the table row of this trial."""


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """Curves and totals of one trial."""

    trial: Trial
    rounds: npt.NDArray[np.int64]
    """The checkpoints: rounds of the two curves below."""
    regret: Floats
    """Cumulative regret at the checkpoints."""
    cost: Floats
    """Cumulative cost at the checkpoints."""
    oracle_calls: int
    peak_size: int
    seconds: float
    clairvoyant_cost: float
    """Expected cost of a cache that always holds the best set of the current phase."""
    counters: dict[str, float]
    """Counters that only some policies have, such as the work of the Oracle."""


def simulate(trial: Trial) -> TrialResult:
    """Run one trial."""
    queries, trace = _draw(trial.workload, trial.seed, trial.repeat)
    policy = build_policy(trial, queries, trace)
    values = queries.values * (1.0 - trial.workload.one_hits)
    best = np.array([oracle.solve(w, queries.sizes, trial.capacity).value for w in values])
    run = replay(policy, trace, values=values, phases=trial.workload.phases)
    if trial.policy != AS_PRINTED:  # the printed algorithm exceeds its capacity
        policy.check()
    assert run.resident_values is not None
    phase = np.searchsorted(trial.workload.phases, np.arange(len(trace)), side="right") - 1
    regret = theory.cumulative_regret(run.resident_values, best[phase])
    cost = np.cumsum(np.where(run.hits, 0.0, trace.costs))
    rounds = (
        np.unique(np.geomspace(1, len(trace), CHECKPOINTS).astype(np.int64))
        if trial.workload.rounds > 100_000
        else np.unique(np.linspace(1, len(trace), CHECKPOINTS).astype(np.int64))
    )
    one_hit_cost = trace.costs[trace.keys >= trial.workload.queries].sum()
    clairvoyant_cost = float((values.sum(axis=1) - best)[phase].sum() + one_hit_cost)
    counters = policy.counters if isinstance(policy, AsPrinted) else {}
    if isinstance(policy, VSOCB):
        counters["oracle_work"] = float(policy.oracle_work)
        counters["oracle_calls_skipped"] = float(policy.oracle_calls_skipped)
    return TrialResult(
        trial=trial,
        rounds=rounds,
        regret=regret[rounds - 1],
        cost=cost[rounds - 1],
        oracle_calls=run.oracle_calls,
        peak_size=run.peak,
        seconds=run.seconds,
        clairvoyant_cost=clairvoyant_cost,
        counters=counters,
    )


@functools.lru_cache(maxsize=2)
def _draw(workload: WorkloadSource, seed: int, repeat: int) -> tuple[Queries, Trace]:
    return workload.draw(np.random.default_rng([seed, repeat]))


def build_policy(trial: Trial, queries: Queries, trace: Trace) -> Policy:
    """Build the policy with the knowledge the paper grants it: T, N, c1 and c2. Lazy VSOCB gets neither T nor N."""
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
        WORST_SOLVER: known,
    }
    options = dict(trial.options)
    if trial.policy in bandits:
        confidence = bandits[trial.policy]
        options["confidence"] = confidence if trial.gamma is None else replace(confidence, gamma=trial.gamma)
        if not trial.policy.startswith("berkeley"):
            options["alpha"] = trial.alpha
    if trial.policy in OWN_POLICIES:
        return OWN_POLICIES[trial.policy](trial.capacity, trace.ids, **options)
    return registry.find(trial.policy).build_for(trial.capacity, trace, **options)


def repeated(settings: Any, policy: str, workload: WorkloadSource, **more: Any) -> Iterator[Trial]:
    """Yield one trial for each repeat of the settings, with their seed, capacity and α unless others are given."""
    given = {"capacity": settings.capacity, "alpha": settings.alpha, **more}
    for repeat in range(settings.repeats):
        yield Trial(policy=policy, workload=workload, repeat=repeat, seed=settings.seed, **given)


def require_option(option: str, policies: Iterable[str], supported: Collection[str]) -> None:
    """Raise InvalidInput if a swept option has no effect on one of the policies."""
    for policy in policies:
        if policy not in supported:
            raise InvalidInput(f"{policy} has no {option}; policies with it are {', '.join(sorted(supported))}")


def run_trials(trials: list[Trial], jobs: Jobs, title: str) -> list[list[TrialResult]]:
    """Run all trials and group the results by policy and labels: one group per table row, one result per repeat."""
    for trial in trials:
        if trial.policy not in OWN_POLICIES:
            registry.find(trial.policy)
    if any(trial.capacity < 1 for trial in trials):
        raise InvalidInput(f"capacity must be at least 1, not {min(trial.capacity for trial in trials)}")
    names = [repr((trial.policy, trial.labels, trial.repeat)) for trial in trials]
    if len(set(names)) < len(names):
        duplicate = next(trial for trial, name in zip(trials, names, strict=True) if names.count(name) > 1)
        raise InvalidInput(f"given twice: {', '.join(map(str, [duplicate.policy, *duplicate.labels.values()]))}")
    # Ordered by repeat, so that consecutive trials share their cached draw.
    order = sorted(range(len(trials)), key=lambda k: trials[k].repeat)
    results = sweep(simulate, [trials[k] for k in order], jobs=jobs, title=title)
    groups: dict[str, list[TrialResult]] = {}
    for _, result in sorted(zip(order, results, strict=True), key=lambda pair: pair[0]):
        groups.setdefault(repr((result.trial.policy, result.trial.labels)), []).append(result)
    return list(groups.values())


def table_row(results: list[TrialResult], counters: Iterable[str] = (), **columns: Any) -> dict[str, Any]:
    """Return a table row: means and standard errors over repeats, means of the named counters, and extra columns."""
    first = results[0].trial
    return {
        "policy": first.policy,
        **first.labels,
        **mean_and_error("regret", [r.regret[-1] for r in results]),
        **mean_and_error("cost", [r.cost[-1] for r in results]),
        "oracle_calls": float(np.mean([r.oracle_calls for r in results])),
        "peak_occupancy": max(r.peak_size for r in results),
        **{
            name: float(np.mean([r.counters[name] for r in results]))
            for name in counters
            if name in results[0].counters
        },
        **columns,
    }


def mean_and_error(name: str, numbers: Iterable[float]) -> dict[str, float | None]:
    """Return the mean and the standard error, which is None for one repeat."""
    x = np.array(list(numbers))
    return {
        f"{name}_mean": float(x.mean()),
        f"{name}_se": float(x.std(ddof=1) / np.sqrt(len(x))) if len(x) > 1 else None,
    }
