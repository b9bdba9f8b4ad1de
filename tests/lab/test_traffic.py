"""Each kind of traffic has its documented properties."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knapcache.errors import InvalidInput
from knapcache.lab import traffic
from knapcache.lab.trace import Floats, Trace


def counts(trace: Trace) -> Floats:
    """Return the number of requests of each key, in decreasing order."""
    return np.sort(np.bincount(trace.keys))[::-1].astype(np.float64)


@given(kind=st.sampled_from(list(traffic.KINDS)), requests=st.integers(1, 3000), seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_any_number_of_requests(kind: str, requests: int, seed: int) -> None:
    trace, again = (traffic.draw(kind, requests=requests, seed=seed) for _ in range(2))
    assert len(trace) == requests
    assert len(np.unique(trace.keys)) == trace.ids, "every id is requested"
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
    with pytest.raises(InvalidInput, match="unknown kind of traffic 'rain': allowed are sessions, changes"):
        traffic.draw("rain")
    with pytest.raises(InvalidInput, match="requests must be at least 1"):
        traffic.draw("loop", requests=0)
    with pytest.raises(InvalidInput, match="seed at least 0, not 10 and -1"):
        traffic.draw("loop", requests=10, seed=-1)


@pytest.mark.parametrize("kind", traffic.KINDS)
def test_costs_depend_on_sizes_except_for_stationary_traffic(kind: str) -> None:
    trace = traffic.draw(kind)
    _, first = np.unique(trace.keys, return_index=True)
    correlation = np.corrcoef(np.log(trace.sizes[first]), np.log(trace.costs[first]))[0, 1]
    assert abs(correlation) < 0.03 if kind == "stationary" else correlation > 0.8
    expected = (traffic.SECONDS + traffic.SECONDS_PER_TOKEN * trace.sizes / traffic.BYTES_PER_TOKEN)[first].mean()
    assert trace.costs[first].mean() == pytest.approx(expected, rel=0.05)


def test_sessions_end() -> None:
    trace = traffic.draw("sessions")
    assert counts(trace).mean() == pytest.approx(1 / (1 - traffic.REPEAT), rel=0.05)
    order = np.argsort(trace.keys, kind="stable")
    gaps = np.diff(order)[np.diff(trace.keys[order]) == 0]
    assert np.median(gaps) == pytest.approx(traffic.GAP, rel=0.05)
    assert (gaps < 40_000).all(), "no request after the end of a session"


def test_changes_reshuffle_popularity() -> None:
    parts = np.split(traffic.draw("changes").keys, 5)
    popular = [set(np.argsort(np.bincount(part, minlength=5000))[-50:]) for part in parts]
    for a, b in itertools.pairwise(popular):
        assert len(a & b) < 10


def test_flood_consists_of_one_hits() -> None:
    assert (counts(traffic.draw("flood")) == 1).sum() == pytest.approx(60_000, rel=0.01)


def test_loop_repeats_its_scan() -> None:
    keys = traffic.loop(np.random.default_rng(0), 100_000)
    scan = keys[keys >= 4000]
    assert len(scan) == pytest.approx(30_000, rel=0.02)
    assert set((np.diff(scan) % 3000).tolist()) == {1}


def test_stationary_is_zipf() -> None:
    keys = np.bincount(traffic.stationary(np.random.default_rng(0), 100_000), minlength=20_000)
    expected = np.arange(1.0, 20_001.0) ** -0.7
    expected *= 100_000 / expected.sum()
    assert keys[:100].sum() == pytest.approx(expected[:100].sum(), rel=0.02)
    assert keys[:10_000].sum() == pytest.approx(expected[:10_000].sum(), rel=0.01)


def test_news_fades() -> None:
    """A popular key is requested in a small part of the trace, more often in the first half of it than in the
    second.
    """
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
    keys = traffic.half(np.random.default_rng(0), 100_000)
    assert (keys < 3000).sum() == 50_000
    assert np.bincount(keys[keys >= 3000]).max() < 40
