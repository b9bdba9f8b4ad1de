"""The policies again, as plainly as possible: sets, dictionaries and sorting. Slow judges for the fast kernels.

Each is a function from requests (key, size, cost) to hits.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence

from knapcache.oracle.textbook import textbook

Request = tuple[int, int, float]


def lru(requests: Sequence[Request], capacity: int) -> list[bool]:
    cache: OrderedDict[int, int] = OrderedDict()
    hits = []
    for key, size, _ in requests:
        hits.append(key in cache)
        if key in cache:
            cache.move_to_end(key)
        elif size <= capacity:
            while sum(cache.values()) + size > capacity:
                cache.popitem(last=False)
            cache[key] = size
    return hits


def by_rank(requests: Sequence[Request], capacity: int, rank: Callable[[float, int, float, int], float]) -> list[bool]:
    """GreedyDual: rank(clock, requests since it came in, mean cost, size); least rank goes, ties by recency."""
    cache: dict[int, tuple[float, int, int, int]] = {}  # key: rank, last use, requests, size
    paid: dict[int, list[float]] = defaultdict(list)
    clock, hits = 0.0, []
    for t, (key, size, cost) in enumerate(requests):
        hits.append(key in cache)
        if key in cache:
            _, _, count, old = cache[key]
            cache[key] = (rank(clock, count + 1, sum(paid[key]) / len(paid[key]), old), t, count + 1, old)
        elif size <= capacity:
            paid[key].append(cost)
            while sum(entry[3] for entry in cache.values()) + size > capacity:
                victim = min(cache, key=lambda k: cache[k][:2])
                clock = max(clock, cache.pop(victim)[0])
            cache[key] = (rank(clock, 1, sum(paid[key]) / len(paid[key]), size), t, 1, size)
    return hits


def lfu(requests: Sequence[Request], capacity: int) -> list[bool]:
    return by_rank(requests, capacity, lambda _clock, count, _cost, _size: float(count))


def gdsf(requests: Sequence[Request], capacity: int) -> list[bool]:
    return by_rank(requests, capacity, lambda clock, count, _cost, size: clock + count / size)


def gdsf_cost(requests: Sequence[Request], capacity: int) -> list[bool]:
    return by_rank(requests, capacity, lambda clock, count, cost, size: clock + count * cost / size)


class Estimates:
    """Counters and the paper's bounds."""

    def __init__(self, T: int, N: int, c1: float, c2: float, gamma_cost: float, gamma_arrival: float) -> None:
        self.T, self.N, self.c1, self.c2 = T, N, c1, c2
        self.gamma_cost, self.gamma_arrival = gamma_cost, gamma_arrival
        self.t = 0
        self.arrivals: dict[int, int] = defaultdict(int)
        self.costs: dict[int, list[float]] = defaultdict(list)
        self.size: dict[int, int] = {}

    def cost(self, q: int) -> float:
        n = len(self.costs[q])
        radius = (self.c2 - self.c1) * math.sqrt(math.log(8 * self.T * self.N * self.T) / (2 * n))
        return max(self.c1, sum(self.costs[q]) / n - self.gamma_cost * radius)

    def arrival(self, q: int) -> float:
        f = self.arrivals[q] / self.t
        log = math.log(16 * self.T * self.N * self.T)
        return max(0.0, f - self.gamma_arrival * (math.sqrt(3 * f * (1 - f) * log / self.t) + 5 * log / self.t))

    def density(self, q: int) -> float:
        return self.arrivals[q] * self.cost(q) / self.size[q]


def berkeley(requests: Sequence[Request], capacity: int, estimates: Estimates, *, several: bool) -> list[bool]:
    cache: set[int] = set()
    hits = []
    for key, size, cost in requests:
        hits.append(key in cache)
        estimates.t += 1
        estimates.arrivals[key] += 1
        if key in cache or size > capacity:
            continue
        estimates.costs[key].append(cost)
        estimates.size[key] = size
        room = capacity - sum(estimates.size[q] for q in cache)
        lighter = [
            q
            for q in sorted(cache, key=lambda q: (estimates.density(q), q))
            if estimates.density(q) < estimates.density(key)
        ]
        goes = []
        for q in lighter if several else lighter[:1]:
            if room >= size:
                break
            room += estimates.size[q]
            goes.append(q)
        if room >= size:
            cache = (cache - set(goes)) | {key}
    return hits


def vsocb(requests: Sequence[Request], capacity: int, estimates: Estimates, alpha: float) -> tuple[list[bool], int]:
    """Algorithm 1 with the repairs, written from the paper with sets; also returns the number of Oracle calls."""
    M: set[int] = set()
    M_hat: set[int] = set()
    T_r: dict[int, int] = defaultdict(int)
    last, calls, hits = 0, 0, []
    for key, size, cost in requests:
        estimates.t += 1
        estimates.arrivals[key] += 1
        hits.append(key in M)
        if key in M or size > capacity:
            continue
        estimates.costs[key].append(cost)
        estimates.size[key] = size
        T_c = len(estimates.costs[key])
        if (T_c >= 2 and T_c >= (1 + alpha) * T_r[key]) or estimates.t >= (1 + alpha) * last:
            T_r[key], last, calls = T_c, estimates.t, calls + 1
            known = sorted(estimates.size)
            values = [estimates.arrival(q) * estimates.cost(q) for q in known]
            chosen, _ = textbook(values, [estimates.size[q] for q in known], capacity)
            M_hat = {q for q, c, w in zip(known, chosen, values, strict=True) if c and w > 0}
            M = M_hat & (M | {key})
        elif key in M_hat or size <= capacity - sum(estimates.size[q] for q in M_hat):
            M, M_hat = M | {key}, M_hat | {key}
    return hits, calls
