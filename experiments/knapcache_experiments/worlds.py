"""Random worlds: traffic drawn from a wide family, so that a policy cannot be tuned to all of it.

A world is a mixture of one to four components. Its seed determines everything. A component has a kind, a share of the
requests over time, sizes and costs:

    kind        stationary   Zipf popularity
                tenants      Zipf popularity of several populations, whose sizes and costs differ by large factors
                changes      Zipf popularity, reshuffled abruptly, in two to twenty phases
                churn        Zipf popularity; each rank passes to a new key at its own times
                news         keys appear, are popular at once and fade
                chats        sessions: a key is requested a geometric number of times, then never again
                contexts     sessions with one key each; its cost grows with every turn, its size is that of the last
                turns        sessions whose every turn is a new key, larger and more expensive than the turn before
                loop         keys in an endless cycle
                scan         keys that are requested once
                flood        the same, in a few bursts

    share       constant, diurnal (a sine wave), or a window (the component begins late or ends early); floods: bursts
    sizes       of each key: constant, uniform or log-normal. In a third of the components every answer to a key has
                another size, as if the model answered at another length
    costs       of each key: constant, uniform or log-normal, independent of its size; or proportional to the size, with
                or without a fixed part; or inversely proportional to it. Half the components multiply the cost of
                every request by noise

A context has the size of its last turn from the beginning. If it grew with every turn, then an answer that stays
resident would keep the size of its first turn, because sizes are settled only by misses. One early admission would
decide over the whole session.

A draw in which fewer than MIN_EFFECTIVE_KEYS keys make up the cost is rejected and drawn again: there a handful of
misses decides, and the comparison of policies measures luck. The number is Kish's effective sample size,
(Σ c)² / Σ c², over the total costs c of the keys.

An *unrestricted* world has neither restriction: contexts grow in size too, and the first draw is accepted.

The capacities of a world are shares of its returning working set: the sizes of the keys that are requested more than
once. Keys that never return take no part, because capacity for them would hold everything worth holding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.lab import traffic
from knapcache.lab.trace import Floats, Ints, Trace

DEVELOPMENT, HELD_OUT, UNRESTRICTED = range(100), range(3000, 3100), range(2000, 2050)
"""Seeds of the worlds that a policy may be developed on, and of those that only the final benchmark evaluates: held-out
worlds like those for development, and unrestricted ones."""
REQUESTS = (20_000, 60_000)
SHARES = ((0.005, 0.05), (0.05, 0.5))
"""Ranges of a world's capacities, as shares of the returning working set. Each is drawn log-uniformly."""
MAX_COMPONENTS = 4
MIN_EFFECTIVE_KEYS = 30
MAX_DRAWS = 20
"""Draws of a world. The last is accepted in any case: a few requests cannot have many keys."""
SIZES = (1, 100_000_000)
"""Limits of a size, so that no key fills the working set alone."""
Keys = tuple[Ints, Ints, str]
"""Keys of a component's requests in order, the turn of each (0: sizes and costs do not grow), and a description."""


@dataclass(frozen=True, eq=False)
class World:
    """A trace and the capacities to replay it at."""

    seed: int
    trace: Trace
    capacities: tuple[int, ...]
    """In units of size, increasing."""
    shares: tuple[float, ...]
    """The capacities as shares of the returning working set."""
    description: str
    """The components with all their parameters."""


def draw_world(seed: int, *, requests: int | None = None, unrestricted: bool = False) -> World:
    """Draw a world. The number of requests is random unless given. Equal arguments give equal worlds."""
    if seed < 0 or (requests is not None and requests < 1):
        raise InvalidInput(f"seed must be at least 0 and requests at least 1, not {seed} and {requests}")
    rng = np.random.default_rng([seed, 0x776F726C64])  # other streams than those of traffic.py
    for _ in range(MAX_DRAWS):
        drawn = round(log_uniform(rng, *REQUESTS))
        trace, texts = draw_requests(rng, drawn if requests is None else requests, growing_sizes=unrestricted)
        if unrestricted or effective_keys(trace) >= MIN_EFFECTIVE_KEYS:
            break
    shares = tuple(log_uniform(rng, *limits) for limits in SHARES)
    base = returning_working_set(trace)
    return World(
        seed=seed,
        trace=trace,
        capacities=tuple(max(1, int(share * base)) for share in shares),
        shares=shares,
        description=f"{len(trace)} requests: {'; '.join(texts)}",
    )


