"""bench/cluster.py: part `designs` from end to end on a small trace, and part `live` at a small scale."""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.redis_servers import require_engine

BENCH = Path(__file__).resolve().parents[2] / "bench" / "cluster.py"
sys.path.append(str(BENCH.parent))

from cluster import live_markdown, merged_live  # noqa: E402 - after the change of sys.path


def run_bench(traces: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmark with traces from this directory."""
    return subprocess.run(
        [sys.executable, str(BENCH), "--jobs", "1", *arguments],
        env=os.environ | {"KNAPCACHE_TRACES": str(traces)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_run_writes_json_a_figure_and_markdown(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with gzip.open(tmp_path / "adaptsize_camp.csv.gz", "wt", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["time", "key", "size", "cost"])
        lines.writerows((t, key, 10 + key % 7, 1 + key % 3) for t, key in enumerate(rng.zipf(1.3, 2000) % 300))
    out = tmp_path / "out"
    out.mkdir()
    (out / "cluster.json").write_text('{"another part": 7}')
    arguments = (
        "--traces",
        "adaptsize_camp,oasst_zipf_1.0",
        "--capacities",
        "20%,30%",
        "--policy",
        "lru",
        "--parts",
        "designs",
    )
    done = run_bench(tmp_path, *arguments, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "oasst_zipf_1.0: skipped, " in done.stderr
    record = json.loads((out / "cluster.json").read_text(encoding="utf-8"))
    assert record["another part"] == 7
    assert (out / "cluster.png").read_bytes().startswith(b"\x89PNG")
    part = record["designs"]
    assert (part["traces"], part["capacities"]) == (["adaptsize_camp"], ["20%", "30%"])
    costs = {
        row["capacity_text"]: row["extra_cost"]
        for row in part["rows"]
        if (row["design"], row["hits_late"], row["settles_late"]) == ("nursery", 1000, 100)
    }
    assert list(costs) == ["20%", "30%"]
    (target,) = part["targets"]
    assert target["measured"] == pytest.approx(100 * sum(costs.values()) / 2)
    assert target["met"] == (target["measured"] <= 1.0)
    page = run_bench(tmp_path, "--markdown", str(out / "cluster.json")).stdout
    measured = f"{target['measured']:.2f} %"
    assert f" of 2 cells | {measured} | ≤ 1 % | {'yes' if target['met'] else 'no'} |" in page
    shown = f"{target['measured']:+.2f} %"
    assert f"hits 1,000 and settles 100 late, nursery 2 % | {shown} | {shown} | {shown} | " in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--parts", "all"), "'all' is not one of designs, live"),
        ((), "none of the traces exists"),
    ],
)
def test_bad_arguments(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run_bench(tmp_path, *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_live_run_keeps_what_it_does_not_measure_again() -> None:
    cuts = {"cuts": 50, "shards": 200, "inconsistent_shards": 0}
    again = {"engine": "redis 7", "scale": 1.0, "cuts": cuts, "not_started": [], "targets": []}
    part = merged_live({"scale": 1.0, "cuts": {}, "fencing": {"rounds": 20, "fenced": 19}}, again)
    assert [row["met"] for row in part["targets"]] == [False, True]
    page = live_markdown(part)
    assert "| 50 cuts: inconsistent shards of 200 | 0 | ≤ 0 | yes |" in page
    assert "| owners that were stopped, replaced and woken: fenced | 19 | ≥ 20 | no |" in page
    assert "fencing" not in merged_live({"scale": 0.1, "fencing": {}}, again)


@pytest.mark.long
def test_every_live_measurement_at_a_small_scale(tmp_path: Path) -> None:
    require_engine()
    done = run_bench(tmp_path, "--parts", "live", "--scale", "0.02", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "cluster.json").read_text(encoding="utf-8"))["live"]
    met = {row["metric"]: row["met"] for row in found["targets"]}
    assert all(ok for name, ok in met.items() if "failed" in name or "wrong" in name or "over the limit" in name), met
    assert found["bursts"]["bills_per_key"] == 1.0
