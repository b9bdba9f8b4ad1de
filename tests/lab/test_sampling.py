"""Slices have all requests of a key or none, share no key, and depend only on the seed.

Estimates cover the exact result of the whole log, and the memory of reading does not grow with the log.
"""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from knapcache.errors import InvalidInput
from knapcache.lab import sampling
from knapcache.lab.grid import replay_grid
from knapcache.lab.projection import t_quantile
from knapcache.lab.sampling import AUTO, SLICES, Sample, Sampler, hashes, parse_sample, take_sample
from knapcache.lab.synthetic import Workload
from knapcache.lab.trace import Trace, trace_stats
from knapcache.lab.traces import base, csv_file, json_lines, read_trace
from knapcache.lab.traces.oracle_general import RECORD

_, TRACE = Workload(queries=4000, rounds=40_000, arrivals="zipf:0.6").draw(np.random.default_rng(5))
POLICIES = ["lru", "gdsf-cost", "adaptive"]


def marked() -> Trace:
    """Return a trace whose costs are request numbers and whose sizes are keys + 1."""
    return Trace(TRACE.keys, TRACE.keys + 1, np.arange(len(TRACE), dtype=np.float64), TRACE.ids)


def pieces(trace: Trace, size: int) -> list[Trace]:
    return [
        Trace(trace.keys[a : a + size], trace.sizes[a : a + size], trace.costs[a : a + size], trace.ids)
        for a in range(0, len(trace), size)
    ]


def content(sample: Sample) -> list[list[float]]:
    return [piece.costs.tolist() for piece in sample.slices]


def test_a_key_is_in_one_slice_with_all_its_requests_in_order() -> None:
    sample = take_sample([marked()], 10_000)
    assert len(sample.slices) == SLICES
    assert sample.rate == pytest.approx(10_000 / 40_000, rel=0.2)
    assert sample.slice_rate == sample.rate / SLICES
    seen: set[int] = set()
    for piece in sample.slices:
        keys = set((piece.sizes - 1).tolist())
        assert not keys & seen
        seen |= keys
        wanted = np.flatnonzero(np.isin(TRACE.keys, list(keys)))
        assert np.array_equal(piece.costs, wanted)
        assert piece.ids == len(keys) == len(set(piece.keys.tolist()))
    assert len(seen) == pytest.approx(1000, rel=0.2)
    assert 9_900 < sum(map(len, sample.slices)) == len(sample.trace) <= 10_000


def test_a_sample_depends_only_on_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, other = (take_sample([marked()], 10_000, seed=seed) for seed in (3, 3, 4))
    assert content(one) == content(two) != content(other)
    for size in (100, 7000):  # the threshold falls at other requests, and ends the same
        assert content(take_sample(pieces(marked(), size), 10_000, seed=3)) == content(one)
    monkeypatch.setattr(sampling, "MAX_CHUNKS", 3)
    assert content(take_sample(pieces(marked(), 100), 10_000, seed=3)) == content(one)


def test_hashes_are_spread_evenly() -> None:
    found = hashes(np.arange(100_000), 0)
    assert 0.0 <= found.min() <= found.max() < 1.0
    counts, _ = np.histogram(found, 100, (0.0, 1.0))
    assert ((counts - 1000) ** 2 / 1000).sum() < 149  # χ² with 99 degrees, 1 in 1000
    assert len(set(found.tolist())) == 100_000


def test_small_logs_are_not_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    for amount in (None, AUTO, 40_000, 10**9):
        sample = take_sample([TRACE], amount)
        assert sample.whole
        assert sample.slices == (sample.trace,)
        assert np.array_equal(sample.trace.costs, TRACE.costs)
        assert sample.stats == trace_stats(TRACE)
        assert sample.scaled_capacity(7) == 7
    # 20,000 of 40,000 requests, but slices of 500 keys are too small to trust.
    monkeypatch.setattr(sampling, "DEFAULT_REQUESTS", 20_000)
    assert take_sample([TRACE], AUTO).whole
    monkeypatch.setattr(sampling, "MIN_KEYS", 600)
    assert take_sample([TRACE], AUTO).trace.ids == SLICES * 600
    monkeypatch.setattr(sampling, "MIN_KEYS", 100)
    assert 19_900 < len(take_sample([TRACE], AUTO).trace) <= 20_000
    monkeypatch.setattr(sampling, "MIN_KEYS", 1000)
    monkeypatch.setattr(sampling, "MAX_REQUESTS", 25_000)  # the bound of memory, whatever the number of keys
    assert 24_900 < len(take_sample([TRACE], AUTO).trace) <= 25_000


