"""Instances of the paper's problem whose smallest gap Δ_min is prescribed, and requests that meet its assumptions.

An instance is drawn as in the paper's simulation: sizes, arrival probabilities, mean costs between 1 and 2. Then the
mean cost of each query of the best set M* is moved by λ, and that of each other query by −λ. This moves the gap of a
valid set A by λ·P(M* Δ A), the probability of the symmetric difference. So exactly one λ gives the prescribed Δ_min,
and M* stays the best set. The same draw with another Δ_min has the same M*, sizes and probabilities.

The cost of a miss is c1 or c2, with mean C*(q). The theorems ask for costs within [c1, c2]; no other distribution there
has a larger variance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.lab.synthetic import Queries, Workload, draw_queries
from knapcache.lab.trace import Floats, Ints, Trace
from knapcache_experiments.theory import gaps
from knapcache_experiments.valid_sets import BanditInstance

C1, C2 = 0.5, 2.5
"""Range of the cost of a miss."""
MAX_SHIFT = 0.45
"""Largest |λ|. Mean costs stay within [c1, c2]."""
MAX_DRAWS = 1_000
"""Instances that are drawn before the prescribed gap counts as impossible."""


@dataclass(frozen=True, kw_only=True)
class GapWorkload:
    """A random instance with a prescribed smallest gap, and its requests."""

    queries: int
    rounds: int
    capacity: int
    sizes: str
    arrivals: str
    gap: float
    """Δ_min."""
    reach: float
    """The largest gap of a sweep. Draws that cannot have it are rejected, so that all gaps have the same draws."""
    one_hits: float = 0.0

    @property
    def phases(self) -> list[int]:
        """Popularity never changes."""
        return [0]

    def instance(self, rng: np.random.Generator) -> BanditInstance:
        """Draw the instance."""
        workload = Workload(queries=self.queries, rounds=1, sizes=self.sizes, arrivals=self.arrivals)
        for _ in range(MAX_DRAWS):
            drawn = draw_queries(workload, rng)
            base = BanditInstance(drawn.probabilities[0], drawn.costs, drawn.sizes, self.capacity)
            found = with_gap(base, self.gap, reach=self.reach)
            if found is not None:
                return found
        raise InvalidInput(
            f"no gap of {max(self.gap, self.reach)} in {MAX_DRAWS} instances of {self.queries} queries and capacity "
            f"{self.capacity}; give smaller gaps"
        )

    def draw(self, rng: np.random.Generator) -> tuple[Queries, Trace]:
        """Draw the instance and its requests."""
        instance = self.instance(rng)
        keys = rng.choice(self.queries, self.rounds, p=instance.probabilities)
        costs = two_costs(instance.costs[keys], C1, C2, rng)
        queries = Queries(instance.sizes, instance.costs, instance.probabilities[None, :], (C1, C2))
        return queries, Trace(keys, instance.sizes[keys], costs, self.queries)


def with_gap(base: BanditInstance, gap: float, *, reach: float) -> BanditInstance | None:
    """Return the instance with mean costs moved so that Δ_min = gap, or None if `gap` or `reach` needs a |λ| that is
    too large, or only one set is valid.
    """
    found = gaps(base)
    others = (found.valid != found.optimal).any(axis=1)
    if not others.any():
        return None
    moved = (found.valid[others] != found.optimal) @ base.probabilities  # P(M* Δ A)
    shift, most = (float(((target - found.of_set[others]) / moved).max()) for target in (gap, max(gap, reach)))
    if max(abs(shift), abs(most)) > MAX_SHIFT:
        return None
    costs = base.costs + np.where(found.optimal, shift, -shift)
    return BanditInstance(base.probabilities, costs, base.sizes, base.capacity)


def two_costs(means: Floats, low: float, high: float, rng: np.random.Generator) -> Floats:
    """Draw each cost from {low, high} with the given mean."""
    return np.where(rng.random(len(means)) < (means - low) / (high - low), high, low)


@dataclass(frozen=True, kw_only=True)
class NearTies:
    """Equal sizes, equal probabilities, and two mean costs: `capacity` queries cost `difference` more than the others.

    The best set is the set of expensive queries. The number of wrong choices is largest when the difference is about as
    large as the error of a mean cost, of which a query has at most T/N observations.
    """

    queries: int
    rounds: int
    capacity: int
    difference: float
    one_hits: float = 0.0

    @property
    def phases(self) -> list[int]:
        """Popularity never changes."""
        return [0]

    def draw(self, rng: np.random.Generator) -> tuple[Queries, Trace]:
        """Draw which queries are expensive, and the requests."""
        sizes: Ints = np.ones(self.queries, np.int64)
        middle = (C1 + C2) / 2
        costs = np.full(self.queries, middle - self.difference / 2)
        costs[rng.permutation(self.queries)[: self.capacity]] += self.difference
        probabilities = np.full(self.queries, 1 / self.queries)
        keys = rng.integers(0, self.queries, self.rounds)
        trace = Trace(keys, sizes[keys], two_costs(costs[keys], C1, C2, rng), self.queries)
        return Queries(sizes, costs, probabilities[None, :], (C1, C2)), trace
