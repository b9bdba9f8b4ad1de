"""Capacity planning: what each policy saves over a range of capacities, and where more capacity stops paying.

    saving          cost of all requests of the log without a cache, minus their cost with one
    largest saving  the saving at unlimited capacity: every request hits except the first for each key
    knee            the smallest capacity at which a policy reaches 90 % of the largest saving
    price λ         saving per extra unit of capacity: the slope of the saving to the next capacity

Rejected definition of the knee: the point where saving over log(capacity) lies farthest above its chord. That point
moves with the range, and many logs have no bend: power-law popularity makes the curve almost straight. A share of the
largest saving depends only on the log and the policy.

Savings are those of the log itself. A projection to other days exists only for a log of at least a day (projection.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from knapcache.lab.capacity import CapacityRange
from knapcache.lab.executors import Jobs
from knapcache.lab.grid import check_arguments, replay_grid, require_usable
from knapcache.lab.projection import Projection, block_savings, projection
from knapcache.lab.sampling import Sample
from knapcache.lab.trace import Trace, TraceStats, firsts
from knapcache.policy import registry

POLICIES = ("adaptive", "gdsf-cost", "lru", "static")
RANGE = "0.5%..100%"
KNEE_SHARE = 0.9
"""Share of the largest saving that defines the knee."""


@dataclass(frozen=True)
class SavingsCurve:
    """Savings of a policy over the whole log, at each capacity."""

    policy: str
    saved: tuple[float, ...]
    errors: tuple[float, ...] | None
    """Standard errors of `saved`; None if the whole log was replayed."""
    prices: tuple[float | None, ...]
    knee: int | None
    """A capacity; None if no capacity of the range reaches the knee."""


@dataclass(frozen=True)
class Recommendation:
    """An online policy, the capacity to give it, and what that saves over the whole log."""

    policy: str
    capacity: int
    saved: float
    at_knee: bool
    """True if `capacity` is the policy's knee; False if no knee was found and it is the end of the range."""


@dataclass(frozen=True)
class CapacityPlan:
    stats: TraceStats
    sampled: int | None
    """Requests replayed for each policy and capacity; None if all were."""
    slices: int
    rate: float
    """Share of all keys that were replayed."""
    capacities: tuple[int, ...]
    curves: tuple[SavingsCurve, ...]
    oracle_prices: tuple[float, ...]
    """The Oracle's price of one unit at each capacity, for the best fixed set of the replayed requests."""
    recommendation: Recommendation | None
    """None if nothing can be saved, or no online policy was compared."""
    projection: Projection | None
    """What the recommendation saves in the log's span and, from one day on, per day. None without one."""

    def curve(self, policy: str) -> SavingsCurve:
        return next(curve for curve in self.curves if curve.policy == policy)


