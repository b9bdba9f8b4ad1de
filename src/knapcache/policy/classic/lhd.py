"""LHD: Least Hit Density (Beckmann, Chen, Cidon, NSDI 2018: "LHD: Improving Cache Hit Rate by Maximizing Hit
Density").

An answer occupies size · time in the cache. Its hit density is the number of hits it is expected to get for that:

    expected further hits before eviction / (size · expected further time in the cache)

Both expectations are measured: for each class of answers and each age (time since the last request), the number of
hits and of evictions at that age. An answer at age a meets one of the events at ages ≥ a, so

    hit density(a) = Σ_{x≥a} hits(x) / Σ_{x≥a} (x − a) · events(x)        events = hits + evictions

A class holds answers whose last two hits came at similar ages, in powers of two; answers without a hit are in class 0.
To evict, 32 answers are drawn, and the one of least hit density is evicted. Up to 8 recent newcomers are compared too:
those that had a lower density at their admission than recent victims had. Answers of the oldest age leave first.
Counts are multiplied by .9 when densities are recomputed.

These rules and numbers are those of the authors' code, except:

    fewer ages       8,192 instead of 20,000. As there, the oldest age is at least 100 requests for each cached answer
    shorter period   densities are recomputed every 2^14 requests; an answer cache may never see the authors' 2^20
    borrowing        a class counts a hundredth of all events as its own. The authors instead keep random answers
                     (explorers, 1 % of the cache) so that every class gets data. In a cache of a few answers one
                     explorer is a large part: there costs rise by 1 to 12 %
    no warm-up       the authors draw 8 instead of 32 for the first 50 periods, to simulate shorter traces
    no applications  the authors also have 16 classes of applications

Cost is ignored.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.kernel import Records, kernel
from knapcache.policy.base import HEAD, ROW, Policy, evict, insert, make_settle, remove
from knapcache.policy.structures.pool import (
    POOL_HEAD,
    POOL_ROW,
    check_pool,
    pool_add,
    pool_draw,
    pool_remove,
    seed_random,
)

CLASSES, AGES, RECENT = 16, 8192, 8
SPAN = 100
"""The oldest age is at least this many requests for each answer in the cache."""
BORROWED = 0.01
"""Share of the events of every class that each class counts as its own."""
NEVER_HIT = 1 << 60
"""Age at the last hit but one of an answer without hits: it is in class 0 until its first hit."""
MEMORY = 0.9
"""Weight of the former mean when a victim's density enters the mean density of victims."""


@kernel
def age_of(head: Records, time: int) -> int:
    """Return a number of requests as an age; 2^grain requests are one age."""
    return int(min(time >> head[0].grain, AGES - 1))


@kernel
def class_of(head: Records, rows: Records, i: int) -> int:
    """Return the class by the sum of the ages at the last two hits: class k halves the ages of class k − 1."""
    time = (rows[i].hit_age + rows[i].hit_age_before) >> head[0].grain
    k = 0
    while time < AGES and k < CLASSES - 1:
        time <<= 1
        k += 1
    return k


@kernel
def density(head: Records, rows: Records, i: int) -> float:
    """Return the hit density now; 0, the least, at the oldest age."""
    age = age_of(head, head[0].t - rows[i].last)
    if age == AGES - 1:
        return 0.0
    return head[0].density[class_of(head, rows, i), age] / rows[i].entry_size  # type: ignore[no-any-return]


@kernel
def arrive(head: Records, rows: Records, i: int) -> bool:
    h, q = head[0], rows[i]
    h.t += 1
    if h.t % h.period == 0:
        reconfigure(head)
    if not q.resident:
        return False
    time = h.t - q.last
    h.hits[class_of(head, rows, i), age_of(head, time)] += 1.0
    q.hit_age_before = q.hit_age
    q.hit_age = time
    q.last = h.t
    return True


@kernel
def admit(head: Records, rows: Records, i: int, size: int, cost: float) -> None:  # noqa: ARG001 - every policy has the same signature
    h = head[0]
    while h.used + size > h.capacity:
        victim = worst(head, rows)
        h.evictions[class_of(head, rows, victim), age_of(head, h.t - rows[victim].last)] += 1.0
        pool_remove(head, rows, victim)
        evict(head, rows, victim)
    insert(head, rows, i, size)
    pool_add(head, rows, i)
    rows[i].last = h.t
    rows[i].hit_age = 0
    rows[i].hit_age_before = NEVER_HIT
    if density(head, rows, i) < h.victim_density:
        h.recent[h.suspects % RECENT] = i
        h.suspects += 1