def test_capacities_shrink_with_the_sample() -> None:
    sample = Sample(TRACE, (TRACE,) * SLICES, 0.25, trace_stats(TRACE))
    assert sample.scaled_capacity(1600) == 100
    assert sample.scaled_capacity(16) == 1
    with pytest.raises(InvalidInput, match="a capacity of 15 is less than one unit in a sample of one key in 16"):
        sample.scaled_capacity(15)


def test_a_sample_without_requests_is_an_error() -> None:
    with pytest.raises(InvalidInput, match="the sample has a slice without requests"):
        take_sample([TRACE], 1)


def test_parsing_of_the_sample_option() -> None:
    assert [parse_sample(text) for text in ("auto", "off", "5000")] == [AUTO, None, 5000]
    for text in ("", "0", "-1", "1.5", "some"):
        with pytest.raises(InvalidInput, match="sample must be auto, off or a number"):
            parse_sample(text)


def test_totals_of_the_whole_log() -> None:
    """Requests, cost and span are exact; what depends on the number of keys is close, although 3 % are sampled."""
    workload = Workload(queries=20_000, rounds=200_000, one_hits=0.3, costs="lognormal", sizes="lognormal:900")
    chunks = list(workload.chunks(np.random.default_rng(1)))
    times = np.arange(200_000.0)
    whole = take_sample(chunks, None).stats
    sampler = Sampler(6000)
    for chunk in chunks:
        sampler.extend(chunk.keys.view(np.uint64), chunk.sizes, chunk.costs, times[: len(chunk)])
        times = times[len(chunk) :]
    found = sampler.sample(sampler.trace("usd")).stats
    assert (found.requests, found.seconds, found.unit) == (200_000, 199_999.0, "usd")
    assert found.total_cost == pytest.approx(whole.total_cost, rel=1e-12)
    for name in ("keys", "working_set", "largest_saving"):
        assert getattr(found, name) == pytest.approx(getattr(whole, name), rel=1e-3), name
    sampler.extend(np.zeros(1, np.uint64), np.ones(1, np.int64), np.ones(1), None)
    assert sampler.sample(sampler.trace()).stats.seconds is None, "one request without a time"


