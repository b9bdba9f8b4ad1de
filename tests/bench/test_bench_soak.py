"""The soak runs, short; it sees what it is there to see."""

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

from _load_generator import Wire  # noqa: E402
from _soak_clients import Crowd  # noqa: E402 - after the path it is found by
from soak import bars, growth  # noqa: E402


def soaked(folder: Path, minutes: float, clients: int) -> tuple[int, dict[str, Any]]:
    words = [sys.executable, str(BENCH / "soak.py"), "--out", str(folder)]
    words += ["--minutes", str(minutes), "--clients", str(clients)]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ)
    assert (folder / "soak.json").exists(), done.stderr
    record: dict[str, Any] = json.loads((folder / "soak.json").read_text(encoding="utf-8"))
    assert (folder / "soak.png").read_bytes().startswith(b"\x89PNG")
    assert (done.returncode == 0) == all(line["met"] for line in record["targets"])
    return done.returncode, record


def test_ten_seconds(tmp_path: Path) -> None:
    code, record = soaked(tmp_path, 1 / 6, 20)
    assert (code, record["misdelivered"], record["failed"], record["timed_out"]) == (0, 0, 0, 0)
    assert record["answered"] > record["hits"] > 0
    assert record["disconnected"] > 0
    assert record["curve"][-1]["tasks"] > 0
    assert len(record["targets"]) == 3, "a start is not judged"


@pytest.mark.long
def test_two_minutes(tmp_path: Path) -> None:
    """R8, small: nothing grows, nobody gets another's answer."""
    code, record = soaked(tmp_path, 2.0, 200)
    assert code == 0, record["targets"]
    assert len(record["targets"]) == 8


def test_growth_is_seen_and_outliers_are_not() -> None:
    flat = [(float(t), 100.0 + t % 3) for t in range(40)]
    assert -1.0 < growth(flat)[0] <= growth(flat)[1] < 1.0
    assert abs(growth([(t, 900.0 if t == 39 else v) for t, v in flat])[1]) < 1.0
    assert growth([(t, v + 0.5 * t) for t, v in flat]) == pytest.approx((17.7, 17.7), abs=1.0)
    for seed in range(20):
        rng = random.Random(seed)
        assert growth([(float(t), rng.uniform(140, 410)) for t in range(80)])[0] < 5.0, "it swings, and does not grow"


def test_a_leak_does_not_hold() -> None:
    curve = [{"seconds": 10.0 * t, "resident_mib": 100 + t, "descriptors": 50, "tasks": 9} for t in range(1, 40)]
    told = {"misdelivered": 0, "failed": 0, "timed_out": 0, "descriptors_leaked": 0, "tasks_leaked": 0}
    holds = {line["metric"]: line["met"] for line in bars(curve, told, judged=True)}
    assert [what for what, held in holds.items() if not held] == ["growth in the last two thirds: resident memory, MiB"]
    assert not bars(curve, {**told, "misdelivered": 1}, judged=False)[0]["met"]


@pytest.mark.parametrize(
    ("said", "count"),
    [
        (b'{"content": "nonce-7- x"}', "answered"),
        (b'{"content": "nonce-8- x"}', "misdelivered"),
        (b'{"content": "nonce-7- x nonce-8- y"}', "misdelivered"),
        (b'{"content": "x"}', "misdelivered"),
    ],
)
def test_answers_of_others_are_seen(said: bytes, count: str) -> None:
    crowd = Crowd({"seconds": 0, "prompts": 10})
    wire = Wire(lambda _: None)
    wire.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(said) + said)
    assert wire.whole
    crowd._judge(wire, 7, leaving=False)
    assert crowd.counts[count] == 1
    assert crowd.counts["misdelivered"] == (count == "misdelivered")