@kernel
def worst(head: Records, rows: Records) -> int:
    """Return the id of least hit density in a sample and the recent suspects, or in a pool no larger than a sample."""
    h = head[0]
    exhaustive = h.pool_size <= h.samples
    found = -1
    least = math.inf
    for k in range(h.pool_size if exhaustive else h.samples + RECENT):
        if exhaustive:
            i = rows[k].pool_id
        elif k < h.samples:
            i = pool_draw(head, rows)
        else:
            i = h.recent[k - h.samples]
            if not rows[i].resident:
                continue
        d = density(head, rows, i)
        if found < 0 or d < least:
            least = d
            found = i
    h.victim_density = MEMORY * h.victim_density + (1.0 - MEMORY) * least
    return int(found)


@kernel
def reconfigure(head: Records) -> None:
    """Recompute the table of hit densities from the counts, and decay the counts."""
    h = head[0]
    while AGES << h.grain < SPAN * h.pool_size:
        coarsen(head)
    hits, events, lifetime = np.zeros(CLASSES), np.zeros(CLASSES), np.zeros(CLASSES)
    for a in range(AGES - 1, -1, -1):
        borrowed_hits, borrowed_evictions = 0.0, 0.0
        for c in range(CLASSES):
            h.hits[c, a] *= h.decay
            h.evictions[c, a] *= h.decay
            borrowed_hits += BORROWED * h.hits[c, a]
            borrowed_evictions += BORROWED * h.evictions[c, a]
        for c in range(CLASSES):
            hit = h.hits[c, a] + borrowed_hits
            hits[c] += hit
            events[c] += hit + h.evictions[c, a] + borrowed_evictions
            lifetime[c] += events[c]  # Σ (x − a + 1) · events(x): an answer stays to the end of its age
            h.density[c, a] = hits[c] / lifetime[c] if events[c] > 1e-5 else 0.0


@kernel
def coarsen(head: Records) -> None:
    """Double the number of requests per age: merge pairs of ages."""
    h = head[0]
    h.grain += 1
    for c in range(CLASSES):
        for a in range(AGES):
            for table in (h.hits, h.evictions):
                table[c, a] = table[c, 2 * a] + table[c, 2 * a + 1] if 2 * a < AGES else 0.0


@kernel
def release(head: Records, rows: Records, i: int) -> None:
    pool_remove(head, rows, i)
    remove(head, rows, i)


class LHD(Policy):
    """Least hit density."""

    head_fields: ClassVar = [
        *HEAD,
        *POOL_HEAD,
        ("t", "i8"),
        ("samples", "i8"),
        ("period", "i8"),
        ("decay", "f8"),
        ("grain", "i8"),
        ("victim_density", "f8"),
        ("suspects", "i8"),
        ("recent", f"({RECENT},)i8"),
        ("hits", f"({CLASSES},{AGES})f8"),
        ("evictions", f"({CLASSES},{AGES})f8"),
        ("density", f"({CLASSES},{AGES})f8"),
    ]
    row_fields: ClassVar = [*ROW, *POOL_ROW, ("last", "i8"), ("hit_age", "i8"), ("hit_age_before", "i8")]
    arrive_kernel = arrive
    settle_kernel = make_settle(admit, release)
    release_kernel = release

    def __init__(
        self, capacity: int, ids: int, *, samples: int = 32, period: int = 1 << 14, decay: float = 0.9, seed: int = 0
    ) -> None:
        """`samples` per eviction, drawn with `seed`; every `period` requests counts are multiplied by `decay`."""
        super().__init__(capacity, ids)
        for name, value in (("samples", samples), ("period", period)):
            if not value >= 1:
                raise InvalidInput(f"{name} must be at least 1, not {value}")
        if not 0.0 <= decay <= 1.0:
            raise InvalidInput(f"decay must be in 0 … 1, not {decay}")
        self.head["samples"], self.head["period"], self.head["decay"] = samples, period, decay
        self.head["grain"] = 1  # the least grain of the authors
        self.head["recent"] = ids  # the spare row, which is never resident
        # Before anything is counted, young answers with recent hits are denser.
        self.head["density"][0] = np.arange(1.0, CLASSES + 1)[:, None] / np.arange(1.0, AGES + 1)
        seed_random(self.head, seed)

    def check(self) -> None:
        super().check()
        check_pool(self.head, self.rows)
