"""Plain implementations of the policies with sets, dictionaries and sorting: slow references for the kernels.

Each is a function from requests (key, size, cost) to hits.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence

from tests.support.textbook import textbook

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


def fifo(requests: Sequence[Request], capacity: int) -> list[bool]:
    cache: dict[int, int] = {}
    hits = []
    for key, size, _ in requests:
        hits.append(key in cache)
        if key not in cache and size <= capacity:
            while sum(cache.values()) + size > capacity:
                del cache[next(iter(cache))]
            cache[key] = size
    return hits


def sieve(requests: Sequence[Request], capacity: int) -> list[bool]:
    """A list from tail to head; the hand is a position in it."""
    queue: list[int] = []
    size_of: dict[int, int] = {}
    visited: set[int] = set()
    hand, hits = 0, []
    for key, size, _ in requests:
        hits.append(key in queue)
        if key in queue:
            visited.add(key)
        elif size <= capacity:
            while sum(size_of[q] for q in queue) + size > capacity:
                hand = hand if hand < len(queue) else 0
                if queue[hand] in visited:
                    visited.discard(queue[hand])
                    hand += 1
                else:
                    del queue[hand]
            size_of[key] = size
            # A hand beyond the head continues at the tail, even if a newcomer was appended meanwhile.
            hand = hand if hand < len(queue) else 0
            queue.append(key)
    return hits


def by_rank(
    requests: Sequence[Request],
    capacity: int,
    rank: Callable[[float, int, float, int], float],
    *,
    history: bool = False,
    trial: bool = False,
) -> list[bool]:
    """GreedyDual: evict the least rank(clock, requests since admission or ever, mean cost, size), ties by recency.

    With `trial` the newcomer is inserted first and may be evicted itself.
    """
    cache: dict[int, tuple[float, int, int]] = {}  # key: rank, last use, size
    paid: dict[int, list[float]] = defaultdict(list)
    count: dict[int, int] = defaultdict(int)
    clock, hits = 0.0, []
    for t, (key, size, cost) in enumerate(requests):
        hits.append(key in cache)
        count[key] = count[key] + 1 if history or key in cache else 1
        if key in cache:
            old = cache[key][2]
            cache[key] = (rank(clock, count[key], sum(paid[key]) / len(paid[key]), old), t, old)
        elif size <= capacity:
            paid[key].append(cost)
            mean = sum(paid[key]) / len(paid[key])
            if trial:
                cache[key] = (rank(clock, count[key], mean, size), t, size)
            while sum(entry[2] for entry in cache.values()) + (0 if trial else size) > capacity:
                victim = min(cache, key=lambda k: cache[k][:2])
                clock = max(clock, cache.pop(victim)[0])
            if not trial:
                cache[key] = (rank(clock, count[key], mean, size), t, size)
    return hits


def lfu(requests: Sequence[Request], capacity: int) -> list[bool]:
    return by_rank(requests, capacity, lambda _clock, count, _cost, _size: float(count))


def lfu_da(requests: Sequence[Request], capacity: int) -> list[bool]:
    return by_rank(requests, capacity, lambda clock, count, _cost, _size: clock + count)


def gds(requests: Sequence[Request], capacity: int) -> list[bool]:
    return by_rank(requests, capacity, lambda clock, _count, cost, size: clock + cost / size)


def gdsf(requests: Sequence[Request], capacity: int) -> list[bool]:
    return by_rank(requests, capacity, lambda clock, count, _cost, size: clock + count / size, trial=True)


def gdsf_cost(requests: Sequence[Request], capacity: int) -> list[bool]:
    return by_rank(requests, capacity, lambda clock, count, cost, size: clock + count * cost / size)


def gdsf_cost_history(requests: Sequence[Request], capacity: int) -> list[bool]:
    return by_rank(requests, capacity, lambda clock, count, cost, size: clock + count * cost / size, history=True)


def gdsf_cost_trial(requests: Sequence[Request], capacity: int) -> list[bool]:
    return by_rank(requests, capacity, lambda clock, count, cost, size: clock + count * cost / size, trial=True)


def horizon(requests: Sequence[Request], capacity: int, half_life: float, *, beats_sum: bool) -> list[bool]:
    """Every past request weighs 2^(−age/H); all values are recomputed for every decision."""
    cache: dict[int, int] = {}
    times: dict[int, list[int]] = defaultdict(list)
    paid: dict[int, list[float]] = defaultdict(list)
    hits = []
    for t, (key, size, cost) in enumerate(requests):
        hits.append(key in cache)
        times[key].append(t)
        if key in cache or size > capacity:
            continue
        paid[key].append(cost)
        value = {
            q: sum(2.0 ** ((s - t) / half_life) for s in times[q]) * sum(paid[q]) / len(paid[q]) for q in [*cache, key]
        }
        victims: list[int] = []
        for q in sorted(cache, key=lambda q: value[q] / cache[q]):
            if sum(cache.values()) - sum(cache[v] for v in victims) + size <= capacity:
                break
            victims.append(q)
        if beats_sum and sum(value[q] for q in victims) > value[key]:
            continue
        for q in victims:
            del cache[q]
        cache[key] = size
    return hits


def arc(requests: Sequence[Request], c: int) -> list[bool]:
    """Figure 4 of the paper, for pages: every size is 1. Lists run from LRU to MRU."""
    T1: list[int] = []
    T2: list[int] = []
    B1: list[int] = []
    B2: list[int] = []
    p, hits = 0.0, []

    def replace(x: int) -> None:
        if T1 and (len(T1) > p or (x in B2 and len(T1) == p)):
            B1.append(T1.pop(0))
        else:
            B2.append(T2.pop(0))

    for x, _, _ in requests:
        hits.append(x in T1 or x in T2)
        for T in (T1, T2):
            if x in T:
                T.remove(x)
                T2.append(x)
                break
        else:
            if x in B1:
                p = min(float(c), p + max(len(B2) / len(B1), 1.0))
                replace(x)
                B1.remove(x)
                T2.append(x)
            elif x in B2:
                p = max(0.0, p - max(len(B1) / len(B2), 1.0))
                replace(x)
                B2.remove(x)
                T2.append(x)
            else:
                if len(T1) + len(B1) == c:
                    if len(T1) < c:
                        B1.pop(0)
                        replace(x)
                    else:
                        T1.pop(0)
                elif len(T1) + len(T2) + len(B1) + len(B2) >= c:
                    if len(T1) + len(T2) + len(B1) + len(B2) == 2 * c:
                        B2.pop(0)
                    replace(x)
                T1.append(x)
    return hits


def belady(requests: Sequence[Request], capacity: int) -> list[bool]:
    """Cost of the next request per size and time until then, searched in the trace for every decision."""
    cache: dict[int, int] = {}
    hits = []
    for t, (key, size, _) in enumerate(requests):
        hits.append(key in cache)
        if key in cache or size > capacity:
            continue

        def value(q: int, entry_size: int, now: int = t) -> float:
            later = (s for s in range(now + 1, len(requests)) if requests[s][0] == q)
            again = next(later, None)
            return requests[again][2] / (entry_size * (again - now)) if again is not None else 0.0

        victims: list[int] = []
        free = capacity - sum(cache.values())
        for q in sorted(cache, key=lambda q: value(q, cache[q])):
            if free >= size or value(q, cache[q]) >= value(key, size):
                break
            free += cache[q]
            victims.append(q)
        if free >= size:
            for q in victims:
                del cache[q]
            cache[key] = size
    return hits


def optimum(requests: Sequence[Request], capacity: int) -> float:
    """The least miss cost of any cache, by trying every set after every request. For a few keys only."""
    best: dict[frozenset[tuple[int, int]], float] = {frozenset(): 0.0}  # (key, size) held → cost so far
    for key, size, cost in requests:
        after: dict[frozenset[tuple[int, int]], float] = {}
        for held, paid in best.items():
            hit = any(k == key for k, _ in held)
            pool = held if hit else held | {(key, size)}
            for n in range(len(pool) + 1):
                for kept in map(frozenset, itertools.combinations(pool, n)):
                    if sum(s for _, s in kept) <= capacity:
                        after[kept] = min(after.get(kept, math.inf), paid + (0.0 if hit else cost))
        best = after
    return min(best.values())


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


class Anytime(Estimates):
    """Without configuration: T, N and c1 are those seen so far, and the pooled 2σ̂ replaces c2 − c1."""

    def __init__(self, gamma_cost: float) -> None:
        super().__init__(0, 0, 0.0, 0.0, gamma_cost, 0.0)

    def cost(self, q: int) -> float:
        seen = [costs for costs in self.costs.values() if costs]
        if (self.t, sum(map(len, seen))) != (self.T, self.N):
            self.T, self.N = self.t, sum(map(len, seen))  # recompute once per state
            self.c1 = min(map(min, seen))
            squares = sum(sum((c - sum(costs) / len(costs)) ** 2 for c in costs) for costs in seen)
            repeats = self.N - len(seen)
            self.spread = 2 * math.sqrt(squares / repeats) if repeats else 0.0
        n = len(self.costs[q])
        radius = self.spread * math.sqrt(math.log(8 * self.t * len(seen) * self.t) / (2 * n))
        return max(self.c1, sum(self.costs[q]) / n - self.gamma_cost * radius)


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
        free = capacity - sum(estimates.size[q] for q in cache)
        less_dense = [
            q
            for q in sorted(cache, key=lambda q: (estimates.density(q), q))
            if estimates.density(q) < estimates.density(key)
        ]
        victims = []
        for q in less_dense if several else less_dense[:1]:
            if free >= size:
                break
            free += estimates.size[q]
            victims.append(q)
        if free >= size:
            cache = (cache - set(victims)) | {key}
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
