"""Curves, knees and prices against examples computed by hand and against full replays."""

from __future__ import annotations

import numpy as np
import pytest

from knapcache import oracle
from knapcache.errors import InvalidInput
from knapcache.lab.grid import replay_grid
from knapcache.lab.plan import CapacityPlan, knee, make_plan, oracle_prices, prices
from knapcache.lab.sampling import take_sample
from knapcache.lab.summary import cost, recommendation, table
from knapcache.lab.synthetic import Workload
from knapcache.lab.trace import Trace, trace_stats

# Keys 0, 1, 0, 1, 2, 0: of sizes 10, 30, 60 and costs 4, 6, 5.
KEYS = np.array([0, 1, 0, 1, 2, 0])
SIZES, COSTS = np.array([10, 30, 60]), np.array([4.0, 6.0, 5.0])


def small(times: object = None) -> Trace:
    when = None if times is None else np.array(times, np.float64)
    return Trace(KEYS, SIZES[KEYS], COSTS[KEYS], 3, times=when)


@pytest.fixture(scope="module")
def zipf() -> Trace:
    return Workload(queries=20_000, rounds=200_000, arrivals="zipf:0.9", noise=0.2).draw(np.random.default_rng(7))[1]


def test_knee() -> None:
    assert knee([10, 100], [0.0, 10.0], 10.0) == 80  # 10·10^0.9 = 79.4, rounded up
    assert knee([10, 20, 40], [2.0, 9.0, 10.0], 10.0) == 20
    assert knee([10, 20], [9.5, 10.0], 10.0) == 10  # already at the first capacity
    assert knee([10, 20], [3.0, 8.9], 10.0) is None
    assert knee([10, 20], [0.0, 0.0], 0.0) is None
    assert knee([10, 20, 40], [0.0, 8.0, 10.0], 10.0) == 29  # 20·2^0.5 = 28.3
    assert knee([5], [1.0], 1.0) == 5


def test_prices() -> None:
    assert prices([10, 20, 40], [1.0, 3.0, 4.0], 40) == [0.2, 0.05, 0.0]
    assert prices([10, 20], [1.0, 3.0], 40) == [0.2, None]
    assert prices([10, 20], [3.0, 1.0], 40) == [-0.2, None]
    assert prices([10], [1.0], 40) == [None]


def test_oracle_prices_equal_the_oracles() -> None:
    # Values 8, 6 and 0: 0.8 and 0.2 per unit; the third has no value. Items larger than the capacity do not count.
    assert oracle_prices(small(), [5, 10, 39, 40, 100]) == [0.0, 0.0, 0.2, 0.0, 0.0]
    _, trace = Workload(queries=50, rounds=2000).draw(np.random.default_rng(1))
    first = np.unique(trace.keys, return_index=True)[1]
    values = np.bincount(trace.keys, trace.costs).astype(np.float64)
    values[trace.keys[first]] -= trace.costs[first]
    sizes = trace.sizes[first]
    for capacity in (1, 20, 100, 10_000):
        solved = oracle.solve(values[trace.keys[first]], sizes, capacity)
        assert oracle_prices(trace, [capacity]) == [pytest.approx(solved.price)]


def test_a_plan_by_hand() -> None:
    """Unlimited capacity saves all but the first requests: 2·4 + 6 of 29."""
    plan = make_plan(small(), ["lru"], "10,40,100", jobs=1)
    assert (plan.stats.requests, plan.stats.keys, plan.stats.working_set) == (6, 3, 100)
    assert (plan.stats.total_cost, plan.stats.largest_saving, plan.stats.seconds) == (29.0, 14.0, None)
    assert plan.capacities == (10, 40, 100)
    (curve,) = plan.curves
    # 10: only key 0 fits, and stays. 40: keys 0 and 1 fit, and key 2 is too large to be admitted.
    assert curve.saved == pytest.approx([8.0, 14.0, 14.0])
    assert curve.errors is None
    assert curve.prices == pytest.approx([0.2, 0.0, 0.0])
    assert curve.knee == 29  # 12.6 of 14 is (12.6 − 8) / 6 of the way from 10 to 40: 10·4^0.767 = 28.9
    assert plan.recommendation is not None
    assert (plan.recommendation.capacity, plan.recommendation.at_knee) == (29, True)
    assert plan.recommendation.saved == pytest.approx(12.6)
    assert plan.projection is not None
    assert (plan.projection.saved, plan.projection.per_day) == (plan.recommendation.saved, None)


def test_the_span_is_that_of_the_times() -> None:
    assert trace_stats(small([0, 1, 2, 3, 4, 43_200])).seconds == 43_200
    assert trace_stats(small([43_200, 1, 2, 3, 4, 0])).seconds == 43_200  # times need not be in order
    assert trace_stats(small([5] * 6)).seconds == 0
    assert trace_stats(small()).seconds is None


