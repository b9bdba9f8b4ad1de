"""How much room is worth its money: what policies save over a range of budgets, and where more room stops paying.

    saving   what requests would cost without a cache, less what they cost with one
    largest  the saving with room for everything: all requests but the first for each key
    knee     the smallest budget with which a policy reaches 90 % of the largest saving
    price λ  what one more unit of room would save: the slope of the saving to the next budget

The knee could be where the curve of saving over the logarithm of room lies farthest above its chord. That point moves
when the range moves, and on many logs there is no bend to find: popularity that falls as a power of the rank makes the
curve almost straight. A share of the largest saving depends on the log and the policy alone, and it is a sentence one
can repeat: with this much room you have nine tenths of all there is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from knapcache.policy import registry
from knapcache.sim.capacity import Range
from knapcache.sim.executors import Jobs
from knapcache.sim.grid import Cell, choices, replay_cells, require_use
from knapcache.sim.sampling import AUTO, Sample, take
from knapcache.sim.trace import Floats, Ints, Trace

POLICIES = ("adaptive", "gdsf-cost", "lru", "static")
RANGE = "0.5%..100%"
ENOUGH = 0.9
"""Share of the largest saving that makes the knee."""
DAY = 86_400.0
SHORTEST = 1.0
"""Seconds a log must span to say anything per day."""


@dataclass(frozen=True)
class Facts:
    """What the log says by itself, all of it, whatever is sampled later."""

    requests: int
    keys: int
    working_set: int
    total_cost: float
    largest: float
    """The saving with room for everything."""
    days: float | None
    """From the first request to the last, where the log has times that lie apart."""

    @property
    def per(self) -> str:
        """What savings are counted by."""
        return "request" if self.days is None else "day"

    def rate(self, saved: float) -> float:
        """A saving over the whole log as one per day, or where days are not known per request."""
        return saved / (self.requests if self.days is None else self.days)


@dataclass(frozen=True)
class Curve:
    """What a policy saves at each budget, per day or per request."""

    policy: str
    saved: tuple[float, ...]
    errors: tuple[float, ...] | None
    """Standard errors of that; None where the whole log was replayed."""
    prices: tuple[float | None, ...]
    knee: int | None
    """In units of room; None where no budget is enough."""


@dataclass(frozen=True)
class Advice:
    """A policy that a cache can run, how much room to give it, and what that saves, per day or per request."""

    policy: str
    budget: int
    saved: float
    enough: bool
    """The budget is the policy's knee; otherwise it is the largest there was."""


@dataclass(frozen=True)
class Plan:
    """Everything there is to say."""

    facts: Facts
    sampled: int | None
    """Requests that were replayed for each policy and budget; None for all of them."""
    slices: int
    budgets: tuple[int, ...]
    curves: tuple[Curve, ...]
    oracle_prices: tuple[float, ...]
    """The Oracle's price of a unit of room, for the best fixed set in hindsight, at each budget."""
    advice: Advice | None
    """None where there is nothing to save, or no policy that a cache can run."""

    def curve(self, policy: str) -> Curve:
        """The curve of a policy."""
        return next(curve for curve in self.curves if curve.policy == policy)


def make_plan(
    trace: Trace,
    policies: Sequence[str] = POLICIES,
    capacities: Range | str = RANGE,
    *,
    sample: int | None = AUTO,
    seed: int = 0,
    jobs: Jobs = None,
) -> Plan:
    """Replay a trace, or a sample of it, with every policy at every budget. Equal seeds give equal plans."""
    wanted = Range.parse(capacities) if isinstance(capacities, str) else capacities
    choices(policies, wanted.given, seed, jobs)
    require_use(trace)
    facts = facts_of(trace)
    budgets = wanted.units(facts.working_set)
    taken = take(trace, sample, seed=seed)
    cells = [
        Cell(policy, taken.room(budget), seed, k)
        for policy in policies
        for budget in budgets
        for k in range(len(taken.slices))
    ]
    rows = replay_cells(taken.slices, cells, jobs=jobs)
    paid = np.array([row["miss_cost"] for row in rows]).reshape(len(policies), len(budgets), -1)
    curves = tuple(curve_of(name, facts, budgets, *savings(facts, taken, paid[k])) for k, name in enumerate(policies))
    return Plan(
        facts,
        None if taken.whole else sum(map(len, taken.slices)),
        len(taken.slices),
        tuple(budgets),
        curves,
        tuple(facts.rate(price) for price in oracle_prices(trace, budgets)),
        advise(facts, budgets, curves),
    )


def facts_of(trace: Trace) -> Facts:
    """Count."""
    days = None
    if trace.times is not None and len(trace):
        span = float(trace.times.max() - trace.times.min())
        days = span / DAY if SHORTEST <= span < np.inf else None
    total = trace.total_cost
    # Not below 0, where rounding would have it.
    largest = max(0.0, total - float(trace.costs[firsts(trace)].sum()))
    return Facts(len(trace), len(np.unique(trace.keys)), trace.working_set, total, largest, days)


