"""bench/policies.py from end to end on a small trace."""

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

BENCH = Path(__file__).resolve().parents[2] / "bench" / "policies.py"


def run_bench(traces: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmark with traces from this directory."""
    return subprocess.run(
        [sys.executable, str(BENCH), "--jobs", "1", *arguments],
        env=os.environ | {"KNAPCACHE_TRACES": str(traces)},
        capture_output=True,
        text=True,
        check=False,
    )


def write_trace(path: Path) -> None:
    rng = np.random.default_rng(0)
    with gzip.open(path, "wt", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["time", "key", "size", "cost"])
        rows.writerows((t, key, 10 + key % 7, 1 + key % 3) for t, key in enumerate(rng.zipf(1.3, 2000) % 300))


def test_a_run_writes_json_a_figure_and_markdown(tmp_path: Path) -> None:
    write_trace(tmp_path / "oasst_zipf_0.6.csv.gz")
    names = "lru,fifo,gdsf-cost,pfoo"
    arguments = ("--traces", "oasst_zipf_0.6,oasst_zipf_1.0", "--capacities", "5%,10%", "--policies", names)
    done = run_bench(tmp_path, *arguments, "--subject", "gdsf-cost", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "oasst_zipf_1.0: skipped, " in done.stderr
    assert "closes" in done.stdout
    record = json.loads((tmp_path / "out" / "policies.json").read_text(encoding="utf-8"))
    assert (tmp_path / "out" / "policies.png").read_bytes().startswith(b"\x89PNG")
    ratio = record["ratios"]["oasst_zipf_0.6"]["10%"]
    assert list(ratio) == names.split(",")
    cell = record["cells"][1]
    assert (cell["capacity"], cell["subject"]) == ("10%", ratio["gdsf-cost"])
    best = min(("lru", "fifo"), key=ratio.__getitem__)
    assert (cell["best_other_name"], cell["best_other"]) == (best, ratio[best])
    assert cell["ratio_to_best_other"] == pytest.approx(ratio["gdsf-cost"] / ratio[best])
    assert cell["gap_closed"] == pytest.approx((ratio["lru"] - ratio["gdsf-cost"]) / (ratio["lru"] - ratio["pfoo"]))
    by_capacity = list(record["ratios"]["oasst_zipf_0.6"].values())
    lru, subject, bound = (sum(cell[p] for cell in by_capacity) for p in ("lru", "gdsf-cost", "pfoo"))
    assert record["gap_closed"] == pytest.approx((lru - subject) / (lru - bound))
    measured = {b["metric"]: (b["measured"], b["met"]) for b in record["targets"]}
    assert measured["mean of 2 cells, cost / gdsf-cost"] == (1.0, False)
    assert measured["oasst_zipf_0.6 at 10%, cost / gdsf-cost"] == (1.0, False)
    worst = max(c["ratio_to_best_other"] for c in record["cells"])
    assert measured["worst of 2 cells, cost / best other policy"] == (worst, worst <= 1.02)
    page = run_bench(tmp_path, "--markdown", str(tmp_path / "out" / "policies.json")).stdout
    assert (
        f"| oasst_zipf_0.6 | 10% | {ratio['gdsf-cost']:.3f} | {ratio[best]:.3f} (`{best}`) | {ratio['gdsf-cost']:.3f} |"
        in page
    )
    assert (
        f"| worst of 2 cells, cost / best other policy | {worst:.3f} | ≤ 1.02 × | {'yes' if worst <= 1.02 else 'no'} |"
        in page
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--traces", "nowhere"), "'nowhere' is not one of oasst_zipf_0.6, "),
        (("--policies", "offline"), "'offline' is not one of "),
        (("--policies", "lru,lru"), "'lru' is named twice"),
        (("--capacities", "4MB"), "capacities must be shares of the working set, such as 10%, not 4MB"),
        (("--capacities", "many"), "capacity 'many' cannot be read"),
    ],
)
def test_bad_arguments(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run_bench(tmp_path, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