def test_savings_are_those_of_the_logs_own_span() -> None:
    """Key 0 of cost 4 twice after the first, key 1 of cost 6 once: 14, whether the log spans seconds or days."""
    for seconds in (6, 3600, 86_399):
        plan = make_plan(small([0, 1, 2, 3, 4, seconds]), ["lru"], "100", jobs=1)
        assert plan.curves[0].saved == (14.0,)
        assert plan.projection is not None
        assert plan.projection.per_day is None, "less than a day is not projected"
        text = recommendation(plan)
        assert "saves 14 units of cost" in text
        assert "less than a day" in text
        assert "a day," not in text


def test_a_log_of_days_is_projected_with_a_range() -> None:
    """Six days, each with the same three keys: key 0 pays on the first day, and all else is saved."""
    days = 6
    keys = np.tile([0, 0, 1], days)
    times = np.repeat(np.arange(days) * 86_400.0, 3) + np.tile([0.0, 10.0, 20.0], days)
    trace = Trace(keys, SIZES[keys], COSTS[keys], 2, times=np.append(times[:-1], days * 86_400.0), unit="usd")
    plan = make_plan(trace, ["lru"], "100%", jobs=1)
    found = plan.projection
    assert found is not None
    assert found.per_day is not None
    assert found.per_day_low is not None
    assert found.per_day_high is not None
    assert 0.0 < found.per_day_low < found.per_day < found.per_day_high
    assert found.per_day == pytest.approx(found.saved / days, rel=0.3)
    assert "Projected: $" in recommendation(plan)
    assert " a day, between $" in recommendation(plan)


def by_sample(trace: Trace, seed: int) -> CapacityPlan:
    return make_plan(take_sample([trace], 50_000, seed=seed), ["lru", "gdsf-cost"], "1%..60%:4", jobs=1)


def test_a_sample_estimates_the_full_replay(zipf: Trace) -> None:
    """Estimates are within a few points of the full replay, and few are off by more than two standard errors."""
    whole = make_plan(zipf, ["lru", "gdsf-cost"], "1%..60%:4", jobs=1)
    rows = replay_grid(zipf, ["gdsf-cost"], list(whole.capacities), jobs=1)
    assert [cost(whole, "gdsf-cost", k)[0] for k in range(4)] == pytest.approx([row["cost_ratio"] for row in rows])
    off, beyond = [], 0
    for seed in range(4):
        plan = by_sample(zipf, seed)
        assert plan.sampled == pytest.approx(50_000, rel=0.3)
        for policy in ("lru", "gdsf-cost"):
            for k in range(4):
                (estimate, error), (truth, _) = cost(plan, policy, k), cost(whole, policy, k)
                assert estimate is not None
                assert truth is not None
                assert error is not None
                off.append(abs(estimate - truth))
                beyond += off[-1] > 2 * error + 0.002
    assert max(off) < 0.05
    assert np.mean(off) < 0.01
    assert beyond <= len(off) // 4


def test_equal_seeds_give_equal_plans(zipf: Trace) -> None:
    assert by_sample(zipf, 1) == by_sample(zipf, 1)
    assert by_sample(zipf, 1) != by_sample(zipf, 2)


def test_tiny_traces() -> None:
    one = Trace(np.array([0]), np.array([1]), np.array([2.0]), 1, times=np.array([5.0]))
    plan = make_plan(one, jobs=1)
    assert plan.capacities == (1,)
    assert plan.recommendation is None
    assert recommendation(plan).startswith("A cache saves nothing on this log")
    assert table(plan)[0]["lru"] == "1.000"
    free = Trace(np.array([0, 0]), np.array([1, 1]), np.zeros(2), 1)
    assert table(make_plan(free, ["lru"], jobs=1))[0]["lru"] == ""


def test_offline_policies_are_not_recommended() -> None:
    assert make_plan(small(), ["static"], jobs=1).recommendation is None
    recommendation = make_plan(small(), ["static", "lru"], "10", jobs=1).recommendation
    assert recommendation is not None
    assert (recommendation.policy, recommendation.capacity, recommendation.at_knee) == ("lru", 10, False)


def test_bad_arguments() -> None:
    with pytest.raises(InvalidInput, match="the trace has no requests"):
        make_plan(Trace(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), 1))
    with pytest.raises(InvalidInput, match="unknown policy"):
        make_plan(small(), ["lrru"])
    _, trace = Workload(queries=400, rounds=4000).draw(np.random.default_rng(1))
    with pytest.raises(InvalidInput, match="a capacity of 1 is less than one unit in a sample"):
        make_plan(take_sample([trace], 2000), ["lru"], "1")
