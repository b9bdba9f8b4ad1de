"""Our policies against libCacheSim on the same requests.

Hits are compared one by one. The exception is S3-FIFO in a cache of a few answers (oasst_zipf has 350): there miss
ratios may differ by half a point.

S3-FIFO takes an option that its paper leaves open and libCacheSim sets: see s3fifo.py.

W-TinyLFU and LHD are compared by miss ratio. libCacheSim's W-TinyLFU handles sizes differently, does not count hits in
the window and halves counters less often, so sizes are equal. Its LHD first recomputes densities after 2^20 requests
and draws 8 answers, so the trace is long, ours gets the same options, and the second half of the requests is compared.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from knapcache.lab.replay import replay
from knapcache.lab.trace import Trace
from knapcache.policy import registry
from tests.support.programs import find_module

libcachesim = find_module("libcachesim", "the package libcachesim")  # has no wheels for some machines

THEIRS = {"fifo": "FIFO", "lru": "LRU", "sieve": "Sieve", "s3-fifo": "S3FIFO", "arc": "ARC", "gdsf": "GDSF"}
OPTIONS = {"s3-fifo": {"main_first": True}}  # as libCacheSim does
OPEN_TRACES = Path(os.environ.get("KNAPCACHE_TRACES") or Path(__file__).resolve().parents[3] / "shared" / "data")
HALF_A_POINT = 0.005
TWO_POINTS = 0.02
LHD_PERIOD, LHD_REQUESTS = 1 << 20, 4_000_000


@cache
def zipf(*, equal: int = 0, requests: int = 30_000) -> Trace:
    """Zipf keys with log-normal sizes, or all of one size."""
    rng = np.random.default_rng(1)
    weights = 1.0 / np.arange(1, 10_001) ** 0.9
    keys = rng.choice(10_000, requests, p=weights / weights.sum())
    sizes = np.clip(rng.lognormal(7.3, 1.0, 10_000), 1, None).astype(np.int64)
    return Trace(keys, np.full_like(keys, equal) if equal else sizes[keys], np.ones(len(keys)), 10_000)


@cache
def open_trace(name: str) -> Trace:
    """A public trace, if the file is there. Every key keeps its first size: libCacheSim supports no other."""
    path = OPEN_TRACES / f"{name}.csv.gz"
    if not path.exists():
        pytest.skip(f"no {path.name} in {OPEN_TRACES}; KNAPCACHE_TRACES can name another directory")
    with gzip.open(path, "rt") as file:
        rows = [(int(row["key"]), int(row["size"])) for row in itertools.islice(csv.DictReader(file), 30_000)]
    distinct, first, keys = np.unique([key for key, _ in rows], return_index=True, return_inverse=True)
    sizes = np.array([size for _, size in rows])[first]
    return Trace(keys, sizes[keys], np.ones(len(keys)), len(distinct))


def trace_of(source: str) -> Trace:
    return zipf() if source == "zipf" else open_trace(source)


def capacity_of(trace: Trace, share: float) -> int:
    """A share of the working set."""
    sizes = np.zeros(trace.ids, np.int64)
    sizes[trace.keys] = trace.sizes
    return int(sizes.sum() * share)


@cache
def theirs_on(name: str, trace: Trace, capacity: int) -> npt.NDArray[np.bool_]:
    """Hits of libCacheSim."""
    theirs: Any = getattr(libcachesim, THEIRS[name])(cache_size=capacity)
    requests = zip(trace.keys.tolist(), trace.sizes.tolist(), strict=True)
    return np.array([theirs.get(libcachesim.Request(obj_id=key + 1, obj_size=size)) for key, size in requests])


def both(name: str, trace: Trace, share: float) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Our hits and theirs."""
    capacity = capacity_of(trace, share)
    ours = replay(registry.find(name).build(capacity, trace.ids, **OPTIONS.get(name, {})), trace).hits
    return ours, theirs_on(name, trace, capacity)


@pytest.mark.parametrize("share", [0.01, 0.1])
@pytest.mark.parametrize(
    ("name", "source"),
    [
        *itertools.product(["fifo", "lru", "sieve", "arc", "gdsf"], ["oasst_zipf_0.6"]),
        *itertools.product(THEIRS, ["zipf", "mooncake_conversation", "adaptsize_camp"]),
    ],
)
def test_decisions_match_hit_for_hit(name: str, source: str, share: float) -> None:
    ours, theirs = both(name, trace_of(source), share)
    assert np.flatnonzero(ours != theirs).tolist() == []


@pytest.mark.parametrize("share", [0.01, 0.1])
@pytest.mark.parametrize("size", [1, 700])
def test_arc_matches_hit_for_hit_with_equal_sizes(size: int, share: float) -> None:
    ours, theirs = both("arc", zipf(equal=size), share)
    assert np.flatnonzero(ours != theirs).tolist() == []


@pytest.mark.parametrize("share", [0.01, 0.1])
def test_s3_fifo_miss_ratio_is_within_half_a_point(share: float) -> None:
    ours, theirs = both("s3-fifo", open_trace("oasst_zipf_0.6"), share)
    assert abs(ours.mean() - theirs.mean()) <= HALF_A_POINT


def miss_ratios(name: str, theirs: str, trace: Trace, share: float, start: int, **options: int) -> tuple[float, float]:
    """Our miss ratio and theirs from request `start` on."""
    capacity = capacity_of(trace, share)
    ours = replay(registry.find(name).build(capacity, trace.ids, **options), trace).hits
    cache: Any = getattr(libcachesim, theirs)(cache_size=capacity, hashpower=16)
    requests = zip(trace.keys.tolist(), trace.sizes.tolist(), strict=True)
    hits = np.array([cache.get(libcachesim.Request(obj_id=key + 1, obj_size=size)) for key, size in requests])
    return 1.0 - float(ours[start:].mean()), 1.0 - float(hits[start:].mean())


@pytest.mark.parametrize("share", [0.03, 0.1, 0.3])
def test_w_tinylfu_miss_ratio_is_within_two_points_with_equal_sizes(share: float) -> None:
    ours, theirs = miss_ratios("w-tinylfu", "WTinyLFU", zipf(equal=1), share, 0)
    assert abs(ours - theirs) <= TWO_POINTS


@pytest.mark.long
@pytest.mark.parametrize("equal", [0, 1])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.3])
def test_lhd_miss_ratio_is_within_two_points(share: float, equal: int) -> None:
    trace = zipf(equal=equal, requests=LHD_REQUESTS)
    options = {"samples": 8, "period": LHD_PERIOD}
    ours, theirs = miss_ratios("lhd", "LHD", trace, share, LHD_REQUESTS // 2, **options)
    assert abs(ours - theirs) <= TWO_POINTS
