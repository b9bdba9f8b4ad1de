"""bench/soak.py: a short run, and detection of growth, leaks and misdelivered answers."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.append(str(BENCH))

from _load_generator import Connection  # noqa: E402 - after the change of sys.path
from _soak_clients import SoakClients  # noqa: E402
from soak import check_targets, growth  # noqa: E402


def run_soak(folder: Path, minutes: float, clients: int) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, str(BENCH / "soak.py"), "--out", str(folder)]
    command += ["--minutes", str(minutes), "--clients", str(clients)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert (folder / "soak.json").exists(), done.stderr
    record: dict[str, Any] = json.loads((folder / "soak.json").read_text(encoding="utf-8"))
    assert (folder / "soak.png").read_bytes().startswith(b"\x89PNG")
    assert (done.returncode == 0) == all(line["met"] for line in record["targets"])
    return done.returncode, record


def test_a_run_of_three_seconds(tmp_path: Path) -> None:
    code, record = run_soak(tmp_path, 1 / 20, 20)
    assert (code, record["misdelivered"], record["failed"], record["timed_out"]) == (0, 0, 0, 0)
    assert record["answered"] > record["hits"] > 0
    assert record["disconnected"] > 0
    assert record["curve"][-1]["tasks"] > 0
    assert len(record["targets"]) == 3, "short runs have no targets on growth"


@pytest.mark.long
def test_a_run_of_two_minutes_meets_all_targets(tmp_path: Path) -> None:
    code, record = run_soak(tmp_path, 2.0, 200)
    assert code == 0, record["targets"]
    assert len(record["targets"]) == 8


def test_growth_is_detected_and_outliers_are_ignored() -> None:
    flat = [(float(t), 100.0 + t % 3) for t in range(40)]
    assert -1.0 < growth(flat)[0] <= growth(flat)[1] < 1.0
    assert abs(growth([(t, 900.0 if t == 39 else v) for t, v in flat])[1]) < 1.0
    assert growth([(t, v + 0.5 * t) for t, v in flat]) == pytest.approx((17.7, 17.7), abs=1.0)
    for seed in range(20):
        rng = random.Random(seed)
        assert growth([(float(t), rng.uniform(140, 410)) for t in range(80)])[0] < 5.0, "noise is not growth"


def test_a_memory_leak_misses_its_target() -> None:
    curve = [{"seconds": 10.0 * t, "resident_mib": 100 + t, "descriptors": 50, "tasks": 9} for t in range(1, 40)]
    counts = {"misdelivered": 0, "failed": 0, "timed_out": 0, "descriptors_leaked": 0, "tasks_leaked": 0}
    met = {line["metric"]: line["met"] for line in check_targets(curve, counts, with_growth=True)}
    assert [metric for metric, ok in met.items() if not ok] == ["growth in the last two thirds: resident memory, MiB"]
    assert not check_targets(curve, {**counts, "misdelivered": 1}, with_growth=False)[0]["met"]


@pytest.mark.parametrize(
    ("content", "count"),
    [
        (b'{"content": "nonce-7- x"}', "answered"),
        (b'{"content": "nonce-8- x"}', "misdelivered"),
        (b'{"content": "nonce-7- x nonce-8- y"}', "misdelivered"),
        (b'{"content": "x"}', "misdelivered"),
    ],
)
def test_misdelivered_answers_are_counted(content: bytes, count: str) -> None:
    clients = SoakClients({"seconds": 0, "prompts": 10})
    connection = Connection(lambda _: None)
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content) + content)
    assert connection.complete
    clients._count(connection, 7, aborted=False)
    assert clients.counts[count] == 1
    assert clients.counts["misdelivered"] == (count == "misdelivered")
