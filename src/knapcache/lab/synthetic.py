"""Synthetic workloads: the paper's model, and traffic that violates its assumptions.

A workload is drawn in two steps from one generator that the caller seeds. First the queries: size S(q), probability
P(q), mean cost C*(q). Then the requests: one query per round, and its cost if it misses.

Distributions are named by a word and optional numbers after colons:

    sizes      uniform:10       1 … 10, all equally likely             arrivals   uniform
               lognormal:5.5    median 5.5, log-sd 0.8                            zipf:0.8      P ∝ rank^−0.8
               proportional     to the mean cost, mean 5.5                        power:2       floor(N·U^(1/2))
    costs      uniform:1:2      mean cost uniform in [1, 2]
               two:1:101        mean cost 1 or 101
               lognormal        median 1.5, log-sd 0.8

The cost of a miss is normal around C*(q). The paper also requires it to be bounded and positive, which a normal
variable is not. So it is drawn from the normal truncated to [0, 2·C*(q)]: symmetric, so its mean is exactly C*(q), and
never negative.

A workload of any length can be drawn in chunks, in the memory of its queries and one chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.kernel import kernel
from knapcache.lab.trace import Floats, Ints, Trace

PREFIX = "synthetic:"
"""The beginning of a workload's name, which stands for a file on the command line."""
CHUNK = 1 << 17
"""Requests in a chunk. Its arrays fit into the processor's cache."""
MAX_AMOUNT = 1e9
"""Largest size or cost parameter. Sums of larger ones would not stay exact."""


@dataclass(frozen=True, eq=False)
class Queries:
    """The parameters of the queries, which a policy has to learn."""

    sizes: Ints
    costs: Floats
    """C*(q)."""
    probabilities: Floats
    """P(q), one row per phase of popularity."""
    cost_range: tuple[float, float] | None
    """Bounds c1 and c2 of the mean costs; None for an unbounded distribution."""

    @property
    def values(self) -> Floats:
        """P(q)·C*(q), one row per phase."""
        return self.probabilities * self.costs