def draw_requests(rng: np.random.Generator, count: int, *, growing_sizes: bool) -> tuple[Trace, list[str]]:
    """Draw the requests of a world, and the descriptions of its components."""
    names = [draw_kind(rng, first=k == 0) for k in range(rng.integers(1, MAX_COMPONENTS, endpoint=True))]
    profiles = [draw_share(rng, count, flood=name == "flood") for name in names]
    which = interleave(rng, [share for share, _ in profiles])
    keys, sizes, costs = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count)
    texts, taken = [], 0
    for k, (name, (_, share_text)) in enumerate(zip(names, profiles, strict=True)):
        here = np.flatnonzero(which == k)
        if not len(here):
            continue
        own, turns, text = KINDS[name](rng, len(here))
        distinct, own = np.unique(own, return_inverse=True)
        keys[here] = taken + own
        taken += len(distinct)
        amounts = draw_amounts(rng, len(distinct), tenants=int(rng.integers(2, 7)) if name == "tenants" else 1)
        sizes[here], costs[here], growth = amounts.of_requests(rng, own, turns, growing_sizes=growing_sizes)
        texts.append(f"{name}({text}), {len(here) / count:.0%} {share_text}, {amounts.text}{growth}")
    distinct, keys = np.unique(keys, return_inverse=True)
    return Trace(keys, sizes, costs, len(distinct)), texts


def effective_keys(trace: Trace) -> float:
    """Return the effective number of keys that make up the cost of a trace."""
    costs = np.bincount(trace.keys, trace.costs)
    return float(costs.sum() ** 2 / (costs**2).sum())


def returning_working_set(trace: Trace) -> int:
    """Return the sum of the largest sizes of the keys that are requested more than once, or of all keys if none is."""
    largest = np.zeros(trace.ids, np.int64)
    np.maximum.at(largest, trace.keys, trace.sizes)
    return int(largest[np.bincount(trace.keys, minlength=trace.ids) > 1].sum()) or trace.working_set


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


# Kinds of components. Each draws its parameters, then the keys of its requests.


def stationary(rng: np.random.Generator, requests: int) -> Keys:
    count, exponent = round(log_uniform(rng, 50, 20_000)), rng.uniform(0.3, 1.4)
    return _no_turns(traffic.zipf(rng, requests, count, exponent), f"keys {count}, exponent {exponent:.2f}")


def changes(rng: np.random.Generator, requests: int) -> Keys:
    count, exponent = round(log_uniform(rng, 50, 10_000)), rng.uniform(0.5, 1.4)
    phases = int(rng.integers(2, 20, endpoint=True))
    keys = traffic.changes(rng, requests, count, exponent, phases)
    return _no_turns(keys, f"keys {count}, exponent {exponent:.2f}, phases {phases}")


def churn(rng: np.random.Generator, requests: int) -> Keys:
    ranks, exponent = round(log_uniform(rng, 50, 5_000)), rng.uniform(0.5, 1.4)
    lives = log_uniform(rng, 1, 30)
    rank = traffic.zipf(rng, requests, ranks, exponent)
    generation = np.floor(lives * np.arange(requests) / requests + rng.random(ranks)[rank]).astype(np.int64)
    return _no_turns(rank + ranks * generation, f"ranks {ranks}, exponent {exponent:.2f}, lives {lives:.1f}")


def news(rng: np.random.Generator, requests: int) -> Keys:
    lifetime, per_key = log_uniform(rng, 0.002, 0.3), int(rng.integers(2, 20, endpoint=True))
    keys = traffic.news(rng, requests, lifetime, per_key)
    return _no_turns(keys, f"lifetime {lifetime:.3f}, requests per key {per_key}")


def chats(rng: np.random.Generator, requests: int) -> Keys:
    keys, text = _sessions(rng, requests, 2, 10)
    return _no_turns(keys, text)


