"""Plain CAMP, W-TinyLFU and LHD with dictionaries and lists: slow references for the kernels.

Each is a function from requests (key, size, cost) to hits, as in reference_policies.py.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np

from tests.support.reference_policies import Request


def rounded(ratio: float, precision: int) -> float:
    """The ratio cut to its `precision` most significant bits."""
    unit = 2.0 ** (math.floor(math.log2(ratio)) - precision + 1)
    return math.floor(ratio / unit) * unit


def camp(requests: Sequence[Request], capacity: int, precision: int) -> list[bool]:
    """Algorithm 1 of the paper without queues: the least H of all is evicted, the least recently used if equal."""
    cache: dict[int, tuple[float, int]] = {}  # key: H, last use
    ratio: dict[int, float] = {}
    size_of: dict[int, int] = {}
    inflation, hits = 0.0, []
    for t, (key, size, cost) in enumerate(requests):
        hits.append(key in cache)
        if key in cache:
            del cache[key]
            inflation = max(inflation, min(cache.values())[0]) if cache else inflation
        elif size <= capacity:
            while sum(size_of[k] for k in cache) + size > capacity:
                victim = min(cache, key=cache.__getitem__)
                inflation = max(inflation, cache.pop(victim)[0])
            size_of[key], ratio[key] = size, rounded(cost / size, precision)
        else:
            continue
        cache[key] = (inflation + ratio[key], t)
    return hits


class PlainSketch:
    """A count-min sketch of four rows whose counters are all halved at once."""

    def __init__(self, ids: int) -> None:
        multipliers = (1_103_515_245, 1_566_083_941, 1_812_433_253, 2_024_337_845)
        self.places = [[(k + 1) * m % (2**31 - 1) % ids for m in multipliers] for k in range(ids)]
        self.rows = [[0] * ids for _ in multipliers]
        self.additions = 0

    def count(self, key: int, sample: int) -> None:
        raised = False
        for row, place in zip(self.rows, self.places[key], strict=True):
            raised |= row[place] < 15
            row[place] = min(row[place] + 1, 15)
        self.additions += raised
        if raised and self.additions >= sample:
            odd = sum(n % 2 for row in self.rows for n in row)
            self.additions = (self.additions - odd // 4) // 2
            self.rows = [[n // 2 for n in row] for row in self.rows]

    def estimate(self, key: int) -> int:
        return min(row[place] for row, place in zip(self.rows, self.places[key], strict=True))


def w_tinylfu(requests: Sequence[Request], capacity: int, ids: int, window_share: float) -> list[bool]:
    """The window, probation and protected as ordered dictionaries from key to size, oldest first."""
    sketch = PlainSketch(ids)
    window, probation, protected = (OrderedDict[int, int]() for _ in range(3))
    window_size = int(capacity * window_share)
    main_size = capacity - window_size

    def protect(key: int, size: int) -> None:
        protected[key] = size
        while sum(protected.values()) > int(main_size * 0.8):
            demoted, demoted_size = protected.popitem(last=False)
            probation[demoted] = demoted_size

    def try_main(key: int, size: int) -> None:
        victims: list[tuple[int, int]] = []
        needed = size - (main_size - sum(probation.values()) - sum(protected.values()))
        for victim in [*probation.items(), *protected.items()]:
            if size > main_size or sum(s for _, s in victims) >= needed:
                break
            victims.append(victim)
            if sum(sketch.estimate(k) for k, _ in victims) > sketch.estimate(key):
                for k, s in victims:
                    probation.pop(k, None), protected.pop(k, None)
                    protect(k, s)
                return
        if size <= main_size:
            for k, _ in victims:
                probation.pop(k, None), protected.pop(k, None)
            probation[key] = size

    hits = []
    for key, size, _ in requests:
        sketch.count(key, 10 * max(len(window) + len(probation) + len(protected), 1))
        hits.append(key in window or key in probation or key in protected)
        if key in window:
            window.move_to_end(key)
        elif hits[-1]:
            protect(key, probation.pop(key, 0) or protected.pop(key))
        elif size > window_size:
            try_main(key, size)
        else:
            while sum(window.values()) + size > window_size:
                try_main(*window.popitem(last=False))
            window[key] = size
    return hits


AGES, CLASSES = 8192, 16


class PlainAnswer:
    """An answer in the plain LHD: time of its last request, and its ages at the last two hits."""

    def __init__(self, key: int, size: int, last: int) -> None:
        self.key, self.size, self.last = key, size, last
        self.hit_ages = [2**60, 0]

    def place(self, t: int) -> tuple[int, int]:
        """Class and age, where two requests are one age."""
        total = sum(self.hit_ages) // 2
        return (
            0 if total >= AGES else next((c for c in range(CLASSES - 1) if total * 2**c >= AGES), CLASSES - 1),
            min((t - self.last) // 2, AGES - 1),
        )


def lehmer(seed: int) -> Iterator[int]:
    state = 1 + (seed * 1_000_003 + 12_345) % (2**31 - 2)
    while True:
        state = state * 48271 % (2**31 - 1)
        yield state


def last_eight(items: list[int]) -> list[int]:
    """The last eight items in the order of a ring: item k is at place k modulo 8."""
    first = max(len(items) - 8, 0)
    return [k for _, k in sorted((n % 8, items[n]) for n in range(first, len(items)))]


def lhd(requests: Sequence[Request], capacity: int, samples: int, period: int, decay: float, seed: int) -> list[bool]:
    """Ages never get coarser than two requests: for caches of at most 163 answers."""
    draws = lehmer(seed)
    hit_counts, evictions = np.zeros((CLASSES, AGES)), np.zeros((CLASSES, AGES))
    densities = np.arange(1.0, CLASSES + 1)[:, None] / np.arange(1.0, AGES + 1)
    pool: list[PlainAnswer] = []
    suspects: list[int] = []
    mean_victim, hits = 0.0, []

    def density(answer: PlainAnswer, t: int) -> float:
        c, age = answer.place(t)
        return 0.0 if age == AGES - 1 else float(densities[c, age] / answer.size)

    def summed(counts: np.ndarray) -> np.ndarray:
        """Sums over this and all later ages."""
        return np.cumsum(counts[:, ::-1], axis=1)[:, ::-1]

    found: dict[int, PlainAnswer] = {}
    for t, (key, size, _) in enumerate(requests, start=1):
        if t % period == 0:
            hit_counts *= decay
            evictions *= decay
            all_hits = hit_counts + (0.01 * hit_counts).sum(axis=0)
            events = summed(all_hits + evictions + (0.01 * evictions).sum(axis=0))
            densities = np.where(events > 1e-5, summed(all_hits) / np.maximum(summed(events), 1e-300), 0.0)
        hits.append(key in found)
        if key in found:
            answer = found[key]
            hit_counts[answer.place(t)] += 1
            answer.hit_ages = [answer.hit_ages[1], t - answer.last]
            answer.last = t
        elif size <= capacity:
            while sum(a.size for a in pool) + size > capacity:
                sample = pool
                if len(pool) > samples:
                    recent = [found[k] for k in last_eight(suspects) if k in found]
                    sample = [pool[next(draws) % len(pool)] for _ in range(samples)] + recent
                victim = min(sample, key=lambda a: density(a, t))
                mean_victim = 0.9 * mean_victim + (1.0 - 0.9) * density(victim, t)
                evictions[victim.place(t)] += 1
                pool[pool.index(victim)] = pool[-1]
                pool.pop()
                del found[victim.key]
            found[key] = PlainAnswer(key, size, t)
            pool.append(found[key])
            if density(found[key], t) < mean_victim:
                suspects.append(key)
    return hits
