"""Theorem 1 (1) and Theorem 2 of the paper on instances of a dozen queries: measured regret and bound side by side.

An instance of a dozen queries has few enough valid sets to list them all, so every gap Δ is exact. Each repeat draws
one instance and moves its mean costs so that the smallest gap Δ_min takes each of the `gaps`. Costs are c1 or c2, as
the theorems assume. The horizon T is a parameter of the algorithm, so there is a separate run for each T.

The paper gives its bounds up to constants and logarithms. `bound` is the printed sum times ln(16TN/δ), with constant 1,
the mean over instances. `share_max` is the largest regret ÷ bound of all runs: the smallest constant that is not
refuted. `wrong_at_end` is the share of runs whose regret still grows at the end. `first_misses` is a part of the regret
that no policy avoids: each answer of the best set has to be paid for once. Rows with an `exponent` fit regret ∝ T^p
over the last decade of T, or regret ∝ Δ^p at the largest T, with a 95 % interval over repeats; `exponent_of_bound` is
the same fit to the bound.

The rows of Theorem 2 have β-regret in the place of regret. `beta_share` gives β as a share of Δ_min ÷ cost(M*), up to
which the theorem's sum has no negative terms (`premise`: the share of instances where it has none). For a larger,
fixed `beta` the bound is the sum over sets outside 1 + β only; `printed_bound_negative` is the share of instances whose
printed sum is negative, and `refuted` that of runs which also have a positive β-regret: no constant makes it a bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.lab.executors import Jobs
from knapcache.lab.synthetic import Workload, draw_queries
from knapcache.lab.trace import Floats
from knapcache_experiments import theory
from knapcache_experiments.experiment import Experiment, ExperimentResult, ExperimentSettings, option
from knapcache_experiments.fits import exponent_columns
from knapcache_experiments.gap_instances import GapWorkload
from knapcache_experiments.gaps_plot import draw_gaps
from knapcache_experiments.theory import gaps as gaps_of
from knapcache_experiments.trials import (
    AS_PRINTED,
    WORST_SOLVER,
    Trial,
    TrialResult,
    WorkloadSource,
    mean_and_error,
    repeated,
    run_trials,
)
from knapcache_experiments.valid_sets import MAX_ENUMERATED, BanditInstance

if TYPE_CHECKING:
    from collections.abc import Iterator

THEOREM_1, THEOREM_2, ALL_FITS = "Theorem 1 (1)", "Theorem 2 (1)", "Theorem 1, all fits"
FIRST_HORIZON = 1_000
ENOUGH = 10**6
"""A capacity for all queries."""


class Variant(NamedTuple):
    """A policy with its confidence scale γ."""

    policy: str
    gamma: float
    options: dict[str, Any]


VARIANTS = (
    Variant(AS_PRINTED, 1.0, {"repairs": ("E1",)}),
    Variant("vsocb", 1.0, {}),
    Variant("vsocb", 0.0, {}),
    Variant("vsocb-lazy", 0.3, {}),
)
APPROXIMATE = (Variant("vsocb-apx", 1.0, {}), Variant(WORST_SOLVER, 1.0, {}), Variant(WORST_SOLVER, 0.0, {}))


@dataclass(frozen=True, kw_only=True)
class GapsSettings(ExperimentSettings):
    """Settings of the gap experiment. Mean costs and noise are not among them: the gaps determine them."""

    repeats: int = option(20, "independent repeats, each with its own instance and requests")
    queries: int = option(12, f"number of distinct queries, N; at most {MAX_ENUMERATED}")
    capacity: int = option(24, "capacity, M")
    rounds: int = option(1_000_000, f"largest number of requests, T; runs start at T = {FIRST_HORIZON:,}")
    sizes: str = option("uniform:10", "size distribution: uniform:10, uniform:3 or lognormal:5.5")
    arrivals: str = option("zipf:0.8", "arrival distribution: uniform, zipf:A or power:A")
    alpha: float = option(0.5, "VSOCB's α: relative growth of counts before the next Oracle call")
    gaps: tuple[float, ...] = option((0.001, 0.003, 0.01, 0.03), "smallest gaps Δ_min of the instances")
    approximate_gap: float = option(0.01, "Δ_min of the instances for Theorem 2")
    beta_shares: tuple[float, ...] = option((0.9,), "tolerances β, as shares of Δ_min ÷ cost(M*)")
    betas: tuple[float, ...] = option((0.05, 0.2), "further tolerances β")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.alpha < math.inf:
            raise InvalidInput(f"alpha must be above 0 and finite, not {self.alpha}")
        for name, least in (("capacity", 1), ("rounds", 10)):
            if getattr(self, name) < least:
                raise InvalidInput(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not 2 <= self.queries <= MAX_ENUMERATED:
            raise InvalidInput(f"queries must be between 2 and {MAX_ENUMERATED}, not {self.queries}")
        if min(*self.gaps, self.approximate_gap) <= 0:
            raise InvalidInput(f"gaps must be above 0, not {min(*self.gaps, self.approximate_gap)}")
        if not all(0 < share < 1 for share in self.beta_shares):
            raise InvalidInput(f"beta_shares must be between 0 and 1, not {', '.join(map(str, self.beta_shares))}")
        if min(self.betas) < 0:
            raise InvalidInput(f"betas must not be negative, not {min(self.betas)}")
        self.all_fits()  # raises InvalidInput on bad values

    @property
    def horizons(self) -> list[int]:
        """The horizons T: powers of ten from FIRST_HORIZON on, and three points of the last decade."""
        decades = [FIRST_HORIZON * 10**k for k in range(12)]
        last = [self.rounds // 10, int(self.rounds / 10**0.5), self.rounds]
        return sorted({*(t for t in decades if t < last[0]), *last})

    def instances(self, rounds: int, gap: float) -> GapWorkload:
        """Return the workload with this horizon and Δ_min."""
        return GapWorkload(
            queries=self.queries,
            rounds=rounds,
            capacity=self.capacity,
            sizes=self.sizes,
            arrivals=self.arrivals,
            gap=gap,
            reach=max(*self.gaps, self.approximate_gap),
        )

    def all_fits(self) -> Workload:
        """Return the workload of the case in which everything fits."""
        return Workload(queries=self.queries, rounds=self.horizons[0], sizes=self.sizes, arrivals=self.arrivals)

    def instance(self, gap: float, repeat: int) -> BanditInstance:
        """Return the instance that the trials of a repeat run on."""
        return self.instances(1, gap).instance(np.random.default_rng([self.seed, repeat]))


def run(settings: GapsSettings, jobs: Jobs) -> ExperimentResult:
    """Run both theorems, and the case in which everything fits."""
    trials = [*exact_trials(settings), *approximate_trials(settings), *all_fits_trials(settings)]
    groups = run_trials(trials, jobs, EXPERIMENT.name)
    of_claim = {
        claim: [group for group in groups if group[0].trial.labels["claim"] == claim]
        for claim in (THEOREM_1, THEOREM_2, ALL_FITS)
    }
    rows = [
        *(exact_row(settings, group) for group in of_claim[THEOREM_1]),
        *fit_rows(settings, of_claim[THEOREM_1]),
        *(approximate_row(settings, group) for group in of_claim[THEOREM_2]),
        *(all_fits_row(settings, group) for group in of_claim[ALL_FITS]),
    ]
    return ExperimentResult(
        rows, draw_gaps(rows, settings.gaps, settings.rounds, settings.approximate_gap, settings.beta_shares[-1])
    )


# Theorem 1 (1) ---------------------------------------------------------------------------------------------------


def exact_trials(settings: GapsSettings) -> Iterator[Trial]:
    """Every variant on every gap and horizon. Variants last: they share their requests."""
    for gap in settings.gaps:
        for rounds in settings.horizons:
            labels = {"claim": THEOREM_1, "gap": gap, "rounds": rounds}
            for variant in VARIANTS:
                yield from trials_of(settings, variant, settings.instances(rounds, gap), labels)


def trials_of(
    settings: GapsSettings, variant: Variant, workload: WorkloadSource, labels: dict[str, Any], **more: Any
) -> Iterator[Trial]:
    """Yield one trial of a variant for each repeat."""
    labels = {**labels, "gamma": variant.gamma}
    given = {"gamma": variant.gamma, "options": variant.options, "labels": labels, **more}
    return repeated(settings, variant.policy, workload, **given)


def exact_row(settings: GapsSettings, group: Sequence[TrialResult]) -> dict[str, Any]:
    labels = group[0].trial.labels
    instances = [settings.instance(labels["gap"], result.trial.repeat) for result in group]
    bounds = np.array([theory.problem_dependent_bound(x, labels["rounds"]) for x in instances])
    worst_case = np.array([theory.problem_independent_bound(x, labels["rounds"]) for x in instances])
    regrets = np.array([result.regret[-1] for result in group])
    return {
        **head(group),
        "gap": labels["gap"],
        "rounds": labels["rounds"],
        **mean_and_error("regret", regrets),
        "bound": float(bounds.mean()),
        "share_mean": float((regrets / bounds).mean()),
        "share_max": float((regrets / bounds).max()),
        "bound_1_2": float(worst_case.mean()),
        "wrong_at_end": wrong_at_end(group),
        "first_misses": float(np.mean([first_misses(x, labels["rounds"]) for x in instances])),
    }


def head(group: Sequence[TrialResult]) -> dict[str, Any]:
    """Return the columns that every row begins with."""
    trial = group[0].trial
    return {"claim": trial.labels["claim"], "policy": trial.policy, "gamma": trial.labels["gamma"]}


def wrong_at_end(group: Sequence[TrialResult]) -> float:
    """Return the share of runs whose regret grows between the last two checkpoints."""
    return float(np.mean([result.regret[-1] - result.regret[-2] > 1e-9 * result.regret[-1] for result in group]))


def first_misses(instance: BanditInstance, rounds: int) -> float:
    """Σ_{q∈M*} C*(q)·(1 − (1 − P(q))^T): the expected cost of the first miss of each answer of the best set."""
    best = gaps_of(instance).optimal
    return float((instance.costs * (1 - (1 - instance.probabilities) ** rounds))[best].sum())


def fit_rows(settings: GapsSettings, groups: Sequence[Sequence[TrialResult]]) -> list[dict[str, Any]]:
    """Return the exponents of T (for each gap) and of Δ (at the largest T)."""
    rows: list[dict[str, Any]] = []
    regret = {
        (g[0].trial.policy, *(g[0].trial.labels[k] for k in ("gamma", "gap", "rounds"))): [r.regret[-1] for r in g]
        for g in groups
    }
    last_decade = [t for t in settings.horizons if t >= settings.rounds // 10]
    bound = {
        gap: np.array(
            [theory.problem_dependent_bound(settings.instance(gap, k), last_decade) for k in range(settings.repeats)]
        )
        for gap in settings.gaps
    }
    for policy, gamma, _ in VARIANTS:
        for gap in settings.gaps:
            curves = [regret[policy, gamma, gap, t] for t in last_decade]
            rows.append({"claim": THEOREM_1, "policy": policy, "gamma": gamma, "gap": gap, "fit": "T"})
            rows[-1] |= exponent_columns(last_decade, np.transpose(curves), bound[gap])
        curves = [regret[policy, gamma, gap, settings.rounds] for gap in settings.gaps]
        rows.append({"claim": THEOREM_1, "policy": policy, "gamma": gamma, "rounds": settings.rounds, "fit": "Δ"})
        at_end = np.transpose([bound[gap][:, -1] for gap in settings.gaps])
        rows[-1] |= exponent_columns(settings.gaps, np.transpose(curves), at_end)
    return rows


# Theorem 2 -------------------------------------------------------------------------------------------------------


def approximate_trials(settings: GapsSettings) -> Iterator[Trial]:
    """Every approximate variant with every β and horizon."""
    for name, number in (*(("beta_share", s) for s in settings.beta_shares), *(("beta", b) for b in settings.betas)):
        labels = {"claim": THEOREM_2, name: number}
        betas = [beta_of(labels, settings.instance(settings.approximate_gap, k)) for k in range(settings.repeats)]
        for rounds in (t for t in settings.horizons if t != settings.horizons[-2]):
            workload = settings.instances(rounds, settings.approximate_gap)
            for variant in APPROXIMATE:
                of_rounds = trials_of(settings, variant, workload, {**labels, "rounds": rounds})
                for trial, beta in zip(of_rounds, betas, strict=True):
                    yield replace(trial, options={**trial.options, "beta": beta})


def beta_of(labels: dict[str, Any], instance: BanditInstance) -> float:
    """Return β of a trial. Δ^c_min = Δ_min − β·cost(M*) is positive for β below Δ_min ÷ cost(M*)."""
    if "beta" in labels:
        return float(labels["beta"])
    found = gaps_of(instance)
    return float(labels["beta_share"] * found.minimum / instance.values[~found.optimal].sum())


def approximate_row(settings: GapsSettings, group: Sequence[TrialResult]) -> dict[str, Any]:
    labels = group[0].trial.labels
    instances = [settings.instance(settings.approximate_gap, result.trial.repeat) for result in group]
    betas = [beta_of(labels, x) for x in instances]
    regrets = np.array([r.regret[-1] - b * r.clairvoyant_cost for r, b in zip(group, betas, strict=True)])

    def bounds(**reading: bool) -> Floats:
        return np.array(
            [
                theory.approximate_problem_dependent_bound(x, beta, labels["rounds"], **reading)
                for x, beta in zip(instances, betas, strict=True)
            ]
        )

    harmful, printed = bounds(harmful_only=True), bounds(as_printed=True)
    positive = harmful > 0
    shares = regrets[positive] / harmful[positive]
    return {
        **head(group),
        "gap": settings.approximate_gap,
        "beta_share": labels.get("beta_share"),
        "beta": labels.get("beta", float(np.mean(betas))),
        "rounds": labels["rounds"],
        **mean_and_error("regret", regrets),
        "bound": float(harmful.mean()),
        "share_mean": float(shares.mean()) if positive.any() else None,
        "share_max": float(shares.max()) if positive.any() else None,
        "premise": float(np.mean([gaps_of(x, b).minimum > 0 for x, b in zip(instances, betas, strict=True)])),
        "printed_bound_negative": float((printed < 0).mean()),
        "refuted": float(((printed < 0) & (regrets > 0)).mean()),
    }


# Everything fits -------------------------------------------------------------------------------------------------


def all_fits_trials(settings: GapsSettings) -> Iterator[Trial]:
    """Every variant with a cache that can hold all queries, where l(M,Q) = 0."""
    labels = {"claim": ALL_FITS, "rounds": settings.horizons[0]}
    for variant in VARIANTS:
        yield from trials_of(settings, variant, settings.all_fits(), labels, capacity=ENOUGH)


def all_fits_row(settings: GapsSettings, group: Sequence[TrialResult]) -> dict[str, Any]:
    """Return a row whose bound is 0: l(M,Q) = 0, and no set is left out."""
    rounds = group[0].trial.labels["rounds"]
    expected, bounds = [], []
    for result in group:
        queries = draw_queries(settings.all_fits(), np.random.default_rng([settings.seed, result.trial.repeat]))
        instance = BanditInstance(queries.probabilities[0], queries.costs, queries.sizes, result.trial.capacity)
        expected.append(first_misses(instance, rounds))
        bounds.append(float(theory.problem_dependent_bound(instance, rounds)))
    return {
        **head(group),
        "rounds": rounds,
        **mean_and_error("regret", [result.regret[-1] for result in group]),
        "bound": float(np.mean(bounds)),
        "wrong_at_end": wrong_at_end(group),
        "first_misses": float(np.mean(expected)),
    }


EXPERIMENT = Experiment(
    name="gaps",
    summary="regret against the gap Δ and the problem-dependent bounds, on a dozen queries",
    text=__doc__ or "",
    settings=GapsSettings,
    run=run,
    quick={"rounds": 30_000, "repeats": 3, "gaps": (0.003, 0.03), "beta_shares": (0.5,), "betas": (0.2,)},
)
