"""Synthetic traffic of several kinds. Each kind favours a different caching strategy, on the right:

    sessions      a geometric number of requests at log-normal distances, then none             recency
    changes       Zipf popularity that is reshuffled five times                                 forgetting old counts
    flood         Zipf, with 60 % of requests for keys that never return                        selective admission
    loop          Zipf, with 30 % of requests from a repeating scan                             resistance to scans
    stationary    constant Zipf popularity, costs independent of sizes                          frequency
    news          keys appear, are popular at once and fade                                     decaying frequency
    half          half sessions, half Zipf                                                      a mix of both

Sizes and costs are like those of LLM answers. The number of tokens is log-normal, at four bytes each. The cost of a
miss is a start time plus a time per token, times noise drawn for every request. All kinds are models: good results show
that a policy is not tuned to a few files, and say nothing about real traffic.
"""

from __future__ import annotations

import itertools

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.lab.synthetic import popularity
from knapcache.lab.trace import Floats, Ints, Trace

MEDIAN_TOKENS, BYTES_PER_TOKEN = 245.0, 4
SECONDS, SECONDS_PER_TOKEN = 0.5, 0.0158
REPEAT, GAP = 0.65, 300.0
"""Sessions: the probability of another request, and the median distance to it in requests."""
LIFETIME = 0.03
"""News: the median lifetime of a key, as a share of the trace."""


def zipf(rng: np.random.Generator, requests: int, keys: int, exponent: float) -> Ints:
    """Draw keys 0 … keys − 1 with P ∝ (key + 1)^−exponent."""
    return rng.choice(keys, requests, p=popularity(f"zipf:{exponent}", keys))


def in_order(keys: Ints, times: Floats, span: float) -> Ints:
    """Sort keys by time, modulo the span.

    Requests after the end move to the beginning under another key, as the rest of something that began before the
    trace. So the first requests are distributed like the others.
    """
    laps = (times // span).astype(np.int64)
    return (keys + laps * (int(keys.max()) + 1))[np.argsort(times % span, kind="stable")]


def sessions(
    rng: np.random.Generator, requests: int, repeat: float = REPEAT, gap: float = GAP, spread: float = 1.0
) -> Ints:
    """Draw keys that are each requested a geometric number of times. `spread` is the log-sd of the distances."""
    lengths = rng.geometric(1.0 - repeat, requests)
    keys = np.repeat(np.arange(requests), lengths)[:requests]
    gaps = gap * rng.lognormal(0.0, spread, requests)
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    since = np.cumsum(gaps)
    starts = rng.uniform(0.0, requests, len(first))
    return in_order(keys, starts[keys] + since - since[first][keys], requests)


def changes(rng: np.random.Generator, requests: int, keys: int = 5000, exponent: float = 0.9, phases: int = 5) -> Ints:
    """Draw keys with Zipf popularity, which is reshuffled at the beginning of each phase."""
    return np.concatenate([rng.permutation(keys)[zipf(rng, n, keys, exponent)] for n in _parts(requests, phases)])


def flood(rng: np.random.Generator, requests: int) -> Ints:
    """Draw Zipf keys, and a new key for 60 % of requests."""
    return np.where(rng.random(requests) < 0.6, 2000 + np.arange(requests), zipf(rng, requests, 2000, 0.8))


def loop(rng: np.random.Generator, requests: int) -> Ints:
    """Draw Zipf keys, and 30 % of requests from a repeating scan of 3,000 keys."""
    scan = rng.random(requests) < 0.3
    return np.where(scan, 4000 + np.cumsum(scan) % 3000, zipf(rng, requests, 4000, 0.8))


def stationary(rng: np.random.Generator, requests: int) -> Ints:
    """Draw from 20,000 keys with constant Zipf popularity."""
    return zipf(rng, requests, 20_000, 0.7)


def news(rng: np.random.Generator, requests: int, lifetime: float = LIFETIME, requests_per_key: int = 4) -> Ints:
    """Draw keys that appear at random times with Pareto popularity and fade exponentially."""
    count = 1 + requests // requests_per_key
    weights = rng.pareto(1.2, count) + 0.2
    births = rng.uniform(0.0, requests, count)
    lives = lifetime * requests * rng.lognormal(0.0, 1.2, count)
    keys = rng.choice(count, requests, p=weights / weights.sum())
    return in_order(keys, births[keys] + rng.exponential(lives[keys]), requests)


def half(rng: np.random.Generator, requests: int) -> Ints:
    """Draw a random interleaving of half sessions and half Zipf."""
    short, long = _parts(requests, 2)
    keys = np.empty(requests, np.int64)
    which = rng.permutation(requests) < short
    keys[~which] = zipf(rng, long, 3000, 1.0)
    if short:
        keys[which] = 3000 + sessions(rng, short)
    return keys


KINDS = {kind.__name__: kind for kind in (sessions, changes, flood, loop, stationary, news, half)}


def draw(kind: str, *, requests: int = 100_000, seed: int = 0) -> Trace:
    """Generate a trace of one kind. Equal seeds give equal traces."""
    if kind not in KINDS:
        raise InvalidInput(f"unknown kind of traffic {kind!r}: allowed are {', '.join(KINDS)}")
    if requests < 1 or seed < 0:
        raise InvalidInput(f"requests must be at least 1 and seed at least 0, not {requests} and {seed}")
    rng = np.random.default_rng([seed, list(KINDS).index(kind)])
    distinct, keys = np.unique(KINDS[kind](rng, requests), return_inverse=True)
    sizes, seconds = answers(rng, len(distinct), with_size=kind != "stationary")
    noise = rng.lognormal(-0.04, 0.28, requests)  # mean 1
    return Trace(keys, sizes[keys], seconds[keys] * noise, len(distinct))


def answers(rng: np.random.Generator, keys: int, *, with_size: bool) -> tuple[Ints, Floats]:
    """Draw each key's answer size in bytes and mean cost in seconds, which depends on the size or not."""
    tokens, independent = np.clip(MEDIAN_TOKENS * rng.lognormal(0.0, 1.0, (2, keys)), 8, 8000)
    cost_tokens = tokens if with_size else independent
    return np.ceil(BYTES_PER_TOKEN * tokens).astype(np.int64), SECONDS + SECONDS_PER_TOKEN * cost_tokens


def _parts(whole: int, count: int) -> list[int]:
    """Split `whole` into `count` nearly equal parts."""
    borders = [k * whole // count for k in range(count + 1)]
    return [b - a for a, b in itertools.pairwise(borders)]