def firsts(trace: Trace) -> Ints:
    """The first request for each key: no cache can answer it."""
    return np.unique(trace.keys, return_index=True)[1]


def savings(facts: Facts, sample: Sample, paid: Floats) -> tuple[Floats, Floats | None]:
    """Savings over the whole log, and their standard errors, from what misses cost (a row a budget, a column a slice).

    First requests always miss, and what they cost is known for the whole log. What a slice with a share R of the keys
    paid for its other misses, over R, estimates what the whole log pays for them; the saving is the rest of the largest
    saving. Rejected: the cost ratio of the slices. A popular key that happens to be in moves it much, although it is a
    hit nearly always and says nothing on misses (SHARDS-adj corrects the same error).
    """
    if sample.whole:
        return np.clip(facts.total_cost - paid[:, 0], 0.0, facts.largest), None
    first = np.array([piece.costs[firsts(piece)].sum() for piece in sample.slices])
    avoidable = np.maximum(paid - first, 0.0) / sample.rate
    errors = avoidable.std(axis=1, ddof=1) / np.sqrt(avoidable.shape[1])
    return np.clip(facts.largest - avoidable.mean(axis=1), 0.0, facts.largest), errors


def curve_of(policy: str, facts: Facts, budgets: Sequence[int], saved: Floats, errors: Floats | None) -> Curve:
    """Savings as rates, with what follows from them."""
    rates = [facts.rate(x) for x in saved.tolist()]
    return Curve(
        policy,
        tuple(rates),
        None if errors is None else tuple(facts.rate(x) for x in errors.tolist()),
        tuple(prices(budgets, rates, facts.working_set)),
        knee(budgets, rates, facts.rate(facts.largest)),
    )


def knee(budgets: Sequence[int], saved: Sequence[float], largest: float) -> int | None:
    """The smallest room with which 90 % of the largest saving is reached; None if none does, or nothing can be saved.

    Between two budgets the saving is taken to grow with the logarithm of the room, as it does between the points of a
    plot; the room is rounded up.
    """
    enough = ENOUGH * largest
    k = next((k for k, x in enumerate(saved) if 0.0 < enough <= x), None)
    if not k:
        return None if k is None else budgets[0]
    step = (enough - saved[k - 1]) / (saved[k] - saved[k - 1])
    ratio = float(budgets[k] / budgets[k - 1])
    return min(budgets[k], math.ceil(budgets[k - 1] * math.pow(ratio, step)))


def prices(budgets: Sequence[int], saved: Sequence[float], working_set: int) -> list[float | None]:
    """λ_k = (saved_{k+1} − saved_k) / (budget_{k+1} − budget_k): what a unit of room more than budget k saves.

    Behind the last budget it is 0 if everything fits there, and otherwise not known.
    """
    slopes: list[float | None] = [
        (saved[k + 1] - saved[k]) / (budgets[k + 1] - budgets[k]) for k in range(len(budgets) - 1)
    ]
    return [*slopes, 0.0 if budgets[-1] >= working_set else None]


def oracle_prices(trace: Trace, budgets: Sequence[int]) -> list[float]:
    """The price of room for the best fixed set: of the items that fit into the budget alone, by falling value per unit,
    the value per unit of the first that does not fit any more; 0 where all do. A key's value is what its requests cost
    after the first, as for `static`.

    This is `oracle.solve(…).price` at every budget, from one sort and without solving for the set.
    """
    first = firsts(trace)
    values = np.bincount(trace.keys, trace.costs, minlength=trace.ids).astype(np.float64)
    values[trace.keys[first]] -= trace.costs[first]
    room = np.ones(trace.ids, np.int64)
    np.maximum.at(room, trace.keys, trace.sizes)
    worth = np.flatnonzero(values > 0.0)
    density = values[worth] / room[worth]
    order = np.argsort(-density, kind="stable")
    density, room = density[order], room[worth][order]
    found = []
    for budget in budgets:
        fits = room <= budget
        filled = np.cumsum(room[fits].astype(np.float64))  # as floats: the sum may be more than 64 bits hold
        over = np.flatnonzero(filled > budget)
        found.append(float(density[fits][over[0]]) if over.size else 0.0)
    return found


def advise(facts: Facts, budgets: Sequence[int], curves: Sequence[Curve]) -> Advice | None:
    """The policy with the smallest knee; where none has one, the policy that saves most with the most room."""
    online = [curve for curve in curves if registry.find(curve.policy).online]
    if not online or not facts.largest:
        return None
    kneed = [(curve.knee, curve.policy) for curve in online if curve.knee is not None]
    if kneed:
        budget, policy = min(kneed, key=lambda pair: pair[0])
        saved = max(ENOUGH * facts.rate(facts.largest), next(c.saved[0] for c in online if c.policy == policy))
        return Advice(policy, budget, saved, enough=True)
    best = max(online, key=lambda curve: curve.saved[-1])
    return Advice(best.policy, budgets[-1], best.saved[-1], enough=False)
