"""Our policies against libCacheSim, which its field trusts, on the same requests.

Where both do the same, hits are compared one by one. Elsewhere miss ratios may differ by half a point. Left out,
because there they differ by more:

* ARC with sizes: zipf at 1 % (ours misses 3.5 points less), mooncake at 10 % (4.1 less), oasst_zipf at 10 % (1.2 more).
  libCacheSim moves the border between T1 and T2 by bytes where the paper moves it by pages, and drops one ghost for
  each eviction, whatever their sizes; ours does as arc.py says. With equal sizes both are the paper's ARC.
* GDSF in a cache of a few answers (1 % of the 350 of oasst_zipf): 1.6 points, and we do not know why. Ours agrees there
  with the judge of plain.py, hit for hit.
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

from knapcache.policy import registry
from knapcache.sim.replay import replay
from knapcache.sim.trace import Trace

libcachesim = pytest.importorskip("libcachesim")  # has no wheels for some machines

THEIRS = {"fifo": "FIFO", "lru": "LRU", "sieve": "Sieve", "s3-fifo": "S3FIFO", "arc": "ARC", "gdsf": "GDSF"}
OPTIONS = {"s3-fifo": {"main_first": True}}  # as libCacheSim does
OPEN_TRACES = Path(os.environ.get("KNAPCACHE_TRACES") or Path(__file__).resolve().parents[3] / "shared" / "data")
HALF_A_POINT = 0.005


@cache
def zipf(*, equal: bool = False) -> Trace:
    rng = np.random.default_rng(1)
    weights = 1.0 / np.arange(1, 10_001) ** 0.9
    keys = rng.choice(10_000, 100_000, p=weights / weights.sum())
    sizes = np.clip(rng.lognormal(7.3, 1.0, 10_000), 1, None).astype(np.int64)
    return Trace(keys, np.ones_like(keys) if equal else sizes[keys], np.ones(len(keys)), 10_000)


@cache
def open_trace(name: str) -> Trace:
    """A trace of others, where it is at hand. Every key keeps its first size, since libCacheSim knows no other."""
    path = OPEN_TRACES / f"{name}.csv.gz"
    if not path.exists():
        pytest.skip(f"no {path.name} in {OPEN_TRACES}; KNAPCACHE_TRACES can name another directory")
    with gzip.open(path, "rt") as file:
        rows = [(int(row["key"]), int(row["size"])) for row in csv.DictReader(file)]
    named, first, keys = np.unique([key for key, _ in rows], return_index=True, return_inverse=True)
    sizes = np.array([size for _, size in rows])[first]
    return Trace(keys, sizes[keys], np.ones(len(keys)), len(named))


def capacity_of(trace: Trace, share: float) -> int:
    """A share of all that is ever asked for."""
    sizes = np.zeros(trace.ids, np.int64)
    sizes[trace.keys] = trace.sizes
    return int(sizes.sum() * share)


def both(name: str, trace: Trace, share: float) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Hits, ours and theirs."""
    capacity = capacity_of(trace, share)
    theirs: Any = getattr(libcachesim, THEIRS[name])(cache_size=capacity)
    requests = zip(trace.keys.tolist(), trace.sizes.tolist(), strict=True)
    hits = [theirs.get(libcachesim.Request(obj_id=key + 1, obj_size=size)) for key, size in requests]
    return replay(registry.find(name).build(capacity, trace.ids, **OPTIONS.get(name, {})), trace).hits, np.array(hits)


@pytest.mark.parametrize("share", [0.01, 0.1])
@pytest.mark.parametrize(
    ("name", "source"),
    [
        *itertools.product(["fifo", "lru", "sieve"], ["oasst_zipf_0.6"]),
        *itertools.product(["fifo", "lru", "sieve", "s3-fifo"], ["zipf", "mooncake_conversation", "adaptsize_camp"]),
    ],
)
def test_hit_for_hit(name: str, source: str, share: float) -> None:
    ours, theirs = both(name, zipf() if source == "zipf" else open_trace(source), share)
    assert np.flatnonzero(ours != theirs).tolist() == []


@pytest.mark.parametrize("share", [0.01, 0.1])
def test_arc_hit_for_hit_with_equal_sizes(share: float) -> None:
    ours, theirs = both("arc", zipf(equal=True), share)
    assert np.flatnonzero(ours != theirs).tolist() == []


@pytest.mark.parametrize(
    ("name", "source", "share"),
    [
        ("s3-fifo", "oasst_zipf_0.6", 0.01),
        ("s3-fifo", "oasst_zipf_0.6", 0.1),
        ("gdsf", "zipf", 0.01),
        ("gdsf", "zipf", 0.1),
        ("gdsf", "oasst_zipf_0.6", 0.1),
        ("gdsf", "mooncake_conversation", 0.01),
        ("gdsf", "mooncake_conversation", 0.1),
        ("gdsf", "adaptsize_camp", 0.01),
        ("gdsf", "adaptsize_camp", 0.1),
        ("arc", "zipf", 0.1),
        ("arc", "oasst_zipf_0.6", 0.01),
        ("arc", "mooncake_conversation", 0.01),
        ("arc", "adaptsize_camp", 0.01),
        ("arc", "adaptsize_camp", 0.1),
    ],
)
def test_miss_ratio_within_half_a_point(name: str, source: str, share: float) -> None:
    ours, theirs = both(name, zipf() if source == "zipf" else open_trace(source), share)
    assert abs(ours.mean() - theirs.mean()) <= HALF_A_POINT