@dataclass(frozen=True)
class Workload:
    """The distributions of queries and requests."""

    queries: int = 100
    rounds: int = 20_000
    sizes: str = "uniform:10"
    arrivals: str = "zipf:0.8"
    costs: str = "uniform:1:2"
    noise: float = 1.0
    """Standard deviation of the cost of a miss, before truncation."""
    changes: int = 0
    """Number of times popularity is reshuffled, at equal distances."""
    one_hits: float = 0.0
    """Share of requests for a query that occurs only once."""

    def __post_init__(self) -> None:
        for name, minimum in (("queries", 1), ("rounds", 1), ("changes", 0)):
            if getattr(self, name) < minimum:
                raise InvalidInput(f"{name} must be at least {minimum}, not {getattr(self, name)}")
        if not 0.0 <= self.noise < np.inf:
            raise InvalidInput(f"noise must be finite and not negative, not {self.noise}")
        if not 0.0 <= self.one_hits < 1.0:
            raise InvalidInput(f"one_hits must be at least 0 and below 1, not {self.one_hits}")
        if self.changes >= self.rounds:
            raise InvalidInput(f"changes must be fewer than the {self.rounds} rounds, not {self.changes}")
        rng = np.random.default_rng(0)
        draw_queries(self, rng)  # raises InvalidInput for an invalid distribution

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a name such as `synthetic:queries=1e6,rounds=1e9,arrivals=zipf:0.9`; raises InvalidInput."""
        kinds: dict[str, Any] = {field.name: type(field.default) for field in fields(cls)}
        given: dict[str, Any] = {}
        for part in filter(None, text.removeprefix(PREFIX).split(",")):
            name, _, value = part.partition("=")
            try:
                given[name] = int(float(value)) if kinds[name] is int else kinds[name](value)
            except (KeyError, ValueError, OverflowError):
                raise InvalidInput(
                    f"{part!r} of {text!r} cannot be read: after {PREFIX} write NAME=VALUE,…, "
                    f"with the names {', '.join(kinds)}"
                ) from None
        return cls(**given)

    @property
    def phases(self) -> list[int]:
        """The rounds at which a phase of popularity begins."""
        return [k * self.rounds // (self.changes + 1) for k in range(self.changes + 1)]

    def draw(self, rng: np.random.Generator) -> tuple[Queries, Trace]:
        """Draw queries and requests. All randomness comes from `rng`."""
        queries = draw_queries(self, rng)
        (trace,) = draw_requests(self, queries, rng, self.rounds)
        return queries, trace

    def chunks(self, rng: np.random.Generator) -> Iterator[Trace]:
        """Draw queries and requests, and yield the requests in chunks that share their ids."""
        return draw_requests(self, draw_queries(self, rng), rng, CHUNK)


def draw_queries(workload: Workload, rng: np.random.Generator) -> Queries:
    n = workload.queries
    costs, cost_range = _mean_costs(workload.costs, n, rng)
    sizes = _sizes(workload.sizes, n, rng, costs)
    ranks = popularity(workload.arrivals, n)
    probabilities = np.array([rng.permutation(ranks) for _ in workload.phases])
    return Queries(sizes, costs, probabilities, cost_range)


def draw_requests(workload: Workload, queries: Queries, rng: np.random.Generator, size: int) -> Iterator[Trace]:
    """Draw the requests of a workload, at most `size` at a time. Queries that occur only once have ids after those of
    `queries`.
    """
    phases = [Inverse.of(p) for p in queries.probabilities]
    borders = np.array([*workload.phases, workload.rounds])
    ids = workload.queries
    for start in range(0, workload.rounds, size):
        count = min(size, workload.rounds - start)
        draws, ends = rng.random(count), np.clip(borders - start, 0, count)
        keys = np.concatenate([phase.keys(draws[ends[k] : ends[k + 1]]) for k, phase in enumerate(phases)])
        sizes, means = queries.sizes[keys], queries.costs[keys]
        one_hits = np.flatnonzero(rng.random(count) < workload.one_hits)
        if len(one_hits):
            keys[one_hits] = ids + np.arange(len(one_hits))
            means[one_hits], _ = _mean_costs(workload.costs, len(one_hits), rng)
            sizes[one_hits] = _sizes(workload.sizes, len(one_hits), rng, means[one_hits])
            ids += len(one_hits)
        yield Trace(keys, sizes, truncated_normal(means, workload.noise, rng), ids)


@dataclass(frozen=True, eq=False)
class Inverse:
    """The inverse of a distribution function F, with a guide table: the first key to try for each part of [0, 1).

    Equal to `np.searchsorted(F, draws, side="right")`. Binary search in the F of 10^6 keys takes many times as long.
    """

    distribution: Floats
    guide: Ints

    @classmethod
    def of(cls, probabilities: Floats) -> Self:
        distribution = probabilities.cumsum()
        distribution /= distribution[-1]
        parts = 1 << len(distribution).bit_length()  # a power of two: u · parts is exact
        return cls(distribution, np.searchsorted(distribution, np.arange(parts) / parts, side="right"))

    def keys(self, draws: Floats) -> Ints:
        keys = np.empty(len(draws), np.int64)
        invert(self.distribution, self.guide, draws, keys)
        return keys


@kernel
def invert(distribution: Floats, guide: Ints, draws: Floats, keys: Ints) -> None:
    """Fill `keys` with the number of values of `distribution` that are at most the draw."""
    for k in range(len(draws)):
        i = guide[int(draws[k] * len(guide))]
        while distribution[i] <= draws[k]:
            i += 1
        keys[k] = i


def truncated_normal(means: Floats, sd: float, rng: np.random.Generator) -> Floats:
    """Draw from the normal around each mean, truncated to [0, 2·mean], by rejection sampling.

    If the deviation exceeds the mean, most normal proposals would be rejected, so proposals are uniform. Either way at
    least two in three are accepted.
    """
    costs = np.empty(len(means))
    wide = sd > means
    rest = np.arange(len(means))
    while rest.size:
        mean, uniform = means[rest], wide[rest]
        draw = rng.normal(mean, np.where(uniform, 0.0, sd))
        if uniform.any():
            draw[uniform] = rng.uniform(0.0, 2.0 * mean[uniform])
            height = np.exp(-0.5 * ((draw[uniform] - mean[uniform]) / sd) ** 2)
            draw[np.flatnonzero(uniform)[rng.random(len(height)) >= height]] = -1.0
        costs[rest] = draw
        rest = rest[np.abs(draw - mean) > mean]
    return costs


def popularity(word: str, n: int) -> Floats:
    """Return the probabilities of n queries, by rank."""
    kind, numbers = _parse("arrivals", word, {"uniform": (), "zipf": (0.8,), "power": (2.0,)})
    if kind == "power":
        a = _positive("arrivals", word, numbers[0])
        return np.diff((np.arange(n + 1) / n) ** a)
    exponent = numbers[0] if kind == "zipf" else 0.0
    if not 0.0 <= exponent <= 20.0:
        raise InvalidInput(f"arrivals {word!r}: the exponent must be between 0 and 20")
    weights = np.arange(1.0, n + 1.0) ** -exponent
    return np.asarray(weights / weights.sum(), np.float64)


def _mean_costs(word: str, n: int, rng: np.random.Generator) -> tuple[Floats, tuple[float, float] | None]:
    kind, numbers = _parse("costs", word, {"uniform": (1.0, 2.0), "two": (1.0, 101.0), "lognormal": (1.5,)})
    if kind == "lognormal":
        return _positive("costs", word, numbers[0]) * rng.lognormal(0.0, 0.8, n), None
    low, high = numbers
    if not 0.0 < low <= high <= MAX_AMOUNT:
        raise InvalidInput(f"costs {word!r}: bounds must be above 0, increasing and at most {MAX_AMOUNT:g}")
    return (rng.uniform(low, high, n) if kind == "uniform" else rng.choice([low, high], n)), (low, high)


def _sizes(word: str, n: int, rng: np.random.Generator, costs: Floats) -> Ints:
    kind, numbers = _parse("sizes", word, {"uniform": (10.0,), "lognormal": (5.5,), "proportional": ()})
    if kind == "uniform":
        largest = _positive("sizes", word, numbers[0])
        if largest != int(largest):
            raise InvalidInput(f"sizes {word!r}: the largest size must be a whole number")
        return rng.integers(1, int(largest) + 1, n)
    if kind == "lognormal":
        drawn = _positive("sizes", word, numbers[0]) * rng.lognormal(0.0, 0.8, n)
    else:
        drawn = 5.5 * costs / costs.mean()
    return np.maximum(1, np.rint(drawn)).astype(np.int64)


def _parse(what: str, word: str, kinds: dict[str, tuple[float, ...]]) -> tuple[str, tuple[float, ...]]:
    """Parse "kind:number:number". `kinds` gives the default numbers of each kind."""
    kind, *rest = word.split(":")
    allowed = ", ".join(":".join([k, *(f"{x:g}" for x in numbers)]) for k, numbers in kinds.items())
    try:
        numbers = tuple(float(x) for x in rest) or kinds[kind]
        if len(numbers) != len(kinds[kind]) or not np.isfinite(numbers).all():
            raise ValueError
    except (KeyError, ValueError):
        raise InvalidInput(f"{what} {word!r} cannot be read; examples: {allowed}") from None
    return kind, numbers


def _positive(what: str, word: str, number: float) -> float:
    if not 0.0 < number <= MAX_AMOUNT:
        raise InvalidInput(f"{what} {word!r}: the number must be above 0 and at most {MAX_AMOUNT:g}")
    return number
