"""Slices have all requests of a key or none, share no key, and depend only on the seed."""

from __future__ import annotations

import numpy as np
import pytest

from knapcache.errors import InvalidInput
from knapcache.lab import sampling
from knapcache.lab.sampling import AUTO, SLICES, hashes, parse_sample, take_sample
from knapcache.lab.synthetic import Workload
from knapcache.lab.trace import Trace

_, TRACE = Workload(queries=4000, rounds=40_000, arrivals="zipf:0.6").draw(np.random.default_rng(5))


def marked() -> Trace:
    """Return a trace whose costs are request numbers and whose sizes are keys + 1."""
    return Trace(TRACE.keys, TRACE.keys + 1, np.arange(len(TRACE), dtype=np.float64), TRACE.ids)


def test_a_key_is_in_one_slice_with_all_its_requests_in_order() -> None:
    sample = take_sample(marked(), 10_000)
    assert len(sample.slices) == SLICES
    assert sample.rate == pytest.approx(10_000 / 40_000 / SLICES)
    seen: set[int] = set()
    for piece in sample.slices:
        keys = set((piece.sizes - 1).tolist())
        assert not keys & seen
        seen |= keys
        wanted = np.flatnonzero(np.isin(TRACE.keys, list(keys)))
        assert np.array_equal(piece.costs, wanted)
        assert piece.ids == len(keys) == len(set(piece.keys.tolist()))
    assert len(seen) == pytest.approx(1000, rel=0.1)
    assert sum(map(len, sample.slices)) == pytest.approx(10_000, rel=0.2)


def test_a_sample_depends_only_on_the_seed() -> None:
    one, two, other = (take_sample(marked(), 10_000, seed=seed).slices[0].costs for seed in (3, 3, 4))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)


def test_hashes_are_spread_evenly() -> None:
    found = hashes(np.arange(100_000), 0)
    assert 0.0 <= found.min() <= found.max() < 1.0
    counts, _ = np.histogram(found, 100, (0.0, 1.0))
    assert ((counts - 1000) ** 2 / 1000).sum() < 149  # χ² with 99 degrees, 1 in 1000
    assert len(set(found.tolist())) == 100_000


def test_small_logs_are_not_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    for amount in (None, AUTO, 40_000, 10**9):
        sample = take_sample(TRACE, amount)
        assert sample.whole
        assert sample.slices == (TRACE,)
        assert sample.scaled_capacity(7) == 7
    # 20,000 of 40,000 requests, but slices of 500 keys are too small to trust.
    monkeypatch.setattr(sampling, "DEFAULT_REQUESTS", 20_000)
    assert take_sample(TRACE, AUTO).whole
    monkeypatch.setattr(sampling, "MIN_KEYS", 100)
    assert take_sample(TRACE, AUTO).rate == 0.5 / SLICES


def test_capacities_shrink_with_the_sample() -> None:
    sample = take_sample(TRACE, 10_000)
    assert sample.scaled_capacity(1600) == 100
    assert sample.scaled_capacity(16) == 1
    with pytest.raises(InvalidInput, match="a capacity of 15 is less than one unit in a sample of one key in 16"):
        sample.scaled_capacity(15)


def test_a_sample_without_requests_is_an_error() -> None:
    with pytest.raises(InvalidInput, match="a sample of 1 requests leaves a slice without any"):
        take_sample(TRACE, 1)


def test_parsing_of_the_sample_option() -> None:
    assert [parse_sample(text) for text in ("auto", "off", "5000")] == [AUTO, None, 5000]
    for text in ("", "0", "-1", "1.5", "some"):
        with pytest.raises(InvalidInput, match="sample must be auto, off or a number"):
            parse_sample(text)