def contexts(rng: np.random.Generator, requests: int) -> Keys:
    keys, text = _sessions(rng, requests, 4, 100)
    return keys, occurrence(keys), text


def turns(rng: np.random.Generator, requests: int) -> Keys:
    keys, text = _sessions(rng, requests, 8, 200)
    per_turn = int(rng.integers(2, 5, endpoint=True))
    turn = occurrence(keys) // per_turn
    return keys * (1 + int(turn.max())) + turn, turn, f"{text}, requests per turn {per_turn}"


def loop(rng: np.random.Generator, requests: int) -> Keys:
    count = round(log_uniform(rng, 50, 5_000))
    return _no_turns(np.arange(requests) % count, f"keys {count}")


def scan(_: np.random.Generator, requests: int) -> Keys:
    return _no_turns(np.arange(requests), f"keys {requests}")


KINDS: dict[str, Callable[[np.random.Generator, int], Keys]] = {
    "stationary": stationary, "tenants": stationary, "changes": changes, "churn": churn, "news": news, "chats": chats,
    "contexts": contexts, "turns": turns, "loop": loop, "scan": scan, "flood": scan,
}  # fmt: skip
NEVER_RETURN = ("scan", "flood")


def draw_kind(rng: np.random.Generator, *, first: bool) -> str:
    """Draw a kind. The first component of a world has keys that return: without any, all policies pay the same."""
    return str(rng.choice([name for name in KINDS if not (first and name in NEVER_RETURN)]))


def occurrence(keys: Ints) -> Ints:
    """Return for each request how often its key was requested before."""
    order = np.argsort(keys, kind="stable")
    first = np.flatnonzero(np.diff(keys[order], prepend=-1))
    count = np.empty(len(keys), np.int64)
    count[order] = np.arange(len(keys)) - np.repeat(first, np.diff(first, append=len(keys)))
    return count


def _no_turns(keys: Ints, text: str) -> Keys:
    return keys, np.zeros(len(keys), np.int64), text


def _sessions(rng: np.random.Generator, requests: int, shortest: float, longest: float) -> tuple[Ints, str]:
    """Draw session numbers. The mean length is between `shortest` and `longest` requests."""
    mean, gap, spread = log_uniform(rng, shortest, longest), log_uniform(rng, 1, 300), rng.uniform(0.3, 2.0)
    keys = traffic.sessions(rng, requests, 1 - 1 / mean, gap, spread)
    return keys, f"mean length {mean:.1f}, gap {gap:.1f} with log-sd {spread:.2f}"


# Shares of the requests over time.


def draw_share(rng: np.random.Generator, requests: int, *, flood: bool) -> tuple[Floats, str]:
    """Draw a component's weight at each request, and its description."""
    time = np.arange(requests) / requests
    weight = float(rng.lognormal(0.0, 0.8))
    if flood:
        bursts, length = int(rng.integers(1, 8, endpoint=True)), log_uniform(rng, 0.005, 0.1)
        starts = rng.uniform(0.0, 1.0 - length, bursts)
        during = np.any((time[:, None] >= starts) & (time[:, None] < starts + length), axis=1)
        return np.where(during, 4.0 * weight, 0.0), f"in {bursts} bursts of {length:.1%}"
    form = rng.choice(["constant", "diurnal", "window"], p=[0.5, 0.3, 0.2])
    if form == "diurnal":
        cycles, depth, phase = log_uniform(rng, 1, 12), rng.uniform(0.5, 1.0), rng.random()
        wave = 1.0 + depth * np.sin(2 * np.pi * (cycles * time + phase))
        return weight * wave, f"diurnal, {cycles:.1f} cycles of depth {depth:.2f}"
    if form == "window":
        change = rng.uniform(0.1, 0.9)
        start, end = (change, 1.0) if rng.random() < 0.5 else (0.0, change)
        return np.where((time >= start) & (time < end), weight, 0.0), f"from {start:.0%} to {end:.0%}"
    return np.full(requests, weight), "constant"


