"""VSOCB: Variable Size Online Cache Bandits (Yang, Xie, Lian, Chen: "LLM Cache Bandit Revisited"), repaired.

Lay this file beside Algorithm 1 of the paper; the line numbers in the comments are its own. Symbols:

    M_t   rows[q].resident      the cache                T_q(q)  arrivals        times q arrived
    M̂_t   rows[q].recommended   the Oracle's set         T_c(q)  misses          times q was paid for
    M     head.capacity         capacity                 C̃(q)   paid            sum of the costs paid
    T_t   head.last_call        round of the last call   T_r(q)  misses_at_call  misses at the last call q triggered
    α     head.alpha            accumulation factor      S(q)    entry_size      size of the answer

One call of `arrive`, and of `admit` if it missed, is one round. As printed the algorithm does not work (it
overflows the cache and wipes it: `knapcache experiment errata` shows how much each error costs). Each repair is
named where it acts:

    E1   the last ELSE undoes M̂ ∪ {q_t}                         → it assigns nothing
    E2   after a call, the answer just paid for is thrown away   → M̂_t ∩ (M_{t−1} ∪ {q_t})
    E3   T_r, "at the most recent call", is ambiguous            → kept for each query, set for q_t only
    E4   every new query calls the Oracle                        → a query calls from its second miss on
    E5   hit test and regret use different caches                → M_{t−1} in both
    E6   cost clipped at 0 although c1 is known                  → clipped at c1
    E7   P̂ is 0 for most queries, so the Oracle keeps nothing    → scale γ; free space is filled by empirical value
    E8   P̂ and Ĉ of all queries in every round                   → only when the Oracle is called
    E11  "logarithmic" hides a factor 1/α                        → α = 0.5

One choice is ours and costs nothing: lines 23–28 run only on a miss. Between two misses nothing can enter the
cache, so a call on a hit could only evict answers early.

Due calls that provably change nothing are skipped: see certificate.py. The others look at the queries near the price
only: see near_queries.py. Neither changes a decision.

With `lazy`, residents outside M̂ stay until their space is needed: see lazy_residents.py. The regret bound holds,
because regret comes only from queries that are *not* cached, and lazy residents only add cached queries.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.estimate.statistics import (
    STATISTICS_HEAD,
    STATISTICS_ROW,
    Confidence,
    count_arrival,
    count_miss,
    relative_value,
)
from knapcache.kernel import Records, kernel
from knapcache.oracle.exact import select
from knapcache.policy.base import HEAD, ROW, Policy, TraceLike, insert, make_settle, number_of_ids
from knapcache.policy.structures.pool import POOL_HEAD, POOL_ROW
from knapcache.policy.vsocb.certificate import CERTIFICATE_HEAD, CERTIFICATE_ROW, KEEP_TOLERANCE, update_certificate
from knapcache.policy.vsocb.lazy_residents import (
    evict_all_lazy,
    evict_lazy_until_fits,
    insert_lazy,
    release,
    update_lazy_residents,
)
from knapcache.policy.vsocb.near_queries import FROZEN_OUT, NEAR_HEAD, NEAR_ROW, check_near, make_near, update_side
from knapcache.policy.vsocb.recommendation import RELATIVE_TOLERANCE, UNLIMITED, add_recommendation, recommend_warm
from knapcache.policy.vsocb.recycling import recycle

VSOCB_HEAD = [
    *HEAD,
    *STATISTICS_HEAD,
    *CERTIFICATE_HEAD,
    *NEAR_HEAD,
    *POOL_HEAD,
    ("alpha", "f8"),
    ("beta", "f8"),  # 0: exact Oracle, Algorithm 2; above: approximate, Algorithm 3
    ("lazy", "?"),
    ("last_call", "i8"),  # T_t
    ("oracle_work", "i8"),  # states the Oracle examined, in all calls
    ("recommended_size", "i8"),  # Invariant: Σ S(q) over q ∈ M̂, at most capacity
    ("seen_size", "i8"),  # Invariant: Σ S(q) over q ∈ Q_t
    ("hand", "i8"),  # where `recycle` continues
    ("forgotten", "i8"),  # arrivals of recycled queries
]
VSOCB_ROW = [
    *ROW,
    *STATISTICS_ROW,
    *CERTIFICATE_ROW,
    *NEAR_ROW,
    *POOL_ROW,
    ("misses_at_call", "i8"),  # T_r(q)
    ("recommended", "?"),  # q ∈ M̂. Invariant: unless lazy, every resident is recommended
]


@kernel
def arrive(head: Records, rows: Records, i: int) -> bool:
    """Lines 2–6: count the arrival; a hit is one in M_{t−1} (E5)."""
    count_arrival(head, rows, i)
    update_certificate(head, rows, i)
    if rows[i].side == FROZEN_OUT:  # an arrival raises the value
        update_side(head, rows, i)
    return bool(rows[i].resident)


@kernel
def admit(head: Records, rows: Records, i: int, size: int, cost: float) -> None:
    """Lines 8–28: q_t = i missed and was paid for."""
    q = rows[i]
    count_miss(head, rows, i, cost)  # lines 10–11
    record_size(head, rows, i, size)  # line 9
    update_certificate(head, rows, i)
    update_side(head, rows, i)
    # Line 17 (P̂ and Ĉ of all queries) waits for a call (E8).
    if oracle_is_due(head, rows, i):  # line 23
        q.misses_at_call = q.misses  # line 24, for q_t alone (E3)
        head[0].last_call = head[0].t
        if head[0].skip and (head[0].certified or head[0].recommended_size == head[0].seen_size):
            head[0].calls_skipped += 1  # line 25 would keep M̂
        else:
            changed = recommend_warm(head, rows)  # line 25
            update_lazy_residents(head, rows, changed)
            if not head[0].lazy:
                evict_all_lazy(head, rows)  # line 26: M̂_t ∩ M_{t−1} …
        if q.recommended:
            insert_recommended(head, rows, i)  # … ∪ {q_t}, if it is in M̂_t (E2)
    elif q.recommended or size <= head[0].capacity - head[0].recommended_size:  # line 18
        add_recommendation(head, rows, i)  # line 19: M̂_t = M̂_{t−1} ∪ {q_t}; line 28 does not undo it (E1)
        insert_recommended(head, rows, i)  # line 19: M_t = M_{t−1} ∪ {q_t}
    if head[0].lazy and not q.resident and head[0].used + size <= head[0].capacity:
        insert_lazy(head, rows, i, size)


@kernel
def oracle_is_due(head: Records, rows: Records, i: int) -> bool:
    """Line 23, the accumulation rule: q_t has 1 + α times the misses it had at its last call, or t has grown as much.

    A first miss never calls (E4): one observation does not tell how often q_t returns.
    """
    h, q = head[0], rows[i]
    grown = q.misses >= 2 and q.misses >= (1.0 + h.alpha) * q.misses_at_call
    return bool(grown or h.t >= (1.0 + h.alpha) * h.last_call)


@kernel
def record_size(head: Records, rows: Records, i: int, size: int) -> None:
    """Set S(q_t), which the paper takes for constant. Drop q_t from M̂ if its grown answer no longer fits."""
    h, q = head[0], rows[i]
    if size != q.entry_size and q.misses > 1:
        h.certified = False
        make_near(head, rows, i)
    h.seen_size += size - q.entry_size
    if q.recommended:
        h.recommended_size += size - q.entry_size
        if h.recommended_size > h.capacity:
            h.recommended_size -= size
            q.recommended = False
    q.entry_size = size


@kernel
def insert_recommended(head: Records, rows: Records, i: int) -> None:
    """M ∪ {i} for a recommended i. Evicting lazy residents frees enough space, because M̂ fits the cache."""
    evict_lazy_until_fits(head, rows, rows[i].entry_size)
    insert(head, rows, i, rows[i].entry_size)


class VSOCB(Policy):
    """The paper's bandit with a knapsack Oracle, repaired."""

    head_fields: ClassVar = VSOCB_HEAD
    row_fields: ClassVar = VSOCB_ROW
    arrive_kernel = arrive
    settle_kernel = make_settle(admit, release)
    release_kernel = release  # a forgotten query stays in M̂: its next answer is admitted
    recycle_kernel = recycle

    def __init__(
        self,
        capacity: int,
        ids: int,
        *,
        alpha: float = 0.5,
        beta: float = 0.0,
        lazy: bool = False,
        skip: bool = True,
        warm: bool = True,
        confidence: Confidence = Confidence(gamma=0.0),  # noqa: B008 - frozen
    ) -> None:
        """`alpha`: growth between two Oracle calls; `beta`: tolerance of the approximate Oracle, 0 for the exact one;
        `lazy`: see lazy_residents.py; `skip`: see certificate.py; `warm`: see near_queries.py.
        """
        super().__init__(capacity, ids)
        if not 0.0 < alpha < math.inf:
            raise InvalidInput(f"alpha must be above 0 and finite, not {alpha}")
        if not 0.0 <= beta < math.inf:
            raise InvalidInput(f"beta must not be negative and must be finite, not {beta}")
        self.head["alpha"], self.head["beta"], self.head["lazy"] = alpha, beta, lazy
        self.head["skip"], self.head["warm"] = skip, warm
        confidence.write(self.head)

    @classmethod
    def for_trace(cls, capacity: int, trace: TraceLike, *, remember: int | None = None, **options: Any) -> Self:
        """Build for `trace` with an id for every key, or with a table of `remember` recycled ids."""
        return cls(capacity, number_of_ids(trace, remember), **options)

    @property
    def oracle_work(self) -> int:
        """States the Oracle examined, in all calls."""
        return int(self.head["oracle_work"][0])

    @property
    def oracle_calls_skipped(self) -> int:
        """Due calls that were skipped because they provably change nothing."""
        return int(self.head["calls_skipped"][0])

    @property
    def recommended(self) -> frozenset[int]:
        """M̂, the set the Oracle recommends."""
        return frozenset(np.flatnonzero(self.rows["recommended"]).tolist())

    def check(self) -> None:
        super().check()
        self._expect(
            "recommended_size",
            int(self.head["recommended_size"][0]),
            int(self.rows["entry_size"][self.rows["recommended"]].sum()),
        )
        self._expect("recommended size within capacity", bool(self.head["recommended_size"][0] <= self.capacity), True)
        self._expect("seen", int(self.head["seen"][0]), int((self.rows["misses"] > 0).sum()))
        self._expect("seen_size", int(self.head["seen_size"][0]), int(self.rows["entry_size"].sum()))
        arrivals = int(self.rows["arrivals"].sum()) + int(self.head["forgotten"][0])
        self._expect("t", int(self.head["t"][0]), arrivals)
        self._expect("differences of near queries", check_near(self.head, self.rows), "")
        if self.head["certified"][0]:
            self._expect("M̂ optimal", self._is_optimal(), True)
        lazy = self.rows["pool_id"][: int(self.head["pool_size"][0])].tolist()
        self._expect("lazy residents", sorted(lazy), sorted(self.residents - self.recommended))
        self._expect("pool positions of lazy residents", self.rows["pool_slot"][lazy].tolist(), list(range(len(lazy))))
        if not self.head["lazy"][0]:
            self._expect("residents outside M̂", lazy, [])

    def _is_optimal(self) -> bool:
        seen = np.flatnonzero(self.rows["misses"] > 0)
        value_of = self.form_of(relative_value)
        values = np.array([value_of(self.head, self.rows, i) for i in seen.tolist()], np.float64)
        sizes, chosen = self.rows["entry_size"][seen], np.zeros(len(seen), np.bool_)
        best = self.form_of(select)(values, sizes, self.capacity, 0.0, RELATIVE_TOLERANCE, UNLIMITED, chosen)[0]
        return bool(values[self.rows["recommended"][seen]].sum() >= best * (1.0 - KEEP_TOLERANCE))


class LazyVSOCB(VSOCB):
    """VSOCB for practical use: lazy, anytime, with a confidence bound on costs and none on arrivals.

    Every arrival is observed, so frequencies need no bound. Costs are observed on misses only: without a bound, a query
    that was expensive by chance stays resident and is never measured again. γ = 0.3 is enough
    (`knapcache experiment confidence`).
    """

    def __init__(
        self,
        capacity: int,
        ids: int,
        *,
        confidence: Confidence = Confidence(gamma=0.3, gamma_arrival=0.0),  # noqa: B008 - frozen
        **options: Any,
    ) -> None:
        super().__init__(capacity, ids, lazy=True, confidence=confidence, **options)
