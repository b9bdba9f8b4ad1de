"""bench/cluster.py, part `designs`, from end to end on a small trace."""

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

BENCH = Path(__file__).resolve().parents[2] / "bench" / "cluster.py"


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
    arguments = ("--traces", "adaptsize_camp,oasst_zipf_1.0", "--capacities", "20%,30%", "--policy", "lru")
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
        (("--parts", "all"), "'all' is not one of designs"),
        ((), "none of the traces exists"),
    ],
)
def test_bad_arguments(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run_bench(tmp_path, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
