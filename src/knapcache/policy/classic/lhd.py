"""LHD: Least Hit Density (Beckmann, Chen, Cidon, NSDI 2018: "LHD: Improving Cache Hit Rate by Maximizing Hit
Density").

Room in the cache is rent, paid by size and time. The hit density of an answer is what it is expected to earn for
it:

    hits it will still have before it is evicted / (size · how long it will still stay)

Both expectations are measured: for each class of answers and each age (time since the last request), how many were
hit and how many were evicted at that age. An answer at age a will meet one of the events at ages ≥ a, so

    hit density(a) = Σ_{x≥a} hits(x) / Σ_{x≥a} (x − a) · events(x)        events = hits + evictions

A class holds answers whose last two hits came at similar ages, in powers of two. To evict, a sample is drawn, and
the least hit density goes. All is as in the authors' code (16 classes, 32 samples and the 8 last to come in, decay
.9), except:

    fewer ages       8,192, each the wider the more answers there are
    sooner           tables are made anew every 2^14 requests; a cache of answers may never see the authors' 2^20
    borrowing        a class counts a hundredth of all events as its own. The authors keep some answers at random
                     (explorers) so that no class is condemned unseen; this does the same, and nobody stays for it
    no applications  which the authors also tell apart

Cost does not count.
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
"""Ages reach as far as this many requests for each answer in the cache."""
BORROWED = 0.01
"""The part of every other class's events that a class counts as its own."""
NEVER_HIT = 1 << 60
"""The age at its last hit of an answer that had none: class 0 until its second hit."""


@kernel
def age_of(head: Records, time: int) -> int:
    """A span of requests as an age; 2^grain requests are one age."""
    return int(min(time >> head[0].grain, AGES - 1))


@kernel
def class_of(head: Records, rows: Records, i: int) -> int:
    """By the ages at the last two hits together: class k halves the ages of class k − 1. See ENDLESS."""
    time = (rows[i].hit_age + rows[i].hit_age_before) >> head[0].grain
    k = 0
    while time < AGES and k < CLASSES - 1:
        time <<= 1
        k += 1
    return k


@kernel
def density(head: Records, rows: Records, i: int) -> float:
    """Hit density at this moment."""
    table = head[0].density
    return table[class_of(head, rows, i), age_of(head, head[0].t - rows[i].last)] / rows[i].entry_size  # type: ignore[no-any-return]


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
def admit(head: Records, rows: Records, i: int, size: int, cost: float) -> None:  # noqa: ARG001 - one signature for all
    h = head[0]
    while h.used + size > h.capacity:
        victim = worst(head, rows)
        h.evictions[class_of(head, rows, victim), age_of(head, h.t - rows[victim].last)] += 1.0
        pool_remove(head, rows, victim)
        evict(head, rows, victim)
    insert(head, rows, i, size)
    pool_add(head, rows, i)
    rows[i].last = h.t
    rows[i].hit_age = NEVER_HIT
    rows[i].hit_age_before = 0
    h.recent[h.admissions % RECENT] = i
    h.admissions += 1


@kernel
def worst(head: Records, rows: Records) -> int:
    """The least hit density in a sample and among the last to come in; of all, where a sample would be no smaller."""
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
    return int(found)


@kernel
def reconfigure(head: Records) -> None:
    """Make the table of hit densities anew from what was counted, and let the counts fade."""
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
            lifetime[c] += events[c]  # Σ (x − a + 1) · events(x): an answer stays to the end of the age it is in
            h.density[c, a] = hits[c] / lifetime[c] if events[c] > 1e-5 else 0.0


@kernel
def coarsen(head: Records) -> None:
    """Two ages become one."""
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
        ("admissions", "i8"),
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
        """`samples` are drawn with `seed`; every `period` requests counts fade by `decay`, and densities follow."""
        super().__init__(capacity, ids)
        for name, value in (("samples", samples), ("period", period)):
            if not value >= 1:
                raise InvalidInput(f"{name} must be at least 1, not {value}")
        if not 0.0 <= decay <= 1.0:
            raise InvalidInput(f"decay must be in 0 … 1, not {decay}")
        self.head["samples"], self.head["period"], self.head["decay"] = samples, period, decay
        # Until something was counted: what was hit at young ages, and lately, is denser.
        self.head["density"][0] = np.arange(1.0, CLASSES + 1)[:, None] / np.arange(1.0, AGES + 1)
        seed_random(self.head, seed)

    def check(self) -> None:
        super().check()
        check_pool(self.head, self.rows)