def test_a_full_bitmap_still_estimates_the_number_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three keys for each bit: 95 % of the bits are set."""
    monkeypatch.setattr(sampling, "BITS", 16)
    keys = np.arange(3 << 16)
    trace = Trace(keys, np.full(len(keys), 5), np.ones(len(keys)), len(keys))
    stats = take_sample([trace], 1000).stats
    assert stats.keys == pytest.approx(len(keys), rel=0.05)
    assert stats.working_set == pytest.approx(5 * len(keys), rel=0.05)
    assert stats.largest_saving == pytest.approx(0.0, abs=0.05 * len(keys))


def coverage(requests: int, capacities: list[str], seeds: range) -> float:
    """Return how often the 95 % interval of a sample of a tenth covers the exact result of the whole log."""
    workload = Workload(
        queries=requests // 10, rounds=requests, arrivals="zipf:0.9", sizes="lognormal:1000", costs="lognormal",
        noise=0.3, one_hits=0.1,
    )  # fmt: skip
    chunks = list(workload.chunks(np.random.default_rng(3)))
    exact = replay_grid(take_sample(chunks, None), POLICIES, capacities, jobs=1)
    units = [row["capacity"] for row in exact[:: len(POLICIES)]]
    t = t_quantile(SLICES - 1)
    covered = []
    for seed in seeds:
        rows = replay_grid(take_sample(chunks, requests // 10, seed=seed), POLICIES, units, jobs=1)
        for row, truth in zip(rows, exact, strict=True):
            assert (row["policy"], row["capacity"]) == (truth["policy"], truth["capacity"])
            assert row["requests"] == truth["requests"]
            assert row["cost_ratio_error"] < 0.1
            assert row["peak_size"] == pytest.approx(truth["peak_size"], rel=0.02)
            covered.append(abs(row["cost_ratio"] - truth["cost_ratio"]) < t * row["cost_ratio_error"])
            covered.append(abs(row["hits"] - truth["hits"]) < t * row["hits_error"])
    return float(np.mean(covered))


def test_intervals_cover_the_exact_result() -> None:
    assert coverage(400_000, ["5%"], range(3)) >= 0.9


@pytest.mark.long
def test_intervals_cover_the_exact_result_at_their_confidence() -> None:
    assert coverage(1_000_000, ["1%", "5%", "20%"], range(20)) >= 0.93


def test_sampling_while_reading_is_sampling(tmp_path: Path) -> None:
    """A file whose keys are the ids of a trace gives the same sample as the trace."""
    records = np.zeros(len(TRACE), RECORD)
    records["time"], records["id"], records["size"] = np.arange(len(TRACE)), TRACE.keys, TRACE.sizes
    records.tofile(tmp_path / "trace.oracleGeneral")
    sampler = Sampler(10_000, seed=2)
    trace = read_trace(tmp_path / "trace.oracleGeneral", sampler=sampler)
    assert trace.unit == "misses"
    wanted = take_sample([Trace(TRACE.keys, TRACE.sizes, np.ones(len(TRACE)), TRACE.ids)], 10_000, seed=2)
    found = sampler.sample(trace)
    for one, two in zip(found.slices, wanted.slices, strict=True):
        assert np.array_equal(one.keys, two.keys)
        assert np.array_equal(one.sizes, two.sizes)
    assert found.stats.seconds == len(TRACE) - 1


FILLER = 1000 * "x"
"""Makes the shorter log fill the buffers of its reader."""
LINES: dict[str, Callable[[int], str]] = {
    "csv": lambda key: f"{key},k{key},{key % 50 + 1},1.5",
    # With a time that is a text, requests are added one by one.
    "jsonl": lambda key: f'{{"time": "2026-01-01", "key": {key}, "size": 5, "cost": 1.5, "text": "{FILLER}"}}',
}


@pytest.mark.parametrize("name", LINES)
def test_memory_does_not_grow_with_the_log(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log grows to ten times its length. Without a sampler, the memory of the same reader grows with it."""
    monkeypatch.setattr(sampling, "BITS", 16)
    monkeypatch.setattr(base, "CHUNK", 200)
    monkeypatch.setattr(csv_file, "BLOCK", 1 << 12)
    monkeypatch.setattr(json_lines, "ROWS", 50)
    peaks: dict[bool, list[int]] = {True: [], False: []}
    for lines in (400, 400, 4000):  # once to load the kernels
        path = tmp_path / f"{lines}.gz"
        text = "time,key,size,cost\n" if name == "csv" else ""
        path.write_bytes(gzip.compress((text + "".join(f"{LINES[name](k // 2)}\n" for k in range(lines))).encode(), 1))
        for sampled, found in peaks.items():
            sampler = Sampler(100) if sampled else None
            tracemalloc.start()
            trace = read_trace(path, format=name, sampler=sampler)
            found.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
            if sampler is not None:
                stats = sampler.sample(trace).stats
                assert stats.requests == lines
                assert stats.keys == pytest.approx(lines // 2, rel=0.05)
                assert 90 < len(trace) <= 100
    growth = {sampled: found[2] - found[1] for sampled, found in peaks.items()}
    assert growth[True] < 0.1 * peaks[True][1]
    assert growth[True] < 0.5 * growth[False]
