"""Traffic of many kinds, for policies to be good at all of: each kind is the home of one idea about what comes next.

    sessions      a geometric number of requests, at log-normal distances, then never again     recency is nearly all
    changes       Zipf, dealt anew five times                                                   forgetting
    flood         Zipf, and three requests in five for something never asked for again          refusing
    loop          Zipf, and three requests in ten from a scan that starts over                  holding on
    stationary    Zipf for ever, and costs that have nothing to do with sizes                   counting
    news          stories are born, loved at once, more or less, and forgotten                  frequency that fades
    half          half sessions, half Zipf                                                      telling them apart

Sizes and costs are those of answers of LLMs. An answer has log-normally many tokens, four bytes each; a miss takes
seconds to start and seconds for each token, times noise that every request draws anew. All are draws of one model: that
a policy is good at them shows that it was not made for a few files, and nothing about anyone's own traffic.
"""

from __future__ import annotations

import itertools

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.sim.synthetic import popularity
from knapcache.sim.trace import Floats, Ints, Trace

MEDIAN_TOKENS, BYTES_A_TOKEN = 245.0, 4
SECONDS, SECONDS_A_TOKEN = 0.5, 0.0158
AGAIN, GAP = 0.65, 300.0
"""Sessions: the probability of one more request, and the median distance to it, in requests."""
LIFE = 0.03
"""News: the median life of a story, as a share of the trace."""


def zipf(rng: np.random.Generator, requests: int, keys: int, exponent: float) -> Ints:
    """Keys 0 … keys − 1, P ∝ (key + 1)^−exponent."""
    return rng.choice(keys, requests, p=popularity(f"zipf:{exponent}", keys))


def in_order(keys: Ints, times: Floats, span: float) -> Ints:
    """Keys by time. None is lost: what lies behind the end of the span goes to its beginning, as the rest of something
    that began before it, under another name. So the first requests are like the others.
    """
    laps = (times // span).astype(np.int64)
    return (keys + laps * (int(keys.max()) + 1))[np.argsort(times % span, kind="stable")]


def sessions(rng: np.random.Generator, requests: int) -> Ints:
    """Each key is asked for a geometric number of times, and never again."""
    lengths = rng.geometric(1.0 - AGAIN, requests)
    keys = np.repeat(np.arange(requests), lengths)[:requests]
    gaps = GAP * rng.lognormal(0.0, 1.0, requests)
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    since = np.cumsum(gaps)
    starts = rng.uniform(0.0, requests, len(first))
    return in_order(keys, starts[keys] + since - since[first][keys], requests)


def changes(rng: np.random.Generator, requests: int) -> Ints:
    """Zipf popularity of 5,000 keys, dealt five times."""
    return np.concatenate([rng.permutation(5000)[zipf(rng, n, 5000, 0.9)] for n in _parts(requests, 5)])


def flood(rng: np.random.Generator, requests: int) -> Ints:
    """Zipf, and 60 % of requests for a key of their own."""
    return np.where(rng.random(requests) < 0.6, 2000 + np.arange(requests), zipf(rng, requests, 2000, 0.8))


def loop(rng: np.random.Generator, requests: int) -> Ints:
    """Zipf, and 30 % of requests from a scan of 3,000 keys, over and over."""
    scan = rng.random(requests) < 0.3
    return np.where(scan, 4000 + np.cumsum(scan) % 3000, zipf(rng, requests, 4000, 0.8))


def stationary(rng: np.random.Generator, requests: int) -> Ints:
    """Zipf over 20,000 keys."""
    return zipf(rng, requests, 20_000, 0.7)


def news(rng: np.random.Generator, requests: int) -> Ints:
    """Stories are born at any time, a few of them far more popular than most, and fade exponentially."""
    stories = 1 + requests // 4
    weights = rng.pareto(1.2, stories) + 0.2
    births = rng.uniform(0.0, requests, stories)
    lives = LIFE * requests * rng.lognormal(0.0, 1.2, stories)
    keys = rng.choice(stories, requests, p=weights / weights.sum())
    return in_order(keys, births[keys] + rng.exponential(lives[keys]), requests)


def half(rng: np.random.Generator, requests: int) -> Ints:
    """Half sessions and half Zipf, shuffled into each other."""
    short, long = _parts(requests, 2)
    keys = np.empty(requests, np.int64)
    which = rng.permutation(requests) < short
    keys[~which] = zipf(rng, long, 3000, 1.0)
    if short:
        keys[which] = 3000 + sessions(rng, short)
    return keys


KINDS = {kind.__name__: kind for kind in (sessions, changes, flood, loop, stationary, news, half)}


def draw(kind: str, *, requests: int = 100_000, seed: int = 0) -> Trace:
    """Requests of a kind; equal seeds give equal requests."""
    if kind not in KINDS:
        raise InvalidInput(f"unknown kind of traffic {kind!r}; there are: {', '.join(KINDS)}")
    if requests < 1 or seed < 0:
        raise InvalidInput(f"there must be at least 1 request, and a seed from 0 on, not {requests} and {seed}")
    rng = np.random.default_rng([seed, list(KINDS).index(kind)])
    named, keys = np.unique(KINDS[kind](rng, requests), return_inverse=True)
    sizes, seconds = answers(rng, len(named), with_size=kind != "stationary")
    noise = rng.lognormal(-0.04, 0.28, requests)  # of mean 1
    return Trace(keys, sizes[keys], seconds[keys] * noise, len(named))


def answers(rng: np.random.Generator, keys: int, *, with_size: bool) -> tuple[Ints, Floats]:
    """The size of each key's answer in bytes, and its mean cost in seconds, which grows with the size or does not."""
    tokens, others = np.clip(MEDIAN_TOKENS * rng.lognormal(0.0, 1.0, (2, keys)), 8, 8000)
    counted = tokens if with_size else others
    return np.ceil(BYTES_A_TOKEN * tokens).astype(np.int64), SECONDS + SECONDS_A_TOKEN * counted


def _parts(whole: int, count: int) -> list[int]:
    """Split as evenly as it can be."""
    borders = [k * whole // count for k in range(count + 1)]
    return [b - a for a, b in itertools.pairwise(borders)]
