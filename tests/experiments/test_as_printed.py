"""Algorithm 1 as printed, compared with a second implementation that uses sets and follows the paper line by line."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import pytest

from knapcache.errors import InvalidInput
from knapcache.estimate.statistics import Confidence
from knapcache.lab.replay import replay
from knapcache.lab.synthetic import Workload
from knapcache.lab.trace import Trace
from knapcache.policy.vsocb.policy import VSOCB
from knapcache_experiments.as_printed import REPAIRS, AsPrinted
from tests.support.textbook import textbook

pytestmark = pytest.mark.tools

QUERIES, ROUNDS, CAPACITY = 30, 700, 40
ALL = frozenset(REPAIRS)
LATER = [pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3)]


def requests(seed: int, rounds: int) -> Trace:
    return Workload(queries=100, rounds=rounds).draw(np.random.default_rng(seed))[1]


@dataclass
class PaperAlgorithm:
    """Lines 1–29 of the paper."""

    capacity: int
    alpha: float
    gamma: float
    repairs: frozenset[str]
    t: int = 0
    last: int = 0
    calls: int = 0
    wipes: int = 0
    M: set[int] = field(default_factory=set)
    M_hat: set[int] = field(default_factory=set)
    S: dict[int, int] = field(default_factory=dict)
    arrivals: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    costs: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    T_r: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def size(self, queries: set[int]) -> int:
        return sum(self.S[q] for q in queries)

    def value(self, q: int) -> float:
        """P̂·Ĉ; costs lie in [1, 2]."""
        gamma = 0.0 if "E7" in self.repairs else self.gamma
        n, f = len(self.costs[q]), self.arrivals[q] / self.t
        L1, L2 = (math.log(k * ROUNDS * QUERIES * ROUNDS) for k in (8, 16))
        cost = sum(self.costs[q]) / n - gamma * math.sqrt(L1 / (2 * n))
        arrival = f - gamma * (math.sqrt(3 * f * (1 - f) * L2 / self.t) + 5 * L2 / self.t)
        return max(0.0, arrival) * max(1.0 if "E6" in self.repairs else 0.0, cost)

    def oracle(self) -> set[int]:
        known = sorted(self.S)
        values = [self.value(q) for q in known]
        chosen, _ = textbook(values, [self.S[q] for q in known], self.capacity)
        return {q for q, wanted, value in zip(known, chosen, values, strict=True) if wanted and value > 0.0}

    def serve(self, q: int, size: int, cost: float) -> bool:
        self.t += 1
        self.arrivals[q] += 1
        hit = q in self.M
        if not hit:
            self.S[q] = size
            self.costs[q].append(cost)
        M, M_hat = self.M, self.M_hat  # of round t − 1
        if q in M_hat or self.S[q] <= self.capacity - self.size(M_hat):
            self.M, self.M_hat = M | {q}, M_hat | {q}
        T_c = len(self.costs[q])
        grown = T_c >= (1 + self.alpha) * self.T_r[q] and ("E4" not in self.repairs or T_c >= 2)
        if grown or self.t >= (1 + self.alpha) * self.last:
            self.T_r[q], self.last, self.calls = T_c, self.t, self.calls + 1
            before = self.M
            self.M_hat = self.oracle()
            self.M = self.M_hat & (M | {q} if "E2" in self.repairs else M)
            self.wipes += bool(before) and not self.M
        elif "E1" not in self.repairs:
            self.M_hat = M_hat
        return hit


@pytest.mark.parametrize("seed", [1, *LATER])
@pytest.mark.parametrize("alpha", [0.1, 0.5])
@pytest.mark.parametrize("gamma", [0.01, 1.0])
@pytest.mark.parametrize(
    "repairs", [set(), {"E1"}, {"E2"}, {"E1", "E2", "E4"}, {"E1", "E7"}, {"E6"}, ALL, ALL - {"E1"}, ALL - {"E2"}]
)
def test_decisions_equal_those_of_the_reference(repairs: set[str], gamma: float, alpha: float, seed: int) -> None:
    # Costs stay above 1: E6 clips lower ones, and equal values have several optimal sets.
    workload = Workload(queries=QUERIES, rounds=ROUNDS, costs="uniform:1.5:2.5", noise=0.1)
    trace = workload.draw(np.random.default_rng(seed))[1]
    reference = PaperAlgorithm(CAPACITY, alpha, gamma, frozenset(repairs))
    hits, used = [], []
    for q, size, cost in zip(trace.keys.tolist(), trace.sizes.tolist(), trace.costs.tolist(), strict=True):
        hits.append(reference.serve(q, size, cost))
        used.append(reference.size(reference.M))
    confidence = Confidence(gamma=gamma, T=ROUNDS, N=QUERIES, c1=1.0, c2=2.0, clip=False)
    policy = AsPrinted(CAPACITY, QUERIES, alpha=alpha, confidence=confidence, repairs=repairs)
    run = replay(policy, trace)
    assert run.hits.tolist() == hits
    assert policy.residents == reference.M
    assert run.oracle_calls == reference.calls
    assert run.peak == max(used)
    assert policy.counters == {"wipes": reference.wipes, "rounds_over": sum(size > CAPACITY for size in used)}


def as_printed(trace: Trace, repairs: frozenset[str] = frozenset(), alpha: float = 0.5) -> AsPrinted:
    confidence = Confidence(T=len(trace), N=trace.ids, c1=1.0, c2=2.0, clip=False)
    return AsPrinted(60, trace.ids, alpha=alpha, confidence=confidence, repairs=repairs)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_the_printed_algorithm_overflows_and_wipes_the_cache(seed: int, alpha: float) -> None:
    trace = requests(seed, 5_000)
    policy = as_printed(trace, alpha=alpha)
    run = replay(policy, trace)
    assert run.peak > 60
    assert policy.counters["rounds_over"] > 0
    assert policy.counters["wipes"] > 0
    repaired = as_printed(trace, frozenset({"E1"}), alpha)
    assert replay(repaired, trace).peak <= 60
    assert repaired.counters["rounds_over"] == 0


@pytest.mark.parametrize("seed", [0, 1, *LATER])
@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
def test_with_every_repair_it_costs_as_much_as_vsocb(seed: int, alpha: float) -> None:
    """Not exactly: the paper also calls the Oracle on hits."""
    trace = requests(seed, 8_000)
    repaired = replay(as_printed(trace, ALL, alpha), trace)
    confidence = Confidence(gamma=0.0, T=len(trace), N=trace.ids, c1=1.0, c2=2.0)
    ours = replay(VSOCB(60, trace.ids, alpha=alpha, confidence=confidence), trace)
    assert repaired.miss_cost == pytest.approx(ours.miss_cost, rel=0.02)
    assert repaired.peak <= 60


def test_unknown_repairs() -> None:
    with pytest.raises(InvalidInput, match=r"unknown repairs \['E99'\]; allowed are E1, "):
        AsPrinted(10, 5, alpha=0.5, confidence=Confidence(), repairs=("E1", "E99"))
