"""Each kind of traffic is what it says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knapcache.errors import InvalidInput
from knapcache.sim import traffic
from knapcache.sim.trace import Floats, Trace


def counts(trace: Trace) -> Floats:
    """Requests of each key, most first."""
    return np.sort(np.bincount(trace.keys))[::-1].astype(np.float64)


@given(kind=st.sampled_from(list(traffic.KINDS)), requests=st.integers(1, 3000), seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_any_number_of_requests(kind: str, requests: int, seed: int) -> None:
    trace, again = (traffic.draw(kind, requests=requests, seed=seed) for _ in range(2))
    assert len(trace) == requests
    assert len(np.unique(trace.keys)) == trace.ids, "every id is asked for"
    for field in ("keys", "sizes", "costs"):
        assert np.array_equal(getattr(trace, field), getattr(again, field))
    first = np.unique(trace.keys, return_index=True)[1]
    assert np.array_equal(trace.sizes[first][trace.keys], trace.sizes), "a key has one size"
    assert (trace.costs > 0).all()


@pytest.mark.parametrize("kind", traffic.KINDS)
def test_seeds_differ(kind: str) -> None:
    one, other = (traffic.draw(kind, requests=2000, seed=seed) for seed in (0, 1))
    assert not np.array_equal(one.sizes, other.sizes)


def test_unknown_kind_and_bad_numbers() -> None:
    with pytest.raises(InvalidInput, match="unknown kind of traffic 'rain'; there are: sessions, changes"):
        traffic.draw("rain")
    with pytest.raises(InvalidInput, match="at least 1 request"):
        traffic.draw("loop", requests=0)
    with pytest.raises(InvalidInput, match="a seed from 0 on, not 10 and -1"):
        traffic.draw("loop", requests=10, seed=-1)


@pytest.mark.parametrize("kind", traffic.KINDS)
def test_costs_follow_sizes_but_where_they_must_not(kind: str) -> None:
    trace = traffic.draw(kind)
    _, first = np.unique(trace.keys, return_index=True)
    together = np.corrcoef(np.log(trace.sizes[first]), np.log(trace.costs[first]))[0, 1]
    assert abs(together) < 0.03 if kind == "stationary" else together > 0.8
    expected = (traffic.SECONDS + traffic.SECONDS_A_TOKEN * trace.sizes / traffic.BYTES_A_TOKEN)[first].mean()
    assert trace.costs[first].mean() == pytest.approx(expected, rel=0.05)


def test_sessions_end() -> None:
    trace = traffic.draw("sessions")
    assert counts(trace).mean() == pytest.approx(1 / (1 - traffic.AGAIN), rel=0.05)
    order = np.argsort(trace.keys, kind="stable")
    gaps = np.diff(order)[np.diff(trace.keys[order]) == 0]
    assert np.median(gaps) == pytest.approx(traffic.GAP, rel=0.05)
    assert (gaps < 40_000).all(), "nobody comes back after the end"


def test_changes_deal_anew() -> None:
    parts = np.split(traffic.draw("changes").keys, 5)
    favourites = [set(np.argsort(np.bincount(part, minlength=5000))[-50:]) for part in parts]
    for a, b in itertools.pairwise(favourites):
        assert len(a & b) < 10


def test_flood_is_of_one_hits() -> None:
    assert (counts(traffic.draw("flood")) == 1).sum() == pytest.approx(60_000, rel=0.01)


def test_loop_comes_round() -> None:
    asked = traffic.loop(np.random.default_rng(0), 100_000)
    scan = asked[asked >= 4000]
    assert len(scan) == pytest.approx(30_000, rel=0.02)
    assert set((np.diff(scan) % 3000).tolist()) == {1}


def test_stationary_is_zipf() -> None:
    asked = np.bincount(traffic.stationary(np.random.default_rng(0), 100_000), minlength=20_000)
    expected = np.arange(1.0, 20_001.0) ** -0.7
    expected *= 100_000 / expected.sum()
    assert asked[:100].sum() == pytest.approx(expected[:100].sum(), rel=0.02)
    assert asked[:10_000].sum() == pytest.approx(expected[:10_000].sum(), rel=0.01)


def test_news_fade() -> None:
    """A favourite is asked for within a small part of the trace, more in the first half of that than in the second."""
    trace = traffic.draw("news")
    falling = []
    for key in np.argsort(np.bincount(trace.keys))[-200:]:
        when = np.flatnonzero(trace.keys == key)
        falling.append(np.median(when) - when[0] < (when[-1] - when[0]) / 2)
        assert np.median(when) - when[0] < 60_000
    assert np.mean(falling) > 0.9
    quarters = [len(np.unique(part)) for part in np.split(trace.keys, 4)]
    assert max(quarters) < 1.25 * min(quarters), "the first requests are like the others"


def test_half_and_half() -> None:
    asked = traffic.half(np.random.default_rng(0), 100_000)
    assert (asked < 3000).sum() == 50_000
    assert np.bincount(asked[asked >= 3000]).max() < 40