def interleave(rng: np.random.Generator, shares: list[Floats]) -> Ints:
    """Draw the component of each request with probabilities proportional to the shares at that time."""
    cumulative = np.cumsum(np.stack(shares) + 1e-9, axis=0)  # where every share is 0, all are equally likely
    drawn = rng.random(cumulative.shape[1]) * cumulative[-1]
    below: Ints = (drawn >= cumulative).sum(axis=0)
    return np.minimum(below, len(shares) - 1)  # rounding may reach the last border


# Sizes and costs.


@dataclass(frozen=True, eq=False)
class KeyAmounts:
    """Sizes and mean costs of a component's keys."""

    sizes: Floats
    costs: Floats
    noise: float
    """Log-sd of a request's cost around the mean of its key."""
    text: str
    size_noise: float = 0.0
    """Log-sd of the size of a request's answer around the size of its key."""

    def of_requests(
        self, rng: np.random.Generator, keys: Ints, turns: Ints, *, growing_sizes: bool = False
    ) -> tuple[Ints, Floats, str]:
        """Return the size and cost of each request. The cost grows linearly with the turn; the growth is drawn.

        Without `growing_sizes`, all requests of a key have the size of its last turn.
        """
        noise = rng.lognormal(-(self.noise**2) / 2, self.noise, len(keys)) if self.noise else 1.0
        length = rng.lognormal(-(self.size_noise**2) / 2, self.size_noise, len(keys)) if self.size_noise else 1.0
        last = np.zeros(len(self.sizes), np.int64)
        np.maximum.at(last, keys, turns)
        per_turn = log_uniform(rng, 0.02, 1.0) if turns.any() else 0.0
        growth = np.ones(len(keys)) + per_turn * turns
        text = f", growth {per_turn:.2f} per turn" if per_turn else ""
        full = self.sizes[keys] * (growth if growing_sizes else 1.0 + per_turn * last[keys]) * length
        sizes = np.clip(np.ceil(full), *SIZES).astype(np.int64)
        return sizes, self.costs[keys] * growth * noise, text


def draw_amounts(rng: np.random.Generator, keys: int, *, tenants: int = 1) -> KeyAmounts:
    """Draw sizes and costs for each key. Each of several tenants has its own factors."""
    size_scale, cost_scale = log_uniform(rng, 300, 30_000), log_uniform(rng, 0.1, 10)
    sizes, size_text = draw_spread(rng, keys)
    relation = rng.choice(["independent", "proportional", "inverse"])
    if relation == "independent":
        costs, cost_text = draw_spread(rng, keys)
        relation_text = f"costs independent, {cost_text}"
    elif relation == "proportional":
        fixed = rng.choice([0.0, rng.uniform(0.0, 0.9)])
        costs, relation_text = fixed + (1.0 - fixed) * sizes, f"costs proportional, fixed part {fixed:.2f}"
    else:
        costs, relation_text = 1.0 / sizes, "costs inverse"
    if tenants > 1:
        tenant = rng.integers(0, tenants, keys)
        size_factors, cost_factors = rng.lognormal(0.0, 1.5, (2, tenants))
        sizes, costs = sizes * size_factors[tenant], costs * cost_factors[tenant]
        relation_text += f", {tenants} tenants"
    noise, size_noise = float(rng.choice([0.0, 0.28])), float(rng.choice([0.0, 0.0, 0.3]))
    text = (
        f"sizes {size_scale:.0f} × {size_text}, size noise {size_noise:g}, {relation_text}, "
        f"cost scale {cost_scale:.2f}, noise {noise:g}"
    )
    return KeyAmounts(sizes=size_scale * sizes, costs=cost_scale * costs, noise=noise, text=text, size_noise=size_noise)


def draw_spread(rng: np.random.Generator, count: int) -> tuple[Floats, str]:
    """Draw positive numbers around 1."""
    form = rng.choice(["constant", "uniform", "log-normal"], p=[0.2, 0.3, 0.5])
    if form == "constant":
        return np.ones(count), "constant"
    if form == "uniform":
        low = rng.uniform(0.01, 0.9)
        return rng.uniform(low, 2.0 - low, count), f"uniform {low:.2f}–{2 - low:.2f}"
    sd = rng.uniform(0.3, 2.0)
    return rng.lognormal(0.0, sd, count), f"log-normal {sd:.2f}"
