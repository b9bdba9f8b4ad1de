"""The experiment `cluster`: designs against transcriptions and plain replays, its rows, and the tables of the docs."""

from __future__ import annotations

import csv
import heapq
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knapcache.cli.main import main
from knapcache.errors import InvalidInput
from knapcache.lab.replay import replay
from knapcache.lab.synthetic import Workload
from knapcache.lab.trace import Trace
from knapcache.policy import registry
from knapcache.policy.base import Policy
from knapcache_experiments.catalogue import EXPERIMENTS
from knapcache_experiments.cluster import ClusterSettings, label
from knapcache_experiments.cluster_designs import ClusterCell, miss_cost, replay_late, replay_parts
from tests.support.examples import examples

pytestmark = pytest.mark.tools

ROOT = Path(__file__).resolve().parents[2]
POLICIES = ("lru", "adaptive")  # the loop is compiled for every policy
CLUSTER = EXPERIMENTS["cluster"]
_, TRACE = Workload(queries=60, rounds=3000, changes=2, one_hits=0.2).draw(np.random.default_rng(5))
CELL = ClusterCell(trace="a", policy="lru", capacity=90, capacity_text="90", design="shared")


@st.composite
def small_traces(draw: st.DrawFn) -> Trace:
    """Draw traces in which a key has one cost but several sizes."""
    ids = draw(st.integers(1, 8))
    keys = draw(st.lists(st.integers(0, ids - 1), min_size=1, max_size=60))
    sizes = draw(st.lists(st.integers(1, 6), min_size=len(keys), max_size=len(keys)))
    costs = draw(st.lists(st.integers(0, 9), min_size=ids, max_size=ids))
    return Trace(np.array(keys), np.array(sizes), np.array([float(costs[i]) for i in keys]), ids)


def slow_late(
    policy: Policy, trace: Trace, hits_late: int, settles_late: int, nursery_limit: int
) -> tuple[list[bool], int]:
    """One decider with an explicit queue of reports; returns hits and the largest total size."""
    nursery: list[tuple[int, int, int]] = []  # request, key and size, in order of arrival

    def used() -> int:
        return policy.used + sum(size for _, _, size in nursery)

    hits, peak, queue = [], 0, list[tuple[int, int]]()
    requests = list(zip(trace.keys.tolist(), trace.sizes.tolist(), trace.costs.tolist(), strict=True))
    for k, (key, size, _) in enumerate(requests):
        hits.append(key in policy.residents or any(other == key for _, other, _ in nursery))
        if not hits[-1] and size <= nursery_limit:
            while sum(other for _, _, other in nursery) + size > nursery_limit:
                del nursery[0]
            nursery.append((k, key, size))
        peak = max(peak, used())
        heapq.heappush(queue, (k + (hits_late if hits[-1] else settles_late), k))
        while queue and queue[0][0] <= k:
            _, origin = heapq.heappop(queue)
            key_then, size_then, cost_then = requests[origin]
            policy.arrive(key_then)
            if hits[origin]:
                continue
            nursery[:] = [answer for answer in nursery if answer[0] != origin]
            if key_then not in policy.residents:
                policy.settle(key_then, size_then, cost_then)
            peak = max(peak, used())
    return hits, peak


@settings(max_examples=examples(60, 150), deadline=None)
@given(
    trace=small_traces(),
    name=st.sampled_from(POLICIES),
    capacity=st.integers(2, 20),
    lateness=st.tuples(st.integers(0, 12), st.integers(0, 12)),
    share=st.integers(0, 10),
)
def test_one_decider_equals_its_transcription(
    trace: Trace, name: str, capacity: int, lateness: tuple[int, int], share: int
) -> None:
    spec, nursery = registry.find(name), capacity * share // 20
    hits, peak = replay_late(spec, capacity, trace, *lateness, nursery=nursery)
    slow_hits, slow_peak = slow_late(spec.build(capacity - nursery, trace.ids), trace, *lateness, nursery)
    assert hits.tolist() == slow_hits
    assert peak == slow_peak <= capacity


@pytest.mark.parametrize("name", POLICIES)
def test_designs_without_delay_and_division_are_a_plain_replay(name: str) -> None:
    cell = replace(CELL, policy=name)
    expected = replay(registry.find(name).build_for(90, TRACE, seed=0), TRACE).miss_cost
    same = [cell, replace(cell, design="one"), *(replace(cell, design=d, proxies=1) for d in ("own", "hashed"))]
    assert [miss_cost({"a": TRACE}, one) for one in same] == pytest.approx([expected] * 4)


def test_parts_are_replays_of_their_own_requests() -> None:
    spec, parts = registry.find("lru"), np.random.default_rng(0).integers(3, size=len(TRACE))
    hits = replay_parts(spec, 91, TRACE, parts, 3)
    for part, share in enumerate((31, 30, 30)):
        mine = parts == part
        alone = Trace(TRACE.keys[mine], TRACE.sizes[mine], TRACE.costs[mine], TRACE.ids)
        assert hits[mine].tolist() == replay(spec.build_for(share, alone, seed=0), alone).hits.tolist()
    with pytest.raises(InvalidInput, match="a capacity of 2 cannot be divided among 3 proxies"):
        replay_parts(spec, 2, TRACE, parts, 3)