def make_plan(
    source: Trace | Sample,
    policies: Sequence[str] = POLICIES,
    capacities: CapacityRange | str = RANGE,
    *,
    seed: int = 0,
    jobs: Jobs = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> CapacityPlan:
    """Replay a trace or a sample with every policy at every capacity. Equal seeds give equal plans.

    `on_progress` is called after each replay with the number of finished replays and of all.
    """
    requested = CapacityRange.parse(capacities) if isinstance(capacities, str) else capacities
    check_arguments(policies, requested.capacities, seed, jobs)
    sample = source if isinstance(source, Sample) else Sample.of(source)
    stats = sample.stats
    require_usable(stats)
    units = requested.units(stats.working_set)
    rows = replay_grid(sample, policies, units, seed=seed, jobs=jobs, on_progress=on_progress)
    curves = tuple(savings_curve(sample, units, rows[k :: len(policies)]) for k in range(len(policies)))
    recommendation = recommend(stats, units, curves)
    return CapacityPlan(
        stats=stats,
        sampled=None if sample.whole else len(sample.trace),
        slices=len(sample.slices),
        rate=sample.rate,
        capacities=tuple(units),
        curves=curves,
        oracle_prices=tuple(oracle_prices(sample.trace, [max(1, int(unit * sample.rate)) for unit in units])),
        recommendation=recommendation,
        projection=project(sample.trace, stats, recommendation.saved) if recommendation else None,
    )


def project(trace: Trace, stats: TraceStats, saved: float) -> Projection:
    """Return what a saving over the whole log projects to. Repeats are what a cache saves.

    trace   the replayed requests, which show how the saving is distributed over time
    """
    if trace.times is None or stats.seconds is None:
        return projection(None, saved)
    weights = trace.costs.copy()
    weights[firsts(trace)] = 0.0
    return projection(stats.seconds, saved, block_savings(trace.times, saved, weights, stats.seconds))


def savings_curve(sample: Sample, capacities: Sequence[int], rows: Sequence[Mapping[str, Any]]) -> SavingsCurve:
    """Derive savings, prices and the knee from the rows of a policy."""
    stats = sample.stats
    saved = [min(max(0.0, stats.total_cost - row["miss_cost"]), stats.largest_saving) for row in rows]
    errors = tuple((row["cost_ratio_error"] or 0.0) * stats.total_cost for row in rows)
    return SavingsCurve(
        policy=rows[0]["policy"],
        saved=tuple(saved),
        errors=None if sample.whole else errors,
        prices=tuple(prices(capacities, saved, stats.working_set)),
        knee=knee(capacities, saved, stats.largest_saving),
    )


def knee(capacities: Sequence[int], saved: Sequence[float], largest_saving: float) -> int | None:
    """Return the smallest capacity that reaches 90 % of the largest saving; None if none does or nothing can be saved.

    Between two capacities the saving is interpolated linearly in log(capacity). The result is rounded up.
    """
    target = KNEE_SHARE * largest_saving
    k = next((k for k, x in enumerate(saved) if 0.0 < target <= x), None)
    if not k:
        return None if k is None else capacities[0]
    step = (target - saved[k - 1]) / (saved[k] - saved[k - 1])
    ratio = float(capacities[k] / capacities[k - 1])
    return min(capacities[k], math.ceil(capacities[k - 1] * math.pow(ratio, step)))


def prices(capacities: Sequence[int], saved: Sequence[float], working_set: int) -> list[float | None]:
    """Return λ_k = (saved_{k+1} − saved_k) / (capacity_{k+1} − capacity_k) for each capacity.

    The last price is 0 if that capacity holds the working set, and None (unknown) otherwise.
    """
    slopes: list[float | None] = [
        (saved[k + 1] - saved[k]) / (capacities[k + 1] - capacities[k]) for k in range(len(capacities) - 1)
    ]
    return [*slopes, 0.0 if capacities[-1] >= working_set else None]


def oracle_prices(trace: Trace, capacities: Sequence[int]) -> list[float]:
    """Return the Oracle's price at each capacity: the density of the break item, or 0 if all items fit.

    An item is a key no larger than the capacity. Its value is the cost of its requests after the first, as in `static`.
    The result equals `oracle.solve(…).price`, from one sort and without solving for the set.
    """
    first = firsts(trace)
    values = np.bincount(trace.keys, trace.costs, minlength=trace.ids).astype(np.float64)
    values[trace.keys[first]] -= trace.costs[first]
    sizes = np.ones(trace.ids, np.int64)
    np.maximum.at(sizes, trace.keys, trace.sizes)
    valuable = np.flatnonzero(values > 0.0)
    density = values[valuable] / sizes[valuable]
    order = np.argsort(-density, kind="stable")
    density, sizes = density[order], sizes[valuable][order]
    found = []
    for capacity in capacities:
        fits = sizes <= capacity
        filled = np.cumsum(sizes[fits].astype(np.float64))  # as floats: the sum may overflow int64
        over = np.flatnonzero(filled > capacity)
        found.append(float(density[fits][over[0]]) if over.size else 0.0)
    return found


def recommend(stats: TraceStats, capacities: Sequence[int], curves: Sequence[SavingsCurve]) -> Recommendation | None:
    """Return the online policy with the smallest knee; without any knee, the one that saves most at the end of the
    range.
    """
    online = [curve for curve in curves if registry.find(curve.policy).online]
    if not online or not stats.largest_saving:
        return None
    knees = [(curve.knee, curve.policy) for curve in online if curve.knee is not None]
    if knees:
        capacity, policy = min(knees, key=lambda pair: pair[0])
        saved = max(KNEE_SHARE * stats.largest_saving, next(c.saved[0] for c in online if c.policy == policy))
        return Recommendation(policy, capacity, saved, at_knee=True)
    best = max(online, key=lambda curve: curve.saved[-1])
    return Recommendation(best.policy, capacities[-1], best.saved[-1], at_knee=False)