def test_requests_of_a_key_go_to_one_decider_and_repeats_differ() -> None:
    """Keys that are hashed meet one cache, so a cache for all of them pays once for each; own caches pay n times."""
    trace = Trace(np.tile(np.arange(4), 50), np.ones(200, int), np.ones(200), 4)
    cell = replace(CELL, capacity=40, proxies=5)
    assert miss_cost({"a": trace}, replace(cell, design="hashed")) == 4.0
    assert miss_cost({"a": trace}, replace(cell, design="own")) == 20.0
    costs = [miss_cost({"a": TRACE}, replace(CELL, design="own", proxies=3, repeat=k)) for k in (0, 0, 1)]
    assert costs[0] == costs[1] != costs[2]


def test_rows_and_figure() -> None:
    chosen = {"traces": ("synthetic",), "proxies": (2,), "late": ("40:10",), "repeats": 2, "nursery": 10.0}
    result = CLUSTER.run(CLUSTER.choose(chosen, quick=True), 1)
    names = [(row["design"], row["proxies"], row["hits_late"], row["nursery"], row["cells"]) for row in result.rows]
    divided = [(name, 2, None, None, 4) for name in ("own", "hashed")]
    assert names == [*divided, ("one", None, 40, 0.0, 2), ("one", None, 40, 10.0, 2)]
    own, hashed, one, _ = (row["extra_mean"] for row in result.rows)
    assert own > hashed > 0.0
    assert own > one > 0.0
    for row in result.rows:
        assert row["extra_largest"] >= row["extra_mean"]
        assert row["largest_at"] in ("synthetic 10%", "synthetic 30%")
    json.dumps(result.rows, allow_nan=False)
    assert len(result.figure.axes[0].patches) == 4


def test_a_log_of_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.csv"
    with log.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["time", "key", "size", "cost"])
        writer.writerows((t, int(key), 1 + key % 5, 1.0) for t, key in enumerate(TRACE.keys[:400]))
    options = ["--quick", "--traces", str(log), "--capacity", "50%", "--late", "20:5", "--jobs", "1"]
    assert main(["experiment", "cluster", *options, "--out", str(tmp_path / "out")]) == 0
    assert "log.csv 50%" in capsys.readouterr().out
    record = json.loads((tmp_path / "out" / "cluster.json").read_text())
    assert record["settings"]["traces"] == [str(log)]
    assert (tmp_path / "out" / "cluster.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"policy": "belady"}, "policy 'belady' knows the future"),
        ({"capacities": ("x",)}, "capacity 'x' cannot be read"),
        ({"proxies": (0,)}, "proxies must be at least 1, not 0"),
        ({"proxies": (2, 2)}, "proxies must be different, not 2, 2"),
        ({"late": ("5",)}, "late must be pairs of numbers of requests, such as 250:25, not '5'"),
        ({"nursery": 100.0}, "nursery must be from 0 to less than 100 %, not 100"),
    ],
)
def test_bad_settings(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        ClusterSettings(**choices)
    assert message in str(error.value)


def test_missing_traces_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KNAPCACHE_TRACES", str(tmp_path))
    with pytest.raises(InvalidInput, match=r"oasst_zipf_0\.6\.csv\.gz does not exist: set KNAPCACHE_TRACES"):
        CLUSTER.run(ClusterSettings(), 1)


def test_the_guide_has_the_committed_numbers() -> None:
    rows = json.loads((ROOT / "experiments" / "results" / "cluster.json").read_text(encoding="utf-8"))["rows"]
    page = (ROOT / "docs" / "guides" / "lab.md").read_text(encoding="utf-8")
    by_design: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_design.setdefault(label(row), []).append(row)
    for name, group in by_design.items():
        means = [f"{row['extra_mean']:+.2f} %" for row in (group if len(group) > 1 else group * 3)]
        line = f"| {name} | {' | '.join(means)} | {max(row['extra_largest'] for row in group):+.1f} % |"
        assert line in page, f"docs/guides/lab.md lacks: {line}"
    guide = (ROOT / "docs" / "guides" / "cluster.md").read_text(encoding="utf-8")
    assert "(hits known 250 requests late, answers 25 late)" in guide
    for wanted in ("own", "hashed", "one"):
        late = (250, 2.0) if wanted == "one" else (None, None)
        group = [r for r in rows if (r["design"], r["hits_late"], r["nursery"]) == (wanted, *late)]
        extra: list[float] = [r["extra_mean"] for r in (group if len(group) > 1 else group * 3)]
        shown = " | ".join(f"{mean:+.0f} %" if mean >= 10 else f"{mean:+.1f} %" for mean in extra)
        assert f"| {shown} |" in guide, f"docs/guides/cluster.md lacks: {shown}"
